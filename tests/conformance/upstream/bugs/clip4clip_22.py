"""A residual block over the frames of a video, some of which are padding."""

from collections import OrderedDict

import torch
from torch import nn


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model: int, n_head: int):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            OrderedDict(
                [
                    ("c_fc", nn.Linear(d_model, d_model * 4)),
                    ("gelu", QuickGELU()),
                    ("c_proj", nn.Linear(d_model * 4, d_model)),
                ]
            )
        )
        self.ln_2 = nn.LayerNorm(d_model)
        self.n_head = n_head

    def attention(self, x: torch.Tensor, attn_mask: torch.Tensor):
        # before
        attn_mask_ = attn_mask.repeat(self.n_head, 1, 1)
        # after
        attn_mask_ = attn_mask.repeat_interleave(self.n_head, dim=0)
        # end
        return self.attn(x, x, x, need_weights=False, attn_mask=attn_mask_)[0]

    def forward(self, x: torch.Tensor, video_mask: torch.Tensor):
        """
        x: frames, of shape (batch, frames, d_model). video_mask: 1 at real frames, of shape (batch, frames).
        """
        hidden = (video_mask == 0)[:, None, :].expand(-1, x.size(1), -1)
        x = x.permute(1, 0, 2)  # NLD -> LND
        x = x + self.attention(self.ln_1(x), hidden)
        x = x + self.mlp(self.ln_2(x))
        return x.permute(1, 0, 2)  # LND -> NLD
