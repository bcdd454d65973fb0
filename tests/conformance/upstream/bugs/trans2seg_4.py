"""The attention of class embeddings to the feature map, for segmentation of transparent objects."""

import torch.nn as nn


class Attention_Encoder(nn.Module):
    def __init__(
        self, dim, num_heads=8, qkv_bias=False, qk_scale=None, attn_drop=0.0, proj_drop=0.0
    ):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = qk_scale or head_dim**-0.5

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [B, num_head, HW, C//num_head]

        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class Attention_Decoder(nn.Module):
    def __init__(
        self, dim, num_heads=1, qkv_bias=False, qk_scale=None, attn_drop=0.0, proj_drop=0.0
    ):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = qk_scale or head_dim**-0.5

        self.fc_q = nn.Linear(dim, dim, bias=qkv_bias)
        self.fc_kv = nn.Linear(dim, dim * 2, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, q, x):
        # q: [B, n_class, C], x: [B, HW, C]
        B, N, C = x.shape
        n_class = q.shape[1]
        head_dim = C // self.num_heads

        # before
        q = self.fc_q(q).reshape(B, self.num_heads, n_class, head_dim)
        # after
        q = self.fc_q(q).reshape(B, n_class, self.num_heads, head_dim).transpose(1, 2)
        # end
        kv = self.fc_kv(x).reshape(B, N, 2, self.num_heads, head_dim).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]  # [B, num_head, HW, C//num_head]

        attn1 = (q @ k.transpose(-2, -1)) * self.scale  # [B, num_head, n_class, HW]
        attn2 = attn1.softmax(dim=-1)
        attn3 = self.attn_drop(attn2)

        # before
        x = (attn3 @ v).reshape(B, n_class, C)
        # after
        x = (attn3 @ v).transpose(1, 2).reshape(B, n_class, C)
        # end
        x = self.proj(x)
        x = self.proj_drop(x)  # [B, n_class, C]

        # the maps of the classes go to the small convolutional head
        attn = attn1.permute(0, 2, 1, 3)
        return attn, x
