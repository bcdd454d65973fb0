"""The attention of a framework for inference, on top of flash attention."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Parameters:
    """What the kernel is told. A window of -1 is off."""

    softmax_scale: float
    is_causal: bool = True
    window_size_left: int = -1
    window_size_right: int = -1
    num_heads: int = 1


def mha_fwd(q: Tensor, k: Tensor, v: Tensor, params: Parameters) -> Tensor:
    """
    The forward pass of the kernel. q, k, v: (b, s, h, hd), with the last query at the last key.

    A query at i sees the keys from i - window_size_left to i + window_size_right.
    """
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
    rows = torch.arange(seqlen_q, device=q.device)[:, None] + seqlen_k - seqlen_q
    cols = torch.arange(seqlen_k, device=q.device)[None]
    right = 0 if params.is_causal else params.window_size_right
    mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
    if right >= 0:
        mask &= cols <= rows + right
    if params.window_size_left >= 0:
        mask &= cols >= rows - params.window_size_left
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * params.softmax_scale
    probs = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", probs, v)


class SelfAttn(nn.Module):
    """
    sliding_window: number of tokens that a token sees, with itself. None stands for all.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: Optional[int] = None,
        sliding_window: Optional[int] = None,
        q_norm: bool = False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if q_norm else nn.Identity()

    def _parameters_of_kernel(self) -> Parameters:
        window_size_left = -1
        if self.sliding_window is not None:
            # before
            window_size_left = self.sliding_window
            # after
            window_size_left = self.sliding_window - 1
            # end
        return Parameters(
            softmax_scale=self.head_dim**-0.5,
            window_size_left=window_size_left,
            num_heads=self.num_heads,
        )

    def forward(
        self, x: Tensor, kv_cache: Optional[tuple[Tensor, Tensor]] = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """
        x: (b, s, d). kv_cache: the keys and values of the tokens before x.

        Returns the output and the cache with the tokens of x.
        """
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.num_heads, self.head_dim)))
        k = self.k_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        if kv_cache is not None:
            k = torch.cat([kv_cache[0], k], dim=1)
            v = torch.cat([kv_cache[1], v], dim=1)
        attn = mha_fwd(q, k, v, self._parameters_of_kernel())
        return self.o_proj(attn.flatten(2)), (k, v)
