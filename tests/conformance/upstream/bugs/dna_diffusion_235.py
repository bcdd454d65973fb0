"""The network that denoises DNA sequences, given a time step and a cell type."""

import math
from typing import Optional

import torch
import torch.nn as nn
from torch import einsum


def exists(x):
    return x is not None


def default(val, d):
    return val if exists(val) else d


class LearnedSinusoidalPosEmb(nn.Module):
    """following @crowsonkb 's lead with learned sinusoidal pos emb"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        assert (dim % 2) == 0
        self.weights = nn.Parameter(torch.randn(dim // 2))

    def forward(self, x: torch.Tensor):
        x = x.to(self.weights.dtype)[:, None]
        freqs = x * self.weights[None] * 2 * math.pi
        return torch.cat((x, freqs.sin(), freqs.cos()), dim=-1)


class Block(nn.Module):
    def __init__(self, dim: int, dim_out: int, groups: int = 8) -> None:
        super().__init__()
        self.proj = nn.Conv2d(dim, dim_out, 3, padding=1)
        self.norm = nn.GroupNorm(groups, dim_out)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor, scale_shift: Optional[tuple] = None):
        x = self.norm(self.proj(x))
        if exists(scale_shift):
            scale, shift = scale_shift
            x = x * (scale + 1) + shift
        return self.act(x)


class ResnetBlock(nn.Module):
    def __init__(self, dim: int, dim_out: int, *, time_emb_dim: int, groups: int = 8) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_emb_dim, dim_out * 2))
        self.block1 = Block(dim, dim_out, groups=groups)
        self.block2 = Block(dim_out, dim_out, groups=groups)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x: torch.Tensor, time_emb: torch.Tensor):
        scale_shift = self.mlp(time_emb)[:, :, None, None].chunk(2, dim=1)
        h = self.block2(self.block1(x, scale_shift=scale_shift))
        return h + self.res_conv(x)


class EfficientAttention(nn.Module):
    def __init__(self, dim: int, heads: int = 1, dim_head: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, heads * dim_head * 2, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x: torch.Tensor, context: Optional[torch.Tensor] = None):
        context = default(context, x)
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q * self.scale, k)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class UNet(nn.Module):
    """x: (batch, 1, 4, seq_len), the four bases of noisy sequences; time: (batch,) in 0 .. 1;
    classes: (batch,), the cell types. Returns the noise, of the shape of x.
    """

    def __init__(
        self,
        dim: int,
        seq_len: int = 200,
        channels: int = 1,
        resnet_block_groups: int = 8,
        learned_sinusoidal_dim: int = 18,
        num_classes: int = 10,
        output_attention: bool = False,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.seq_len = seq_len
        self.output_attention = output_attention
        self.init_conv = nn.Conv2d(channels, dim, (7, 7), padding=3)

        # time embeddings: one value for each base of the sequence
        time_dim = 4 * seq_len
        self.time_mlp = nn.Sequential(
            LearnedSinusoidalPosEmb(learned_sinusoidal_dim),
            nn.Linear(learned_sinusoidal_dim + 1, time_dim),
            nn.GELU(),
            nn.Linear(time_dim, time_dim),
        )
        self.label_emb = nn.Embedding(num_classes, time_dim)

        self.mid_block = ResnetBlock(dim, dim, time_emb_dim=time_dim, groups=resnet_block_groups)
        self.final_res_block = ResnetBlock(
            dim * 2, dim, time_emb_dim=time_dim, groups=resnet_block_groups
        )
        self.final_conv = nn.Conv2d(dim, 1, 1)
        self.cross_attn = EfficientAttention(dim=seq_len, dim_head=64, heads=1)
        self.norm_to_cross = nn.LayerNorm(time_dim)

    def forward(self, x: torch.Tensor, time: torch.Tensor, classes: Optional[torch.Tensor] = None):
        x = self.init_conv(x)
        r = x.clone()

        t = self.time_mlp(time)
        if classes is not None:
            t = t + self.label_emb(classes)

        x = self.mid_block(x, t)
        x = torch.cat((x, r), dim=1)
        x = self.final_res_block(x, t)
        x = self.final_conv(x)

        x_reshaped = x.reshape(-1, 4 * self.seq_len)
        crossattention_out = self.cross_attn(
            self.norm_to_cross(x_reshaped).reshape(-1, 4, self.seq_len),
            context=t.reshape(-1, 4, self.seq_len),
        )
        # before
        crossattention_out = x.view(-1, 1, 4, self.seq_len)
        # after
        crossattention_out = crossattention_out.view(-1, 1, 4, self.seq_len)
        # end
        x = x + crossattention_out
        if self.output_attention:
            return x, crossattention_out
        return x
