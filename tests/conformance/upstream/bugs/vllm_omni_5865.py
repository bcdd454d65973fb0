"""The attention of a video diffusion model to its prompt, with a kernel for sequences of different lengths."""

import torch
import torch.nn.functional as F
from torch import nn


def unpad_input(hidden_states, mask):
    """Drop the padding.

    Returns the tokens of all sequences one after the other, where they were in the flattened batch, and where
    each sequence starts.
    """
    indices = mask.flatten().nonzero().flatten()
    cu_seqlens = F.pad(mask.sum(dim=1).cumsum(dim=0), (1, 0))
    return hidden_states.flatten(0, 1)[indices], indices, cu_seqlens


def pad_input(hidden_states, indices, batch, seqlen):
    """Put the tokens back into a batch; the rest of it is zero."""
    output = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return output.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """Attention within each sequence. q, k, v: (total, heads, head_dim)."""
    outputs = []
    for i in range(len(cu_seqlens_q) - 1):
        rows = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        cols = slice(int(cu_seqlens_k[i]), int(cu_seqlens_k[i + 1]))
        scores = torch.einsum("qhd,khd->hqk", q[rows], k[cols]) * q.shape[-1] ** -0.5
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v[cols]))
    return torch.cat(outputs)


class FlashAttentionImpl:
    def forward(self, query, key, value, attn_mask=None):
        if attn_mask is None:
            mask = torch.ones(key.shape[:2], dtype=torch.bool, device=key.device)
            return self._forward_varlen_masked(query, key, value, mask)
        return self._forward_varlen_masked(query, key, value, attn_mask.bool())

    def _forward_varlen_masked(self, query, key, value, attn_mask):
        batch, query_len = query.shape[:2]
        k, _, cu_seqlens_k = unpad_input(key, attn_mask)
        v, _, _ = unpad_input(value, attn_mask)
        # before
        q, indices_q, cu_seqlens_q = unpad_input(query, attn_mask[:, -query_len:])
        out = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k)
        return pad_input(out, indices_q, batch, query_len)
        # after
        q = query.flatten(0, 1)
        cu_seqlens_q = torch.arange(batch + 1, device=query.device) * query_len
        out = flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k)
        return out.unflatten(0, (batch, query_len))
        # end


class CrossAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int, cross_attention_dim: int):
        super().__init__()
        self.num_heads = num_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(cross_attention_dim, dim)
        self.to_v = nn.Linear(cross_attention_dim, dim)
        self.to_out = nn.Linear(dim, dim)
        self.attn = FlashAttentionImpl()

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        hidden_states: (batch, patches, dim). encoder_hidden_states: (batch, words, cross_attention_dim).
        encoder_attention_mask: (batch, words), True for the words of the prompt and False for padding.
        """
        query = self.to_q(hidden_states).unflatten(-1, (self.num_heads, -1))
        key = self.to_k(encoder_hidden_states).unflatten(-1, (self.num_heads, -1))
        value = self.to_v(encoder_hidden_states).unflatten(-1, (self.num_heads, -1))
        hidden_states = self.attn.forward(query, key, value, encoder_attention_mask)
        return self.to_out(hidden_states.flatten(2))
