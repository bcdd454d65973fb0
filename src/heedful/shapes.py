"""The legend of sizes, and the functions that read them off tensors.

B    batch entries
Hq   query heads        Hkv  key/value heads (Hq is a multiple of Hkv)
Tq   queries            Tk   keys
D    head size of query and key
Dv   head size of value

query (B, Hq, Tq, D)    key (B, Hkv, Tk, D)    value (B, Hkv, Tk, Dv)    output (B, Hq, Tq, Dv)
"""

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


def read_sizes(query: Tensor, key: Tensor, value: Tensor) -> Sizes:
    """The sizes that the three tensors agree on.

    Raises:
        ArgumentError: a tensor has other than four dimensions, two disagree on a size, or Hkv does not divide Hq.
    """
    sizes: dict[str, int] = {}
    _match("query", query, "B Hq Tq D", sizes)
    _match("key", key, "B Hkv Tk D", sizes)
    _match("value", value, "B Hkv Tk Dv", sizes)
    Hq, Hkv = sizes["Hq"], sizes["Hkv"]
    if Hq != Hkv and (Hkv == 0 or Hq % Hkv):
        raise ArgumentError(
            "key",
            expected=f"a number of heads that divides the query's {Hq}",
            received=f"{Hkv} heads",
            remedy="In grouped attention each key/value head serves Hq // Hkv query heads.",
        )
    return Sizes(**sizes)


def _match(argument: str, tensor: Tensor, pattern: str, sizes: dict[str, int]) -> None:
    """Match a shape to a pattern such as ``"B Hkv Tk D"``, adding the sizes that are new to `sizes`."""
    names = pattern.split()
    known = ", ".join(f"{name}={sizes[name]}" if name in sizes else name for name in names)
    shape = tuple(tensor.shape)
    if len(shape) != len(names) or any(
        sizes.setdefault(name, size) != size for name, size in zip(names, shape, strict=True)
    ):
        raise ArgumentError(
            argument,
            expected=f"shape ({known})",
            received=f"shape {shape}",
            remedy="The dimensions are batch, heads, tokens, head size; heads come out of a projection by "
            ".unflatten(-1, (heads, -1)).transpose(1, 2).",
        )


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` expands to the shape `to`, aligned at the last dimension."""
    return len(shape) <= len(to) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(to), strict=False)
    )
