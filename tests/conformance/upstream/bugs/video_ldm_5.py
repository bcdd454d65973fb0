"""The temporal layers that turn a model of images into one of videos."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def by_location(frames, n_frames):
    """(b t) c h w -> b (h w) t c"""
    return frames.unflatten(0, (-1, n_frames)).flatten(3).permute(0, 3, 1, 2)


class PositionalEncoding(nn.Module):
    def __init__(self, dim, max_pos=512):
        super().__init__()
        pos = torch.arange(max_pos)
        freq = torch.exp(-torch.arange(0, dim, 2) / dim * torch.tensor(10000.0).log())
        x = pos[:, None] * freq
        pe = torch.stack((x.sin(), x.cos()), dim=-1)
        self.register_buffer("pe", pe.flatten(1), persistent=False)

    def forward(self, length):
        return self.pe[:length]


class TemporalAttentionLayer(nn.Module):
    """
    Attends among the frames of a video, at each location on its own.

    dim: channels of the feature maps
    n_frames: frames of a video
    kv_dim: channels of the keys and values, if they come from other feature maps
    """

    def __init__(self, dim, n_frames, n_heads=8, kv_dim=None):
        super().__init__()
        self.n_frames = n_frames
        self.n_heads = n_heads

        self.pos_enc = PositionalEncoding(dim)

        head_dim = dim // n_heads
        proj_dim = head_dim * n_heads
        self.q_proj = nn.Linear(dim, proj_dim, bias=False)

        kv_dim = kv_dim or dim
        self.k_proj = nn.Linear(kv_dim, proj_dim, bias=False)
        self.v_proj = nn.Linear(kv_dim, proj_dim, bias=False)
        self.o_proj = nn.Linear(proj_dim, dim, bias=False)

        self.alpha = nn.Parameter(torch.ones(1))

    def forward(self, q, kv=None, mask=None):
        """q: the frames of all videos, (b t) c h w. kv: feature maps of as many frames and locations."""
        skip = q

        h, w = q.shape[-2:]
        q = by_location(q, self.n_frames)
        q = q + self.pos_enc(self.n_frames)

        kv = q if kv is None else by_location(kv, self.n_frames)

        q, k, v = self.q_proj(q), self.k_proj(kv), self.v_proj(kv)
        q = q.unflatten(-1, (self.n_heads, -1)).transpose(2, 3)
        # before
        k = k.unflatten(-1, (self.n_heads, -1)).flatten(1, 2).transpose(1, 2).unsqueeze(1)
        v = v.unflatten(-1, (self.n_heads, -1)).flatten(1, 2).transpose(1, 2).unsqueeze(1)
        # after
        k = k.unflatten(-1, (self.n_heads, -1)).transpose(2, 3)
        v = v.unflatten(-1, (self.n_heads, -1)).transpose(2, 3)
        # end

        out = F.scaled_dot_product_attention(q, k, v, mask)
        out = out.transpose(2, 3).flatten(3)
        out = self.o_proj(out)
        out = out.permute(0, 2, 3, 1).unflatten(-1, (h, w)).flatten(0, 1)

        # 1 leaves the model of images as it is
        alpha = self.alpha.clamp(0, 1)
        return alpha * skip + (1 - alpha) * out
