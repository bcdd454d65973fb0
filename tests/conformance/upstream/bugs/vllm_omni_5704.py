"""The attention of the diffusion transformer of a speech synthesizer that can stream chunk by chunk."""

import torch
import torch.nn.functional as F
from torch import nn


def subsequent_chunk_mask(size: int, chunk_size: int, device: torch.device) -> torch.Tensor:
    """Return which frames each frame sees: those of its own chunk and of earlier ones."""
    pos_idx = torch.arange(size, device=device)
    block_value = (torch.div(pos_idx, chunk_size, rounding_mode="trunc") + 1) * chunk_size
    return pos_idx.unsqueeze(0) < block_value.unsqueeze(1)


def apply_rotary(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    rotated = torch.stack((-x2, x1), dim=-1).flatten(-2)
    return x * freqs.cos().to(x.dtype) + rotated * freqs.sin().to(x.dtype)


class DiTAttention(nn.Module):
    """
    Args:
        dim: channels of the frames.
        heads: number of heads.
        dim_head: channels of a head.
        dropout: rate after the output projection.
        static_chunk_size: frames in a chunk when streaming.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        dim_head: int = 64,
        dropout: float = 0.0,
        static_chunk_size: int = 4,
    ):
        super().__init__()
        self.heads = heads
        self.dim_head = dim_head
        self.static_chunk_size = static_chunk_size
        self.inner_dim = dim_head * heads
        self.to_q = nn.Linear(dim, self.inner_dim)
        self.to_k = nn.Linear(dim, self.inner_dim)
        self.to_v = nn.Linear(dim, self.inner_dim)
        self.to_out = nn.Sequential(nn.Linear(self.inner_dim, dim), nn.Dropout(dropout))
        inv_freq = 1.0 / 10000 ** (torch.arange(0, dim_head, 2).float() / dim_head)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, streaming: bool = False
    ) -> torch.Tensor:
        """
        x: frames, of shape (batch, frames, dim). mask: True at frames, False at padding, of shape (batch, frames).
        streaming: whether a frame sees no later chunk.
        """
        batch_size, seq_len, _ = x.shape
        query, key, value = (
            proj(x).view(batch_size, seq_len, self.heads, self.dim_head).transpose(1, 2)
            for proj in (self.to_q, self.to_k, self.to_v)
        )
        freqs = torch.outer(torch.arange(seq_len, device=x.device).float(), self.inv_freq.float())
        freqs = freqs.repeat_interleave(2, dim=-1)
        query, key = apply_rotary(query, freqs), apply_rotary(key, freqs)

        attn_mask = None
        if mask is not None:
            attn_mask = mask[:, None, None, :].expand(batch_size, 1, seq_len, seq_len)
        if streaming:
            chunks = subsequent_chunk_mask(seq_len, self.static_chunk_size, x.device)
            attn_mask = chunks[None, None] if attn_mask is None else attn_mask & chunks

        # before
        x = F.scaled_dot_product_attention(query, key, value)
        # after
        x = F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)
        # end
        x = x.transpose(1, 2).reshape(batch_size, seq_len, self.inner_dim).to(query.dtype)
        x = self.to_out(x)
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        return x
