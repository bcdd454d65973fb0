"""A decoder's attention with learned positions, which skips the padding on the left when it counts them."""

import torch
import torch.nn.functional as F
from torch import nn


class GPTAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_seq_len=256):
        super().__init__()
        self.n_heads = n_heads
        self.wpe = nn.Embedding(max_seq_len, d_model)
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, attention_mask=None, past_key_value=None):
        """
        x: the new tokens, of shape (batch, length, d_model)
        attention_mask: True at tokens and False at padding, of shape (batch, old and new tokens)
        past_key_value: the keys and values of the old tokens
        """
        B, S, D = x.shape
        past_position = past_key_value[0].size(2) if past_key_value is not None else 0
        pos = torch.arange(past_position, S + past_position, device=x.device).unsqueeze(0)
        if attention_mask is not None:
            # adjust the positions to account for padding on the left
            padding = (~attention_mask).to(torch.int32)
            # before
            pos = pos - torch.cumsum(padding[:, past_position:], dim=1)
            # after
            pos = pos - torch.cumsum(padding, dim=1)[:, past_position:]
            # end
            pos = torch.clamp(pos, min=0)
        x = x + self.wpe(pos)

        q, k, v = (
            t.view(B, S, self.n_heads, D // self.n_heads).transpose(1, 2)
            for t in self.Wqkv(x).chunk(3, dim=-1)
        )
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)

        s_k = k.size(2)
        keep = torch.ones(S, s_k, dtype=torch.bool, device=x.device).tril(s_k - S)
        if attention_mask is not None:
            own = torch.eye(s_k, dtype=torch.bool, device=x.device)[past_position:]
            keep = (keep & attention_mask[:, None, None, :]) | own
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.out_proj(out.transpose(1, 2).reshape(B, S, D)), (k, v)
