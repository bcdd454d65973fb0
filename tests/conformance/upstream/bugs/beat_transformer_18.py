"""The dilated attention of a beat tracker: each frame sees five frames, some heads more of the past or future."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class DilatedSelfAttention(nn.Module):
    """
    Eight heads: four of them are symmetric, and four are skewed by one or two steps.

    dmodel: channels. attn_len: how many frames each head sees. layer: the frames are 2 ** layer apart.
    """

    def __init__(self, dmodel, num_heads=8, dropout=0, attn_len=5, layer=0):
        super().__init__()
        assert num_heads == 8, "the heads are skewed by fixed steps"
        self.attn_len = attn_len
        self.layer = layer
        self.num_heads = num_heads
        self.head_dim = dmodel // num_heads
        self.key = nn.Linear(dmodel, dmodel)
        self.value = nn.Linear(dmodel, dmodel)
        self.query = nn.Linear(dmodel, dmodel)
        self.dropout = nn.Dropout(dropout)
        self.Er = nn.Parameter(torch.randn(num_heads, self.head_dim, attn_len) / 4)

    def kv_roll(self, tensor, shift=0):
        # tensor: (batch, num_head, time, head_dim) --> (batch, num_head, time, attn_len, head_dim)
        time = tensor.shape[2]
        step = 2**self.layer
        reach = step * (self.attn_len // 2 + abs(shift))
        tensor = F.pad(tensor, (0, 0, reach, reach))
        first = reach + step * (shift - self.attn_len // 2)
        frames = [
            tensor[:, :, first + i * step : first + i * step + time] for i in range(self.attn_len)
        ]
        return torch.stack(frames, dim=-2)

    def frame_mask(self, time, shift, device):
        # whether the frames of kv_roll exist, of shape (time, attn_len)
        steps = torch.arange(self.attn_len, device=device) - self.attn_len // 2 + shift
        frames = torch.arange(time, device=device)[:, None] + steps * 2**self.layer
        return (frames >= 0) & (frames < time)

    def forward(self, x):
        # x: (batch, time, dmodel)
        batch, time, d_model = x.shape
        q, k, v = (
            proj(x).reshape(batch, time, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.query, self.key, self.value)
        )

        k = torch.cat(
            (
                self.kv_roll(k[:, 0:4], shift=0),
                self.kv_roll(k[:, 4:5], shift=-2),
                self.kv_roll(k[:, 5:6], shift=-1),
                self.kv_roll(k[:, 6:7], shift=1),
                # before
                self.kv_roll(k[:, 6:7], shift=2),
                # after
                self.kv_roll(k[:, 7:8], shift=2),
                # end
            ),
            dim=1,
        )  # we define 4 symmetrical heads and 4 skewed heads
        v = torch.cat(
            (
                self.kv_roll(v[:, 0:4], shift=0),
                self.kv_roll(v[:, 4:5], shift=-2),
                self.kv_roll(v[:, 5:6], shift=-1),
                self.kv_roll(v[:, 6:7], shift=1),
                self.kv_roll(v[:, 7:8], shift=2),
            ),
            dim=1,
        )
        masks = [self.frame_mask(time, s, x.device) for s in (0, 0, 0, 0, -2, -1, 1, 2)]
        mask = torch.stack(masks)  # (num_head, time, attn_len)

        qk = torch.einsum("bhtd,bhtld->bhtl", q, k)
        qe = torch.einsum("bhtd,hdl->bhtl", q, self.Er)
        attn = (qk + qe) / math.sqrt(self.head_dim)
        attn = attn.masked_fill(~mask, torch.finfo(attn.dtype).min)
        attn = F.softmax(attn, dim=-1)

        out = torch.einsum("bhtl,bhtld->bhtd", attn, v)
        out = out.transpose(1, 2).reshape(batch, time, d_model)
        return self.dropout(out)
