"""The attention of a decoder, which combines its causal mask with a mask that it is given."""

import torch
import torch.nn.functional as F
from torch import nn


class QWenAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, seq_length=64, no_bias=True):
        super().__init__()
        self.hidden_size = hidden_size
        self.split_size = hidden_size
        self.num_heads = num_attention_heads
        self.head_dim = self.hidden_size // self.num_heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size, bias=not no_bias)
        causal_mask = torch.tril(torch.ones(seq_length, seq_length, dtype=torch.bool))
        self.register_buffer(
            "causal_mask", causal_mask.view(1, 1, seq_length, seq_length), persistent=False
        )

    def _split_heads(self, tensor):
        return tensor.view(*tensor.size()[:-1], self.num_heads, self.head_dim)

    def forward(self, hidden_states, attention_mask=None):
        """
        attention_mask: of shape (batch, length), 1 at tokens to attend to and 0 at padding.
        """
        query, key, value = self.c_attn(hidden_states).split(self.split_size, dim=2)
        query = self._split_heads(query).permute(0, 2, 1, 3)
        key = self._split_heads(key).permute(0, 2, 1, 3)
        value = self._split_heads(value).permute(0, 2, 1, 3)
        length = key.size(-2)
        causal_mask = self.causal_mask[:, :, :length, :length]
        if attention_mask is not None:
            minimum = torch.finfo(query.dtype).min
            attention_mask = (1.0 - attention_mask.to(query.dtype))[:, None, None, :] * minimum
            attention_mask = attention_mask.expand(-1, -1, length, -1)
            # before
            attention_mask.masked_fill(~causal_mask, minimum)
            # after
            attention_mask = attention_mask.masked_fill(~causal_mask, minimum)
            # end
        else:
            attention_mask = causal_mask
        attn_output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        attn_output = attn_output.transpose(1, 2)
        context_layer = attn_output.contiguous().view(*hidden_states.shape[:-1], self.hidden_size)
        return self.c_proj(context_layer)
