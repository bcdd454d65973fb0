"""The attention of a video transformer along trajectories: over the pixels of each frame, then over frames."""

import torch
from torch import nn


def qkv_attn(q, k, v):
    sim = torch.einsum("b i d, b j d -> b i j", q, k)
    attn = sim.softmax(dim=-1)
    return torch.einsum("b i j, b j d -> b i d", attn, v)


class TrajectoryAttention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=False):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj_q = nn.Linear(dim, dim, bias=qkv_bias)
        self.proj_kv = nn.Linear(dim, dim * 2, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, seq_len=196, num_frames=8):
        """x: the class token and the patches, frame by frame, of shape (B, 1 + num_frames * seq_len, dim)."""
        B, N, C = x.shape
        P, F, h = seq_len, num_frames, self.num_heads

        q, k, v = (
            t.unflatten(-1, (h, -1)).transpose(1, 2).flatten(0, 1)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        cls_q, q_ = q[:, 0:1], q[:, 1:]
        k_, v_ = k[:, 1:], v[:, 1:]
        cls_out = qkv_attn(cls_q * self.scale, k, v)
        cls_out = cls_out.unflatten(0, (B, h)).transpose(1, 2).flatten(2)

        # each patch attends to the patches of every frame, one frame at a time
        q_dot_k = (q_ @ k_.transpose(-2, -1)).unflatten(-1, (F, P))
        space_attn = (self.scale * q_dot_k).softmax(dim=-1)
        v_ = v_.unflatten(1, (F, P))
        x = torch.einsum("b q f n, b f n d -> b q f d", space_attn, v_)

        # Temporal attention: the query is the similarity-aggregated patch of its own frame
        x = x.unflatten(0, (B, h)).permute(0, 2, 3, 1, 4).flatten(3)
        own_frame = torch.arange(F * P, device=x.device) // P
        x_diag = x[:, torch.arange(F * P, device=x.device), own_frame]
        q2 = self.proj_q(x_diag).unflatten(-1, (h, -1)) * self.scale
        # before
        k2, _ = self.proj_kv(x).chunk(2, dim=-1)
        k2, v2 = k2.unflatten(-1, (h, -1)), x.unflatten(-1, (h, -1))
        # after
        k2, v2 = self.proj_kv(x).chunk(2, dim=-1)
        k2, v2 = k2.unflatten(-1, (h, -1)), v2.unflatten(-1, (h, -1))
        # end
        attn = torch.einsum("b s h d, b s f h d -> b s h f", q2, k2).softmax(dim=-1)
        x = torch.einsum("b s h f, b s f h d -> b s h d", attn, v2).flatten(2)

        return self.proj(torch.cat((cls_out, x), dim=1))
