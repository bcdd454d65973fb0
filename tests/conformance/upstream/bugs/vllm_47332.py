"""The attention of a model of text and images: the tokens of an image see each other, text is causal."""

from collections.abc import Callable
from typing import Optional

import torch
from torch import nn

Ranges = list[list[tuple[int, int]]]


def make_mm_prefix_mask_mod(
    mm_prefix_range: Ranges, context_len: int, sliding_window: Optional[int]
) -> Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]:
    """
    Return the mask of a request: which keys a query sees.

    Args:
        mm_prefix_range: the first and last position of each image, for each request.
        context_len: number of tokens in the cache, before those of this chunk.
        sliding_window: number of tokens that a token of text sees, itself included.
    """

    def mask_mod(request: int, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        # before
        keep = kv_idx <= q_idx
        # after
        q_idx = q_idx + context_len
        keep = kv_idx <= q_idx
        if sliding_window is not None:
            keep = keep & (q_idx - kv_idx < sliding_window)
        # end
        for start, end in mm_prefix_range[request]:
            in_range = (q_idx >= start) & (q_idx <= end) & (kv_idx >= start) & (kv_idx <= end)
            keep = keep | in_range
        return keep

    return mask_mod


def flash_attn_func(q, k, v, softmax_scale, sliding_window=None, mask_mod=None):
    """
    Attention on tensors of shape (batch, len, heads, head_dim). The last query stands at the last key.

    A mask_mod replaces the masks that the kernel has built in.
    """
    q_len, kv_len = q.shape[1], k.shape[1]
    groups = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(groups, dim=2) for t in (k, v))
    q_idx = torch.arange(q_len, device=q.device)[:, None]
    kv_idx = torch.arange(kv_len, device=q.device)[None]
    if mask_mod is not None:
        keep = torch.stack([mask_mod(b, q_idx, kv_idx) for b in range(len(q))])[:, None]
    else:
        distance = q_idx + kv_len - q_len - kv_idx
        keep = distance >= 0
        if sliding_window is not None:
            keep = keep & (distance < sliding_window)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    weights = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


class Gemma4Attention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: Optional[int] = None,
        sliding_window: Optional[int] = None,
        attention_bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim or hidden_size // num_heads
        self.q_size = num_heads * self.head_dim
        self.kv_size = num_kv_heads * self.head_dim
        self.scaling = self.head_dim**-0.5
        self.sliding_window = sliding_window
        self.qkv_proj = nn.Linear(hidden_size, self.q_size + 2 * self.kv_size, bias=attention_bias)
        self.o_proj = nn.Linear(self.q_size, hidden_size, bias=attention_bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mm_prefix_range: Optional[Ranges] = None,
        kv_cache: Optional[dict[str, torch.Tensor]] = None,
    ) -> torch.Tensor:
        """
        hidden_states: (batch, chunk, hidden_size)
        mm_prefix_range: absolute positions of the images, for each request
        kv_cache: keys and values of earlier chunks, which is updated
        """
        batch, chunk, _ = hidden_states.shape
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = q.view(batch, chunk, self.num_heads, self.head_dim)
        k = k.view(batch, chunk, self.num_kv_heads, self.head_dim)
        v = v.view(batch, chunk, self.num_kv_heads, self.head_dim)
        if kv_cache is not None:
            if "key" in kv_cache:
                k = torch.cat([kv_cache["key"], k], dim=1)
                v = torch.cat([kv_cache["value"], v], dim=1)
            kv_cache["key"], kv_cache["value"] = k, v

        mask_mod = None
        if mm_prefix_range is not None:
            context_len = k.shape[1] - chunk
            mask_mod = make_mm_prefix_mask_mod(mm_prefix_range, context_len, self.sliding_window)
        out = flash_attn_func(q, k, v, self.scaling, self.sliding_window, mask_mod)
        return self.o_proj(out.reshape(batch, chunk, -1))
