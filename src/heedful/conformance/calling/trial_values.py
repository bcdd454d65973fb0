"""The values that are tried for an argument of a call, in the order in which its name suggests them."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.candidates import widths_of
from heedful.conformance.calling.conventional import WIDTH
from heedful.conformance.calling.declared import declared_number
from heedful.conformance.calling.layouts import documented_axes
from heedful.conformance.calling.roles import layers_given, roles_by_name
from heedful.conformance.calling.rotary_tables import rotary_table
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.source import nodes_of

BATCH = 7  # few numbers of features are its multiples, so that a reshape does not fit by chance
GRIDS = ((2, 5), (4, 4), (8, 8))  # heights and widths of images, and so many tokens
MAX_WIDTHS = 8
LAYERS_FIRST = "1BC"

# Each letter of a shape is the size of an axis: C is any width of the target, D the number of distances between tokens,
# F two frames.
SHAPES: Mapping[str, tuple[str, ...]] = {
    "vector": ("BTC", "B1C", "BC", "TBC", "1BC", "BCT", "BTTC", "BTT", "BFTC"),
    "map": ("BCYX", "BYXC", "BCFYX", "BFCYX"),
    "table": ("TC", "1TC", "BDC", "1DC"),
    "mask": ("BT", "BT1", "B1T", "B11T", "BTT", "B1TT", "TT", "BYX"),
    "id": ("BT", "B", "T", "BTT"),
}
# The kinds of values in the roles that the name of an argument suggests.
KINDS: Mapping[str, str] = {
    "masks": "mask", "lengths": "id", "positions": "id", "edges": "id", "bounds": "id",
    "rotary": "table", "biases": "table", "tokens": "vector", "alignments": "vector",
    "pairs": "vector", "squares": "vector", "coordinates": "vector",
    "heights": "number", "widths": "number", "sizes": "number", "grids": "number", "numbers": "number",
}  # fmt: skip


class TrialValue(NamedTuple):
    """A value that an argument may have, its kind and shape in letters, and the size that C stands for."""

    kind: str
    width: int
    value: Any


def trial_values(name: str, target: Target, grid: tuple[int, int]) -> list[TrialValue]:
    """Return the values that an argument may have, those of the kinds that its name suggests first.

    If the documentation shows the argument's axes, there are as many of them. The states of a recurrent layer, of which
    the code reads the last one, `hidden[-1]`, have an axis for layers first.
    """
    assert target.module is not None
    ranks = {len(axes) for axes in documented_axes(target.callee, name)}
    likely = [KINDS[role] for role in roles_by_name(name) if role in KINDS]
    likely = ["id", *likely] if _is_embedded(target, name) else likely
    numbers = [] if "mask" in likely else ["number"]
    widths = widths_to_try(target.module)
    values = [
        value
        for kind in dict.fromkeys((*likely, *SHAPES, *numbers, "other"))
        for value in _of_kind(kind, name, target.module, grid, widths)
    ]
    if _takes_last(target, name):
        values.sort(key=lambda it: not it.kind.startswith(LAYERS_FIRST))
    tensors = [it for it in values if isinstance(it.value, Tensor) and it.value.dim() in ranks]
    return tensors if ranks else values


def _is_embedded(target: Target, argument: str) -> bool:
    """Check whether a target's own code looks an argument up in a table, as `self.embed_tokens(tokens)`."""
    layers = (getattr(target.module, name, None) for name in layers_given(target, argument))
    return any(isinstance(it, nn.Embedding) for it in layers)


def _takes_last(target: Target, argument: str) -> bool:
    """Check whether a target's own code reads the last entry of an argument, as `hidden[-1]`."""
    for node in nodes_of(target.forward):
        match node:
            case ast.Subscript(
                value=ast.Name(id=name),
                slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)),
            ) if name == argument:
                return True
    return False


def _of_kind(
    kind: str, name: str, module: nn.Module, grid: tuple[int, int], widths: Sequence[int]
) -> Iterator[TrialValue]:
    """Yield the values of one kind for an argument of some name."""
    Y, X = grid
    if kind == "number":
        yield from (TrialValue("number", 0, it) for it in (Y * X, Y, X, (Y, X), 0, 1))
    if kind == "other":
        maps = _pyramid(module, grid)
        yield from (TrialValue("other", 0, it) for it in ([maps, None] if maps else [None]))
    if kind == "id":
        yield TrialValue("lengths", 0, torch.full((BATCH,), Y * X))
    sizes = {"B": BATCH, "T": Y * X, "Y": Y, "X": X, "D": 2 * Y * X - 1, "F": 2, "1": 1}
    for letters in SHAPES.get(kind, ()):
        parts = _parts(module, widths) if kind == "table" or letters == "BTTC" else []
        for C in (*widths, *parts) if "C" in letters else (0,):
            shape = [sizes.get(letter, C) for letter in letters]
            yield from (
                TrialValue(f"{letters} {it.dtype}", C, it)
                for it in _tensors(kind, name, module, shape)
            )


def _tensors(kind: str, name: str, module: nn.Module, shape: Sequence[int]) -> Iterator[Tensor]:
    """Yield the tensors of one kind and shape: a mask may be Boolean or of numbers."""
    generator = torch.Generator().manual_seed(0)
    if kind == "mask":
        yield torch.ones(shape, dtype=torch.bool)
        yield torch.ones(shape)
    elif kind == "id":
        layers = (it.num_embeddings for it in module.modules() if isinstance(it, nn.Embedding))
        yield torch.randint(min(layers, default=2), shape, generator=generator)
    elif kind == "table" and (word := next((it for it in ("cos", "sin") if it in name), "")):
        *_, T, C = shape
        table = rotary_table(f"freqs_{word}", 1, T, 2 * C, torch.float32)  # each angle once
        yield table.expand(shape).clone()
    else:
        yield torch.randn(shape, generator=generator)


def widths_to_try(module: nn.Module) -> list[int]:
    """Return the numbers of features that a module may take, or that it may join with others to one of its widths."""
    known = list(dict.fromkeys((*widths_of(module)[: MAX_WIDTHS // 2], WIDTH)))
    rest = (a - b for a, b in permutations(known, 2) if a > b)
    halves = (width // 2 for width in known if width % 2 == 0)
    return list(dict.fromkeys((*known, *rest, *halves)))[:MAX_WIDTHS]


def _parts(module: nn.Module, widths: Sequence[int]) -> list[int]:
    """Return the numbers of features of a head, and half of them, which tables of positions may have."""
    heads = declared_number(module, names.HEADS) or 1
    halves = (size for width in widths for size in (width // heads, width // heads // 2))
    return [size for size in dict.fromkeys(halves) if size and size not in widths]


def _pyramid(module: nn.Module, grid: tuple[int, int]) -> list[Tensor]:
    """Return feature maps, each half as high and wide as the one before, for a module that lists their channels."""
    lists = (it for it in vars(module).values() if isinstance(it, list | tuple) and it)
    channels = next((it for it in lists if all(type(C) is int and C > 0 for C in it)), ())
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(BATCH, C, *(math.ceil(side / 2**level) for side in grid), generator=generator)
        for level, C in enumerate(channels)
    ]
