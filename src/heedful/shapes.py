"""The legend of sizes, and the one function that reads them off tensors.

B    batch entries
Hq   query heads        Hkv  key/value heads (Hq is a multiple of Hkv)
Tq   queries            Tk   keys
D    head size of query and key
Dv   head size of value

query (B, Hq, Tq, D)    key (B, Hkv, Tk, D)    value (B, Hkv, Tk, Dv)    output (B, Hq, Tq, Dv)
"""

from torch import Tensor

from heedful.errors import ArgumentError


def read_sizes(argument: str, tensor: Tensor, pattern: str, sizes: dict[str, int]) -> None:
    """Match a tensor's shape to a pattern such as ``"B Hkv Tk D"``, adding new sizes to `sizes`.

    Raises:
        ArgumentError: the number of dimensions differs, or a size contradicts one read before.
    """
    names = pattern.split()
    fits = tensor.dim() == len(names) and all(
        sizes.setdefault(name, size) == size for name, size in zip(names, tensor.shape, strict=True)
    )
    if not fits:
        known = (f"{name}={sizes[name]}" if name in sizes else name for name in names)
        raise ArgumentError(
            argument,
            expected=f"shape ({', '.join(known)})",
            received=f"shape {tuple(tensor.shape)}",
            remedy="Dimensions are batch, heads, tokens, head size: "
            "split the heads by unflatten(-1, (heads, -1)).transpose(1, 2).",
        )


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` can be expanded to the shape `to`, aligned at the last dimension."""
    return len(shape) <= len(to) and all(
        size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(to), strict=False)
    )
