"""A vision transformer, step by step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchEmbedding(nn.Module):
    """Cut an image into patches and embed each."""

    def __init__(self, patch_size=4, in_channels=3, latent_size=32):
        super().__init__()
        self.projection = nn.Conv2d(
            in_channels, latent_size, kernel_size=patch_size, stride=patch_size
        )

    def forward(self, images):
        return self.projection(images).flatten(2).transpose(1, 2)


class SelfAttentionHead(nn.Module):
    """One head. It projects the patches to head_size channels."""

    def __init__(self, latent_size, head_size, dropout=0.0):
        super().__init__()
        self.head_size = head_size
        self.query = nn.Linear(latent_size, head_size, bias=False)
        self.key = nn.Linear(latent_size, head_size, bias=False)
        self.value = nn.Linear(latent_size, head_size, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)

        # (batch, patches, head_size) x (batch, head_size, patches)
        attention_scores = torch.matmul(query, key.transpose(-1, -2)) / self.head_size**0.5
        # before
        attention_weights = F.softmax(attention_scores, dim=1)
        # after
        attention_weights = F.softmax(attention_scores, dim=-1)
        # end
        return torch.matmul(self.dropout(attention_weights), value)


class MultiHeadAttention(nn.Module):
    def __init__(self, latent_size=32, num_heads=4, dropout=0.0):
        super().__init__()
        assert latent_size % num_heads == 0, "the heads share the channels evenly"
        head_size = latent_size // num_heads
        self.heads = nn.ModuleList(
            [SelfAttentionHead(latent_size, head_size, dropout) for _ in range(num_heads)]
        )
        self.linear = nn.Linear(latent_size, latent_size)

    def forward(self, x):
        return self.linear(torch.cat([head(x) for head in self.heads], dim=-1))


class EncoderBlock(nn.Module):
    def __init__(self, latent_size=32, num_heads=4, dropout=0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(latent_size)
        self.attention = MultiHeadAttention(latent_size, num_heads, dropout)
        self.norm2 = nn.LayerNorm(latent_size)
        self.mlp = nn.Sequential(
            nn.Linear(latent_size, latent_size * 4),
            nn.GELU(),
            nn.Linear(latent_size * 4, latent_size),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
