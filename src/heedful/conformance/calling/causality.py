"""Make calls causal, by a flag or by a mask from the caller, and check whether they are."""

from __future__ import annotations

import ast

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.convention import Constants, VisibleKeys
from heedful.conformance.calling.influence import influences
from heedful.conformance.calling.target import Target, is_from_torch, is_from_transformers
from heedful.conformance.recording.source import names_in, nodes_of
from heedful.conformance.recording.target_source import functions_of

TOKENS = 4
TRIANGLES = frozenset({"tril", "triu", "tril_", "triu_", *names.CAUSAL})


def causal_flag(target: Target, causal: bool | None) -> Constants:
    """Return the argument that makes a call causal, or not, as the user wants it.

    The result is empty if the target has no such argument, or if the user does not state what it should be.
    """
    flags = [name for name in names.CAUSAL if name in target.parameters]
    return {} if causal is None else dict.fromkeys(flags, causal)


def mask_by_caller(target: Target, causal: bool | None) -> VisibleKeys | None:
    """Return the keys that each query may see, if the target leaves its causal mask to the caller; otherwise None.

    These are the layers of torch.nn, if they should be causal; transformers' attentions, whose models make the mask;
    and targets that take a mask and a start position, and make no mask themselves.
    """
    module, parameters = target.module, target.parameters
    if causal and is_from_torch(module):
        return causal_window()
    if is_from_transformers(module):
        if "attention_mask" not in parameters or not getattr(module, "is_causal", False):
            return None
        configured = getattr(getattr(module, "config", None), "sliding_window", None)
        return causal_window(getattr(module, "sliding_window", configured) or None)
    masks = [it.default is it.empty for name, it in parameters.items() if "mask" in name]
    makes_one = causal is False or speaks_of_causality(target)
    if not any(name in parameters for name in names.START_POSITIONS):
        return None
    return causal_window() if any(masks) or (masks and not makes_one) else None


def causal_window(window: int | None = None) -> VisibleKeys:
    """Return the visible keys of the newest tokens: their own and the earlier ones, at most `window` of them."""

    def visible_keys(queries: int, keys: int) -> Tensor:
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return visible if window is None else visible.triu(keys - queries - window + 1)

    return visible_keys


def speaks_of_causality(target: Target) -> bool:
    """Check whether a target's own code makes a triangle or names a flag for it: then its caller need not mask."""
    nodes = [node for function in functions_of(target.callee) for node in nodes_of(function)]
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    return not TRIANGLES.isdisjoint(
        keywords | names_in(it for it in nodes if isinstance(it, ast.expr))
    )


def is_causal(caller: Caller) -> bool:
    """Check whether the first row stays the same when the last token changes; False if so few tokens cannot be run."""
    return influences(caller, caller.draw(1, TOKENS), TOKENS - 1, rows=(0, 0)) is False
