"""The names of sizes, and the functions that read them from tensors.

B    batch entries
Hq   query heads        Hkv  key/value heads (Hq is a multiple of Hkv)
Tq   queries            Tk   keys
D    head size of query and key
Dv   head size of value

query (B, Hq, Tq, D)    key (B, Hkv, Tk, D)    value (B, Hkv, Tk, Dv)    output (B, Hq, Tq, Dv)
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from heedful.errors import ArgumentError


class Sizes(NamedTuple):
    """The sizes of an attention problem: ``B, Hq, Hkv, Tq, Tk, D, Dv = problem.sizes``."""

    B: int
    Hq: int
    Hkv: int
    Tq: int
    Tk: int
    D: int
    Dv: int


def sizes_of(query: Tensor, key: Tensor, value: Tensor) -> Sizes | None:
    """Return the sizes on which the three tensors agree; None if they disagree."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return None
    B, Hq, Tq, D = query.shape
    B_key, Hkv, Tk, D_key = key.shape
    B_value, Hkv_value, Tk_value, Dv = value.shape
    agree = (B_key, D_key) == (B, D) and (B, Hkv, Tk) == (B_value, Hkv_value, Tk_value)
    if agree and (Hq == Hkv or (Hkv and Hq % Hkv == 0)):
        return Sizes(B, Hq, Hkv, Tq, Tk, D, Dv)
    return None


def read_sizes(query: Tensor, key: Tensor, value: Tensor) -> Sizes:
    """Return the sizes on which the three tensors agree.

    Raises:
        ArgumentError: a tensor does not have four dimensions, two disagree on a size, or Hkv does not divide Hq.
    """
    sizes = sizes_of(query, key, value)
    if sizes is None:
        raise _disagreement(query, key, value)
    return sizes


def _disagreement(query: Tensor, key: Tensor, value: Tensor) -> ArgumentError:
    """Return the error for the first shape that does not match those before it."""
    known: dict[str, int] = {}
    patterns = {"query": "B Hq Tq D", "key": "B Hkv Tk D", "value": "B Hkv Tk Dv"}
    for (argument, pattern), tensor in zip(patterns.items(), (query, key, value), strict=True):
        names, shape = pattern.split(), tuple(tensor.shape)
        expected = ", ".join(f"{name}={known[name]}" if name in known else name for name in names)
        if len(shape) != len(names) or any(
            known.setdefault(name, size) != size for name, size in zip(names, shape, strict=True)
        ):
            return ArgumentError(
                argument,
                expected=f"shape ({expected})",
                received=f"shape {shape}",
                remedy="The dimensions are batch, heads, tokens, head size; split a projection into heads by "
                ".unflatten(-1, (heads, -1)).transpose(1, 2).",
            )
    return ArgumentError(
        "key",
        expected=f"a number of heads that divides the query's {known['Hq']}",
        received=f"{known['Hkv']} heads",
        remedy="In grouped attention, each key/value head serves Hq // Hkv query heads.",
    )


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Check whether a tensor of `shape` expands to the shape `to`, aligned at the last dimension."""
    return len(shape) <= len(to) and all(
        size in (1, target) for size, target in zip(reversed(shape), reversed(to), strict=False)
    )


def times(sizes: Sequence[int]) -> str:
    """Return sizes as readers write them: "2 × 3"; "scalar" if there are none."""
    return " × ".join(map(str, sizes)) or "scalar"
