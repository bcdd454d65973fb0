"""Parts of a target that get its mask as it is, and what they say about it."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import nn

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.polarity import documented_polarity


class DocumentingPart(NamedTuple):
    """A part of a target whose documentation says what its mask means.

    Attributes:
        path: The path of the part, such as "layers.0.attention".
        true_keeps: Whether True, or 1, means that a token is visible.
    """

    path: str
    true_keeps: bool


def documenting_part(caller: Caller, name: str, B: int, T: int) -> DocumentingPart | None:
    """Return the first part that gets the very mask which the target gets, and documents it; None if there is none.

    Args:
        caller: How the target is called.
        name: The argument for the mask.
        B: The number of sequences.
        T: The number of tokens.
    """
    if caller.module is None:
        return None
    mask, found = torch.ones(T, T, dtype=torch.bool), list[DocumentingPart]()
    paths = {part: path for path, part in caller.module.named_modules() if path}

    def look(part: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        bound = attempt(lambda: inspect.signature(part.forward).bind(*args, **keywords).arguments)
        taking = () if isinstance(bound, Exception) else [it for it in bound if bound[it] is mask]
        documented = documented_arguments(part) if taking else {}
        said = (documented_polarity(documented.get(it, "")) for it in taking)
        found.extend(DocumentingPart(paths[part], it) for it in said if it is not None)

    hooks = [part.register_forward_pre_hook(look, with_kwargs=True) for part in paths]
    arguments = {**caller.arguments(caller.draw(B, T)), name: mask}
    args, keywords = caller.target.bound(arguments)
    try:
        with torch.no_grad(), caller.isolated():
            attempt(
                lambda: caller.callee(*args, **keywords)
            )  # a mask of another shape may be needed
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None
