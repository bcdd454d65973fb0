"""ESM2, a language model of proteins."""

from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ESM2Config:
    """The config.json of a checkpoint. The defaults are those of a tiny test model."""

    vocab_size: int = 33
    hidden_size: int = 32
    intermediate_size: int = 64
    num_attention_heads: int = 4
    num_hidden_layers: int = 2
    layer_norm_eps: float = 1e-5
    attention_probs_dropout_prob: float = 0.0
    emb_layer_norm_before: bool = False
    token_dropout: bool = True
    pad_token_id: int = 1
    mask_token_id: int = 32


class ESM2Embeddings(nn.Module):
    """Token embeddings. With token dropout, `<mask>` tokens are zeroed and the others are rescaled."""

    MASK_RATIO_TRAIN = 0.15 * 0.8

    def __init__(self, config: ESM2Config):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layer_norm = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            if config.emb_layer_norm_before
            else None
        )
        self.token_dropout = config.token_dropout
        self.mask_token_id = config.mask_token_id

    def forward(self, x, attention_mask):
        embeddings = self.word_embeddings(x)
        if self.token_dropout:
            masked = x == self.mask_token_id
            embeddings = embeddings.masked_fill(masked.unsqueeze(-1), 0.0)
            src_lengths = attention_mask.sum(-1).clamp(min=1)
            observed = (masked & attention_mask.bool()).sum(-1).to(embeddings.dtype) / src_lengths
            scale = (1 - self.MASK_RATIO_TRAIN) / (1 - observed).clamp(min=1e-6)
            embeddings = embeddings * scale[:, None, None]
        if self.layer_norm is not None:
            embeddings = self.layer_norm(embeddings)
        return embeddings * attention_mask.unsqueeze(-1).to(embeddings.dtype)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    def forward(self, q, k):
        half = torch.arange(0, self.dim, 2, device=q.device).float() / self.dim
        positions = torch.arange(q.shape[-2], device=q.device).float()
        freqs = torch.outer(positions, 10000.0**-half)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos().to(q.dtype), emb.sin().to(q.dtype)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class ESM2Attention(nn.Module):
    def __init__(self, config: ESM2Config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.rotary_embeddings = RotaryEmbedding(self.head_dim)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def _split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, attn_bias: Optional[torch.Tensor] = None):
        # As in the reference implementation, queries are scaled before they are rotated.
        q = self._split(self.query(x)) * self.head_dim**-0.5
        k, v = self._split(self.key(x)), self._split(self.value(x))
        q, k = self.rotary_embeddings(q, k)
        attention_scores = q @ k.transpose(-1, -2)
        if attn_bias is not None:
            attention_scores = attention_scores + attn_bias
        attention_probs = self.dropout(attention_scores.softmax(dim=-1))
        context = (attention_probs @ v).transpose(1, 2).flatten(2)
        return self.dense(context)


class ESM2Layer(nn.Module):
    def __init__(self, config: ESM2Config):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = ESM2Attention(config)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x, attn_bias: Optional[torch.Tensor] = None):
        x = x + self.attention(self.attention_norm(x), attn_bias)
        return x + self.output(F.gelu(self.intermediate(self.output_norm(x))))


class ESM2LMHead(nn.Module):
    def __init__(self, config: ESM2Config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x):
        return self.decoder(self.layer_norm(F.gelu(self.dense(x))))


class ESM2(nn.Module):
    def __init__(self, config: Optional[ESM2Config] = None):
        super().__init__()
        self.config = config = ESM2Config() if config is None else config
        self.embeddings = ESM2Embeddings(config)
        self.layers = nn.ModuleList([ESM2Layer(config) for _ in range(config.num_hidden_layers)])
        self.emb_layer_norm_after = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.lm_head = ESM2LMHead(config)

    @staticmethod
    def attention_bias(attention_mask, dtype):
        """0 for keys that are real, and the lowest number for the others: (batch, 1, 1, seq_len)."""
        hidden = ~attention_mask.bool()[:, None, None, :]
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(
            hidden, torch.finfo(dtype).min
        )

    def forward(self, input_ids, attention_mask: Optional[torch.Tensor] = None):
        """
        input_ids: (batch, seq_len), amino acids and special tokens
        attention_mask: (batch, seq_len), 1 for real tokens and 0 for padding; by default, `<pad>` is padding
        """
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        xs = self.embeddings(input_ids, attention_mask)
        # before
        for layer in self.layers:
            xs = layer(xs)
        # after
        attn_bias = self.attention_bias(attention_mask, xs.dtype)
        for layer in self.layers:
            xs = layer(xs, attn_bias)
        # end
        return self.lm_head(self.emb_layer_norm_after(xs))
