"""What a target's attributes and its own source say about the order of its axes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from heedful.conformance.recording.source import parsed

SIZES = {
    "B": ("b", "bs", "bsz", "nb", "batch", "batch_size", "batchsize", "n_batch", "num_batches"),
    "T": (
        *("t", "n", "l", "s", "tq", "seq", "seq_len", "seqlen", "seq_length", "sequence_length"),
        *("length", "tgt_len", "src_len", "q_len", "tokens", "num_tokens", "n_tokens", "time"),
    ),
    "H": ("h", "nh", "hq", "heads", "n_heads", "n_head", "num_heads", "nheads", "nhead"),
}


def tokens_come_first(module: nn.Module) -> bool:
    """Whether a module takes (T, B, C).

    Its own `batch_first` says so, or its source, `T, B, C = x.shape`; where both are silent, the `batch_first` of a
    layer of torch's within it.
    """
    if isinstance(declared := getattr(module, "batch_first", None), bool):
        return not declared
    orders = (_order(names)[:2] for names in _unpacked_shapes(module))
    if (read := next((it for it in orders if it in ("TB", "BT")), None)) is not None:
        return read == "TB"
    layers = (it for it in module.modules() if type(it).__module__.startswith("torch."))
    said = (it.batch_first for it in layers if isinstance(getattr(it, "batch_first", None), bool))
    return not next(said, True)


def heads_come_last(function: Callable[..., Any] | nn.Module) -> bool:
    """Whether a function takes (B, T, H, D), as its source shows: `B, T, H, D = query.shape`."""
    return any(_order(names)[:3] == "BTH" for names in _unpacked_shapes(function))


def _order(names: list[str]) -> str:
    """ "BTC"[:2] of ["batch", "seq_len", "d"]: what the names stand for, " " for what is not known."""
    return "".join(
        next((kind for kind, known in SIZES.items() if name.lower() in known), " ")
        for name in names
    )


def _unpacked_shapes(target: nn.Module | Callable[..., Any]) -> Iterator[list[str]]:
    """The names that a target's source unpacks shapes into, those of `forward` first."""
    for tree in _syntax(target):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=value) if _is_shape(value):
                    yield [it.id if isinstance(it, ast.Name) else "" for it in names]


def _is_shape(node: ast.expr) -> bool:
    """Whether an expression is `x.shape` or `x.size()`, or the first of either."""
    match node:
        case ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size"), args=[]):
            return True
        case ast.Subscript(value=value, slice=ast.Slice(lower=None)):
            return _is_shape(value)
    return False


def _syntax(target: nn.Module | Callable[..., Any]) -> Iterator[ast.AST]:
    kinds = [type(it) for it in target.modules()] if isinstance(target, nn.Module) else []
    written = [it for it in dict.fromkeys(kinds) if not it.__module__.startswith("torch.")]
    for thing in [part for kind in written for part in (kind.forward, kind)] or [target]:
        if (source := parsed(thing)) is not None:
            yield source.tree
