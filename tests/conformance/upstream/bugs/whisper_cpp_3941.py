"""The attention of Whisper over audio, with keys and values in buffers that are padded for the kernels."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KV_PAD = 256


def ggml_pad(n: int) -> int:
    """The next multiple of 256: the kernel of flash attention takes keys and values in blocks of that size."""
    return (n + KV_PAD - 1) // KV_PAD * KV_PAD


class MultiHeadAttention(nn.Module):
    """
    Self-attention of the encoder, or cross-attention of the decoder when `xa` is given.

    The buffers of keys and values are kept from call to call, and a call writes only the rows of its own audio.
    """

    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)
        self.register_buffer("kv_k", torch.zeros(1, KV_PAD, n_state), persistent=False)
        self.register_buffer("kv_v", torch.zeros(1, KV_PAD, n_state), persistent=False)

    @staticmethod
    def _write(buffer: Tensor, rows: Tensor) -> Tensor:
        """Put the rows at the start of the buffer. A new one is made if there is no room in it."""
        n_batch, n_ctx, n_state = rows.shape
        n_ctx_pad = ggml_pad(n_ctx)
        if buffer.shape[0] != n_batch or buffer.shape[1] < n_ctx_pad:
            buffer = rows.new_zeros(n_batch, n_ctx_pad, n_state)
        return torch.cat([rows, buffer[:, n_ctx:]], dim=1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def forward(self, x: Tensor, xa: Optional[Tensor] = None) -> Tensor:
        """
        x: (batch, tokens, n_state)
        xa: (batch, frames, n_state), the audio features for cross-attention
        """
        source = x if xa is None else xa
        n_ctx = source.shape[1]
        n_ctx_pad = ggml_pad(n_ctx)

        q = self.query(x)
        k = self._write(self.kv_k, self.key(source))
        v = self._write(self.kv_v, self.value(source))
        self.kv_k, self.kv_v = k.detach(), v.detach()

        # before
        kq_mask = None
        # after
        kq_mask = (torch.arange(n_ctx_pad, device=x.device) < n_ctx)[None, :]
        # end
        wv = F.scaled_dot_product_attention(
            self._heads(q),
            self._heads(k[:, :n_ctx_pad]),
            self._heads(v[:, :n_ctx_pad]),
            attn_mask=kq_mask,
        )
        return self.out(wv.transpose(1, 2).flatten(2))
