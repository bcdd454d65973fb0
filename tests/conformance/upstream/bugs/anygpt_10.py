"""The blocks of a GPT that is pre-trained and fine-tuned from settings."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class ModelConfig:
    """Settings of the model."""

    block_size: int = 64
    num_heads: int = 4
    embedding_size: int = 32
    dropout: float = 0.1
    bias: bool = False
    move_layer_norm: bool = True
    use_flash: bool = True


class CausalSelfAttention(nn.Module):
    def __init__(self, config: Optional[ModelConfig] = None):
        super().__init__()
        config = config or ModelConfig()
        assert config.embedding_size % config.num_heads == 0

        # one layer projects to the queries, keys and values of all heads
        self.c_attn = nn.Linear(config.embedding_size, 3 * config.embedding_size, bias=config.bias)
        self.c_proj = nn.Linear(config.embedding_size, config.embedding_size, bias=config.bias)

        # regularization
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.num_heads = config.num_heads
        self.embedding_size = config.embedding_size
        self.dropout = config.dropout

        self.flash = config.use_flash
        if not self.flash:
            mask = torch.tril(torch.ones(config.block_size, config.block_size))
            self.register_buffer("mask", mask)

    def forward(self, x):
        B, T, C = x.size()

        # before
        q, k, v = self.c_attn(x).split(self.embedding_size, dim=2)
        # after
        q, k, v = (
            part.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
            for part in self.c_attn(x).split(self.embedding_size, dim=2)
        )
        # end

        if self.flash:
            y = F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
            )
        else:
            att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
            att = self.attn_dropout(F.softmax(att, dim=-1))
            y = att @ v

        # put the heads side by side again
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Sequential):
    def __init__(self, config: ModelConfig):
        size = config.embedding_size
        super().__init__(
            nn.Linear(size, 4 * size, bias=config.bias),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * size, size, bias=config.bias),
            nn.Dropout(config.dropout),
        )


class TxBlock(nn.Module):
    """A block, with the layer norms before or after the attention and the MLP."""

    def __init__(self, config: Optional[ModelConfig] = None):
        super().__init__()
        config = config or ModelConfig()
        self.ln_1 = nn.LayerNorm(config.embedding_size, bias=config.bias)
        self.attention = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.embedding_size, bias=config.bias)
        self.mlp = MLP(config)
        self.move_layer_norm = config.move_layer_norm

    def forward(self, x):
        if self.move_layer_norm:
            x = x + self.attention(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))
        x = self.ln_1(x + self.attention(x))
        return self.ln_2(x + self.mlp(x))
