"""The vision transformer at the bottom of a U-Net for segmentation."""

import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    def __init__(self, embedding_dim, head_num):
        super().__init__()

        self.head_num = head_num
        # before
        self.dk = (embedding_dim // head_num) ** 1 / 2
        # after
        self.dk = (embedding_dim // head_num) ** (-1 / 2)
        # end

        self.qkv_layer = nn.Linear(embedding_dim, embedding_dim * 3, bias=False)
        self.out_attention = nn.Linear(embedding_dim, embedding_dim, bias=False)

    def forward(self, x, mask=None):
        b, t, _ = x.shape
        qkv = self.qkv_layer(x)

        # b t (d k h) -> k b h t d
        qkv = qkv.view(b, t, -1, 3, self.head_num).permute(3, 0, 4, 1, 2)
        query, key, value = qkv[0], qkv[1], qkv[2]

        energy = torch.einsum("... i d , ... j d -> ... i j", query, key) * self.dk

        if mask is not None:
            energy = energy.masked_fill(mask, float("-inf"))

        attention = torch.softmax(energy, dim=-1)

        x = torch.einsum("... i j , ... j d -> ... i d", attention, value)

        # b h t d -> b t (h d)
        x = x.transpose(1, 2).reshape(b, t, -1)
        return self.out_attention(x)


class MLP(nn.Module):
    def __init__(self, embedding_dim, mlp_dim):
        super().__init__()

        self.mlp_layers = nn.Sequential(
            nn.Linear(embedding_dim, mlp_dim),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(mlp_dim, embedding_dim),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        return self.mlp_layers(x)


class TransformerEncoderBlock(nn.Module):
    def __init__(self, embedding_dim, head_num, mlp_dim):
        super().__init__()

        self.multi_head_attention = MultiHeadAttention(embedding_dim, head_num)
        self.mlp = MLP(embedding_dim, mlp_dim)

        self.layer_norm1 = nn.LayerNorm(embedding_dim)
        self.layer_norm2 = nn.LayerNorm(embedding_dim)

        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        _x = self.multi_head_attention(x)
        _x = self.dropout(_x)
        x = self.layer_norm1(x + _x)

        _x = self.mlp(x)
        return self.layer_norm2(x + _x)
