"""
The encoder of a transformer for translation. Sentences are ids of words, and 0 is padding.
"""

import math

import torch
from torch import nn


def positional_encoding(maxlen, num_units):
    """Sinusoidal positional encoding, (maxlen, num_units)."""
    pos = torch.arange(maxlen).float().unsqueeze(1)
    i = torch.arange(0, num_units, 2).float()
    angles = pos / torch.pow(10000.0, i / num_units)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class MultiHeadAttention(nn.Module):
    """
    Applies multihead attention, with a residual connection and normalization.

    num_units: an int, the attention size. It is divided among the heads.
    """

    def __init__(self, num_units, num_heads=8, dropout_rate=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = math.sqrt(num_units // num_heads)
        self.q_dense = nn.Linear(num_units, num_units)
        self.k_dense = nn.Linear(num_units, num_units)
        self.v_dense = nn.Linear(num_units, num_units)
        self.dropout = nn.Dropout(dropout_rate)
        self.normalize = nn.LayerNorm(num_units)

    def split(self, x):
        N, T, _ = x.shape
        return x.view(N, T, self.num_heads, -1).transpose(1, 2)

    def forward(self, queries, keys, key_masks):
        """
        queries: (N, T_q, C)
        keys: (N, T_k, C)
        key_masks: (N, T_k), 0 for keys that are padding
        """
        # Linear projections, split: (N, h, T, C/h)
        Q = self.split(self.q_dense(queries))
        K = self.split(self.k_dense(keys))
        V = self.split(self.v_dense(keys))

        # Multiplication and scale: (N, h, T_q, T_k)
        outputs = torch.matmul(Q, K.transpose(-2, -1)) / self.scale

        # Key masking
        paddings = torch.finfo(outputs.dtype).min
        outputs = outputs.masked_fill((key_masks == 0)[:, None, None, :], paddings)

        # Activation, dropouts, weighted sum
        outputs = self.dropout(torch.softmax(outputs, dim=-1))
        outputs = torch.matmul(outputs, V)

        # Restore shape, residual connection, normalize: (N, T_q, C)
        outputs = outputs.transpose(1, 2).flatten(2)
        return self.normalize(outputs + queries)


class FeedForward(nn.Module):
    """Point-wise feed forward net."""

    def __init__(self, num_units):
        super().__init__()
        self.inner = nn.Linear(num_units, 4 * num_units)
        self.outer = nn.Linear(4 * num_units, num_units)
        self.normalize = nn.LayerNorm(num_units)

    def forward(self, inputs):
        outputs = self.outer(torch.relu(self.inner(inputs)))
        return self.normalize(outputs + inputs)


class Encoder(nn.Module):
    """
    x: (N, T), a batch of ids
    returns the memory, (N, T, hidden_units)
    """

    def __init__(
        self, vocab_size, hidden_units=512, num_heads=8, num_blocks=6, maxlen=128, dropout_rate=0.1
    ):
        super().__init__()
        self.scale = math.sqrt(hidden_units)
        self.lookup = nn.Embedding(vocab_size, hidden_units, padding_idx=0)
        self.register_buffer(
            "positions", positional_encoding(maxlen, hidden_units), persistent=False
        )
        self.dropout = nn.Dropout(dropout_rate)
        self.attentions = nn.ModuleList(
            [MultiHeadAttention(hidden_units, num_heads, dropout_rate) for _ in range(num_blocks)]
        )
        self.feedforwards = nn.ModuleList([FeedForward(hidden_units) for _ in range(num_blocks)])

    def forward(self, x):
        # Embedding and positional encoding
        enc = self.lookup(x) * self.scale
        enc = enc + self.positions[: x.shape[1]]
        # before
        key_masks = torch.sign(torch.abs(enc.sum(dim=-1)))
        # after
        key_masks = torch.sign(x)
        # end
        enc = self.dropout(enc)

        # Blocks
        for attention, feedforward in zip(self.attentions, self.feedforwards):
            enc = attention(queries=enc, keys=enc, key_masks=key_masks)
            enc = feedforward(enc)
        return enc
