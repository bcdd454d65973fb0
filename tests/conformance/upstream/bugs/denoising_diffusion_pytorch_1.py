"""The U-Net of a diffusion model, with linear attention behind each pair of residual blocks."""

import math

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


class Rezero(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.g = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        # before
        return x * self.g
        # after
        return self.fn(x) * self.g
        # end


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        half_dim = self.dim // 2
        emb = torch.exp(
            torch.arange(half_dim, device=x.device) * -(math.log(10000) / (half_dim - 1))
        )
        emb = x[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


def conv_block(dim, dim_out, groups=8):
    return nn.Sequential(
        nn.Conv2d(dim, dim_out, 3, padding=1), nn.GroupNorm(groups, dim_out), nn.Mish()
    )


class ResnetBlock(nn.Module):
    def __init__(self, dim, dim_out, *, time_emb_dim, groups=8):
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time_emb_dim, dim_out))
        self.block1 = conv_block(dim, dim_out, groups)
        self.block2 = conv_block(dim_out, dim_out, groups)
        self.res_conv = nn.Conv2d(dim, dim_out, 1) if dim != dim_out else nn.Identity()

    def forward(self, x, time_emb):
        h = self.block1(x) + self.mlp(time_emb)[:, :, None, None]
        return self.block2(h) + self.res_conv(x)


class LinearAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=32):
        super().__init__()
        self.heads = heads
        hidden_dim = dim_head * heads
        self.to_qkv = nn.Conv2d(dim, hidden_dim * 3, 1, bias=False)
        self.to_out = nn.Conv2d(hidden_dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        # each is of shape (b, heads, dim_head, pixels)
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in self.to_qkv(x).chunk(3, dim=1))
        q = q.softmax(dim=-2)
        k = k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return self.to_out(out.reshape(b, -1, h, w))


class Unet(nn.Module):
    def __init__(self, dim, out_dim=None, dim_mults=(1, 2, 4, 8), channels=3, groups=8):
        super().__init__()
        dims = [channels, *(dim * m for m in dim_mults)]
        in_out = list(zip(dims[:-1], dims[1:]))
        self.time_mlp = nn.Sequential(
            SinusoidalPosEmb(dim), nn.Linear(dim, dim * 4), nn.Mish(), nn.Linear(dim * 4, dim)
        )

        def resnet(d_in, d_out):
            return ResnetBlock(d_in, d_out, time_emb_dim=dim, groups=groups)

        def attention(d):
            return Residual(Rezero(LinearAttention(d)))

        self.downs = nn.ModuleList([])
        for ind, (d_in, d_out) in enumerate(in_out):
            is_last = ind == len(in_out) - 1
            down = nn.Identity() if is_last else nn.Conv2d(d_out, d_out, 3, 2, 1)
            self.downs.append(
                nn.ModuleList([resnet(d_in, d_out), resnet(d_out, d_out), attention(d_out), down])
            )

        mid_dim = dims[-1]
        self.mid_block1 = resnet(mid_dim, mid_dim)
        self.mid_attn = attention(mid_dim)
        self.mid_block2 = resnet(mid_dim, mid_dim)

        self.ups = nn.ModuleList([])
        for d_in, d_out in reversed(in_out[1:]):
            up = nn.ConvTranspose2d(d_in, d_in, 4, 2, 1)
            self.ups.append(
                nn.ModuleList([resnet(d_out * 2, d_in), resnet(d_in, d_in), attention(d_in), up])
            )
        self.final_conv = nn.Sequential(
            conv_block(dim, dim, groups), nn.Conv2d(dim, out_dim or channels, 1)
        )

    def forward(self, x, time):
        t = self.time_mlp(time)
        h = []
        for resnet, resnet2, attn, downsample in self.downs:
            x = attn(resnet2(resnet(x, t), t))
            h.append(x)
            x = downsample(x)

        x = self.mid_block1(x, t)
        x = self.mid_attn(x)
        x = self.mid_block2(x, t)

        for resnet, resnet2, attn, upsample in self.ups:
            x = torch.cat((x, h.pop()), dim=1)
            x = upsample(attn(resnet2(resnet(x, t), t)))
        return self.final_conv(x)
