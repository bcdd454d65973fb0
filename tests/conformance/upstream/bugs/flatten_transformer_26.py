import torch
import torch.nn as nn
import torch.nn.functional as F


class FocusedLinearAttention(nn.Module):
    """Linear attention in place of the softmax attention of PVT.

    Args:
        dim (int): Number of input channels.
        num_patches (int): Number of tokens of the stage, H * W.
        num_heads (int): Number of attention heads.
        qkv_bias (bool): If True, add a learnable bias to query, key, value.
        sr_ratio (int): keys and values are taken from a map that is smaller by this factor in H and in W.
        focusing_factor (int): power that makes the directions of queries and keys sharper.
        kernel_size (int): of the depthwise convolution of the values.
    """

    def __init__(
        self,
        dim,
        num_patches,
        num_heads=8,
        qkv_bias=False,
        proj_drop=0.0,
        sr_ratio=1,
        focusing_factor=3,
        kernel_size=5,
    ):
        super().__init__()
        assert dim % num_heads == 0, f"dim {dim} should be divided by num_heads {num_heads}."

        self.dim = dim
        self.num_heads = num_heads
        head_dim = dim // num_heads

        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.kv = nn.Linear(dim, dim * 2, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

        self.sr_ratio = sr_ratio
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, kernel_size=sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim)

        self.focusing_factor = focusing_factor
        self.dwc = nn.Conv2d(
            head_dim, head_dim, kernel_size, groups=head_dim, padding=kernel_size // 2
        )
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.positional_encoding = nn.Parameter(
            torch.zeros(1, num_patches // (sr_ratio * sr_ratio), dim)
        )

    def focus(self, x):
        # keep the length of the vector, sharpen its direction
        x = (F.relu(x) + 1e-6) / F.softplus(self.scale)
        norm = x.norm(dim=-1, keepdim=True)
        x = x**self.focusing_factor
        return x / x.norm(dim=-1, keepdim=True) * norm

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)

    def forward(self, x, H, W):
        B, N, C = x.shape
        q = self.q(x)

        if self.sr_ratio > 1:
            x_ = x.permute(0, 2, 1).reshape(B, C, H, W)
            x_ = self.sr(x_).reshape(B, C, -1).permute(0, 2, 1)
            x_ = self.norm(x_)
        else:
            x_ = x
        k, v = self.kv(x_).reshape(B, -1, 2, C).permute(2, 0, 1, 3)
        n = k.shape[1]
        k = k + self.positional_encoding

        q = self.split(self.focus(q))
        k = self.split(self.focus(k))
        v = self.split(v)

        z = 1 / (q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) + 1e-6)
        # before
        kv = (k.transpose(-2, -1) * (N**-0.5)) @ (v * (N**-0.5))
        # after
        kv = (k.transpose(-2, -1) * (n**-0.5)) @ (v * (n**-0.5))
        # end
        x = q @ kv * z
        x = x.transpose(1, 2).reshape(B, N, C)

        # the values, back at the size of the map of the queries, for the depthwise convolution
        h, w = H // self.sr_ratio, W // self.sr_ratio
        v = v.transpose(-2, -1).reshape(B * self.num_heads, -1, h, w)
        if self.sr_ratio > 1:
            v = F.interpolate(v, size=(H, W), mode="bilinear")
        x = x + self.dwc(v).reshape(B, C, N).permute(0, 2, 1)

        x = self.proj(x)
        x = self.proj_drop(x)
        return x


class Stage(nn.Module):
    """A stage of the pyramid: patches of an image (B, in_chans, img_size, img_size), then attention among them.

    Returns the map of the patches, (B, embed_dim, img_size // patch_size, img_size // patch_size).
    """

    def __init__(
        self,
        img_size=224,
        patch_size=4,
        in_chans=3,
        embed_dim=64,
        num_heads=1,
        depth=1,
        sr_ratio=1,
        qkv_bias=True,
        drop_rate=0.0,
        focusing_factor=3,
        kernel_size=5,
    ):
        super().__init__()
        num_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)
        self.pos_embed = nn.Parameter(torch.zeros(1, num_patches, embed_dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.norms = nn.ModuleList([nn.LayerNorm(embed_dim) for _ in range(depth)])
        self.blocks = nn.ModuleList(
            [
                FocusedLinearAttention(
                    embed_dim,
                    num_patches,
                    num_heads,
                    qkv_bias,
                    drop_rate,
                    sr_ratio,
                    focusing_factor,
                    kernel_size,
                )
                for _ in range(depth)
            ]
        )

    def forward(self, x):
        x = self.proj(x)
        B, C, H, W = x.shape
        x = x.flatten(2).transpose(1, 2) + self.pos_embed
        for norm, attn in zip(self.norms, self.blocks):
            x = x + attn(norm(x), H, W)
        return x.transpose(1, 2).reshape(B, C, H, W)
