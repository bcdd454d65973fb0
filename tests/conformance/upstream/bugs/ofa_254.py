"""The self-attention of a decoder with learned biases of relative positions, which generates with a cache."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def make_token_bucket_position(max_position):
    """Return the index of the distance of every two positions."""
    context_pos = torch.arange(max_position, dtype=torch.long)[:, None]
    memory_pos = torch.arange(max_position, dtype=torch.long)[None, :]
    return context_pos - memory_pos + max_position - 1


class DecoderSelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, max_position=256):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (embed_dim // num_heads) ** -0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.token_rel_pos_table = nn.Embedding(2 * max_position - 1, num_heads)
        self.register_buffer("token_rp_bucket", make_token_bucket_position(max_position))

    def get_rel_pos_bias(self, seq_len):
        rp_bucket = self.token_rp_bucket[:seq_len, :seq_len]
        return F.embedding(rp_bucket, self.token_rel_pos_table.weight).permute(2, 0, 1)

    def _shape(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, -1).transpose(1, 2)

    def forward(
        self, hidden_states: Tensor, past_key_value: Optional[tuple[Tensor, Tensor]] = None
    ):
        bsz, tgt_len, embed_dim = hidden_states.size()
        query = self._shape(self.q_proj(hidden_states) * self.scaling)
        key = self._shape(self.k_proj(hidden_states))
        value = self._shape(self.v_proj(hidden_states))
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        src_len = key.size(2)

        attn_weights = torch.matmul(query, key.transpose(2, 3))
        # before
        self_attn_bias = self.get_rel_pos_bias(tgt_len)
        # after
        self_attn_bias = self.get_rel_pos_bias(src_len)[:, src_len - tgt_len :]
        # end
        attn_weights = attn_weights + self_attn_bias.unsqueeze(0)
        future = torch.ones(tgt_len, src_len, dtype=torch.bool, device=hidden_states.device)
        attn_weights = attn_weights.masked_fill(future.triu(src_len - tgt_len + 1), float("-inf"))

        attn_output = torch.matmul(F.softmax(attn_weights, dim=-1), value)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
        return self.out_proj(attn_output), (key, value)
