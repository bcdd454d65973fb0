"""Rotary position embeddings: pairs of features rotated by angles that grow with the position."""

# ruff: noqa: RET504 - the last step has a name too, which `record` uses

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.modes import eager
from heedful.textbook.checks import check_sizes

Layout = Literal["half", "interleaved"]


class RotationFactors(NamedTuple):
    """The factors that rotate (…, T, D): each feature times `cos`, plus the other feature of its pair times `sin`."""

    cos: Float[Tensor, "... T D"]
    sin: Float[Tensor, "... T D"]


class RotaryEmbedding(nn.Module):
    """Rotates each pair of features by the angle position · base^(−2·pair / D) (Su et al. 2021, RoFormer, §3.2).

    The dot product of a query and a key then depends on the distance between them, not on their positions. The module
    has no parameters, no state to save and no maximum position. Share one module between layers: the angles are then
    computed once for all of them.

    Args:
        head_dim: the number of features of a head, D. It must be even.
        base: the base of the frequencies: 10,000 in the paper. Models for longer contexts are trained with larger ones.
        layout: which features form a pair. ``"half"`` pairs i with i + D/2, as in transformers' Llama and GPT-NeoX.
            ``"interleaved"`` pairs 2i with 2i + 1, as in the paper, GPT-J and Meta's own Llama checkpoints. Weights
            trained with one layout do not work with the other.

    Raises:
        ArgumentError: head_dim is odd or below 2, base is not positive, or the layout is unknown.

    Examples:
        >>> import torch
        >>> from heedful.nn import RotaryEmbedding
        >>> rotary = RotaryEmbedding(2)
        >>> rotary(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]), positions=torch.tensor([0, 1]))
        tensor([[[[1.0000, 0.0000],
                  [0.5403, 0.8415]]]])
    """

    def __init__(self, head_dim: int, *, base: float = 10_000.0, layout: Layout = "half") -> None:
        super().__init__()
        _check_settings(head_dim, base, layout)
        self.head_dim: int = head_dim
        self.base: float = base
        self.layout: Layout = layout
        self._last: tuple[Tensor, torch.dtype, RotationFactors] | None = None

    def forward(
        self, x: Float[Tensor, "B H T D"], positions: Int[Tensor, "*#B T"]
    ) -> Float[Tensor, "B H T D"]:
        """Rotate queries or keys according to their positions.

        Args:
            x: (B, H, T, D), floating point.
            positions: (T,), or (B, T) if batch entries differ, int64.

        Returns:
            (B, H, T, D) in the dtype of x. Angles are computed in float64, products in float32 or better.

        Raises:
            ArgumentError: x has another head size, or positions have another shape or dtype.
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

    def rotation(self, positions: Int[Tensor, "*B T"], dtype: torch.dtype) -> RotationFactors:
        """Return the cosines and signed sines of the angles.

        On CPUs, the most recent result is reused if the positions are the same, because computing it takes much longer
        than comparing positions.

        Args:
            positions: (T,) or (B, T), int64.
            dtype: the dtype of the result.

        Returns:
            The rotation, with tensors (T, D) or (B, 1, T, D).
        """
        if not (positions.is_cpu and eager(positions)):
            return self._compute_rotation(positions, dtype)
        last = self._last
        if last is None or last[1] != dtype or not torch.equal(last[0], positions):
            with torch.inference_mode(False):  # because a backward pass may use the result later
                last = positions.clone(), dtype, self._compute_rotation(positions, dtype)
            self._last = last
        return last[2]

    def _compute_rotation(self, positions: Tensor, dtype: torch.dtype) -> RotationFactors:
        frequencies = self._signed_frequencies(positions.device)
        if positions.dim() == 2:
            positions = positions.unsqueeze(1)  # all heads have the same angles
        angles = positions.unsqueeze(-1) * frequencies
        cos = angles.cos().to(dtype)
        sin = angles.sin().to(dtype)
        return RotationFactors(cos, sin)

    def _signed_frequencies(self, device: torch.device) -> Tensor:
        """Return each feature's angle per position, (D,), negative for the first of a pair: x·cos − partner·sin."""
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
                remedy="Split queries and keys into heads first. Values are not rotated.",
            )
        B, _, T, _ = x.shape
        if positions.dtype != torch.int64 or tuple(positions.shape) not in ((T,), (B, T), (1, T)):
            raise ArgumentError(
                "positions",
                expected=f"int64 ({T},), or ({B}, {T}) if batch entries differ",
                received=f"{positions.dtype} {tuple(positions.shape)}",
                remedy="Pass one position for each new token, without those in the cache.",
            )

    def extra_repr(self) -> str:
        """Return the settings for `print(module)`."""
        return f"{self.head_dim}, base={self.base}, layout={self.layout!r}"


def _check_settings(head_dim: int, base: float, layout: str) -> None:
    check_sizes(head_dim=head_dim)
    if head_dim % 2:
        raise ArgumentError(
            "head_dim",
            expected="an even number, because features are rotated in pairs",
            received=repr(head_dim),
            remedy="Choose another number of heads, or another head_dim.",
        )
    if not base > 0:
        raise ArgumentError(
            "base",
            expected="a positive number",
            received=repr(base),
            remedy="The paper uses 10,000.0. In a config of transformers, it is `rope_theta`.",
        )
    if layout not in ("half", "interleaved"):
        raise ArgumentError(
            "layout",
            expected='"half" or "interleaved"',
            received=repr(layout),
            remedy='Use "half" for checkpoints of transformers, "interleaved" for Meta\'s own.',
        )
