"""Rotary positions: pairs of features turned by angles that grow with the position (Su et al. 2021, RoFormer)."""

# ruff: noqa: RET504 - the last step has a name too: it is what `record` calls it by

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.modes import eager
from heedful.textbook.checks import check_sizes

Layout = Literal["half", "interleaved"]


class Rotation(NamedTuple):
    """What turns (…, T, D): each feature times `cos`, plus the other one of its pair times `sin`."""

    cos: Tensor
    sin: Tensor


class RotaryEmbedding(nn.Module):
    """Turns each pair of a head's features by the angle position · base^(−2 pair / D).

    So the dot product of a query and a key depends on how far apart they stand, not on where. The module holds
    nothing that is trained or saved, and knows no longest position. Layers may share one, and should: its angles are
    then computed once for all of them.

    Args:
        head_dim: D, the features of a head: an even number.
        base: how slowly the slowest pair turns. 10,000 in the paper; longer contexts are trained with more.
        layout: which features are a pair. ``"half"``: i and i + D/2 (transformers' Llama, GPT-NeoX).
            ``"interleaved"``: 2i and 2i + 1 (the paper, GPT-J, Meta's own checkpoints of Llama). Weights trained
            with one give nonsense with the other.

    Raises:
        ArgumentError: a head_dim that is odd or below 2, a base that is not above 0, another layout.
    """

    def __init__(self, head_dim: int, *, base: float = 10_000.0, layout: Layout = "half") -> None:
        super().__init__()
        _check_settings(head_dim, base, layout)
        self.head_dim, self.base, self.layout = head_dim, base, layout
        self._last: tuple[Tensor, torch.dtype, Rotation] | None = None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys, turned to their positions.

        Args:
            x: (B, H, T, D), floating point.
            positions: (T,), or (B, T) where batch entries differ: integers.

        Returns:
            (B, H, T, D) in the dtype of x; angles are float64, products float32 or better.

        Raises:
            ArgumentError: x of another head size, positions of another shape or not whole.
        """
        self._check(x, positions)
        cos, sin = self.rotation(positions, torch.promote_types(x.dtype, torch.float32))
        if self.layout == "half":
            partner = x.roll(self.head_dim // 2, dims=-1)
        else:
            partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        wide = (x * cos).addcmul_(partner, sin)
        rotated = wide.to(x.dtype)
        return rotated

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Cosines and signed sines of the positions' angles: (T, D), or (B, 1, T, D).

        On CPUs, where they take long and comparing takes none, those of the last positions are kept.
        """
        if not (positions.is_cpu and eager(positions)):
            return self._computed(positions, dtype)
        last = self._last
        if last is None or last[1] != dtype or not torch.equal(last[0], positions):
            with torch.inference_mode(False):  # a backward pass may use them yet
                last = positions.clone(), dtype, self._computed(positions, dtype)
            self._last = last
        return last[2]

    def _computed(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        frequencies = self._signed_frequencies(positions.device)
        if positions.dim() == 2:
            positions = positions.unsqueeze(1)  # all heads turn alike
        angles = positions.unsqueeze(-1) * frequencies
        cos = angles.cos().to(dtype)
        sin = angles.sin().to(dtype)
        return Rotation(cos, sin)

    def _signed_frequencies(self, device: torch.device) -> Tensor:
        """Each feature's angle per position: (D,). The first of a pair turns by minus it, for x·cos − partner·sin."""
        D = self.head_dim
        dtype = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
        pairs = torch.arange(0, D, 2, device=device, dtype=dtype)
        frequencies = self.base ** (-pairs / D)
        signed = torch.stack([-frequencies, frequencies])  # (2, D/2)
        return signed.flatten() if self.layout == "half" else signed.T.flatten()

    def _check(self, x: Tensor, positions: Tensor) -> None:
        if x.dim() != 4 or x.shape[3] != self.head_dim or not x.is_floating_point():
            raise ArgumentError(
                "x",
                expected=f"floating point (B, H, T, {self.head_dim})",
                received=f"{x.dtype} {tuple(x.shape)}",
                remedy="Split queries and keys into heads first; values are not turned.",
            )
        B, _, T, _ = x.shape
        if positions.dtype != torch.int64 or tuple(positions.shape) not in ((T,), (B, T), (1, T)):
            raise ArgumentError(
                "positions",
                expected=f"int64 ({T},), or ({B}, {T}) where batch entries differ",
                received=f"{positions.dtype} {tuple(positions.shape)}",
                remedy="One position for each of the new tokens, those of a cache not included.",
            )

    def extra_repr(self) -> str:
        return f"{self.head_dim}, base={self.base}, layout={self.layout!r}"


def _check_settings(head_dim: int, base: float, layout: str) -> None:
    check_sizes(head_dim=head_dim)
    if head_dim % 2:
        raise ArgumentError(
            "head_dim",
            expected="an even number: features are turned in pairs",
            received=repr(head_dim),
            remedy="Choose another number of heads, or another head_dim.",
        )
    if not base > 0:
        raise ArgumentError(
            "base",
            expected="a number above 0",
            received=repr(base),
            remedy="10,000.0 is the paper's; `rope_theta` in a config of transformers.",
        )
    if layout not in ("half", "interleaved"):
        raise ArgumentError(
            "layout",
            expected='"half" or "interleaved"',
            received=repr(layout),
            remedy='"half" for checkpoints of transformers, "interleaved" for Meta\'s own.',
        )
