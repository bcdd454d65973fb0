"""The encoder of BERT, as a textbook builds it from attention by valid lengths."""

import math

import torch
from torch import nn


def masked_softmax(X, valid_lens):
    """Perform softmax operation by masking elements on the last axis.

    X: (batch, heads, queries, keys). valid_lens: how many keys are real, of shape (batch,), or None.
    """
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    mask = torch.arange(X.shape[-1], device=X.device)[None, :] < valid_lens[:, None]
    X = X.masked_fill(~mask[:, None, None, :], torch.finfo(X.dtype).min)
    return nn.functional.softmax(X, dim=-1)


class MultiHeadAttention(nn.Module):
    """Multi-head attention."""

    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def transpose_qkv(self, X):
        return X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)

    def forward(self, queries, keys, values, valid_lens):
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1])
        output = self.dropout(masked_softmax(scores, valid_lens)) @ values
        return self.W_o(output.permute(0, 2, 1, 3).flatten(2))


class TransformerEncoderBlock(nn.Module):
    """Transformer encoder block."""

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout, use_bias=False):
        super().__init__()
        self.attention = MultiHeadAttention(num_hiddens, num_heads, dropout, use_bias)
        self.ln1 = nn.LayerNorm(num_hiddens)
        self.ffn = nn.Sequential(
            nn.Linear(num_hiddens, ffn_num_hiddens),
            nn.ReLU(),
            nn.Linear(ffn_num_hiddens, num_hiddens),
        )
        self.ln2 = nn.LayerNorm(num_hiddens)
        self.dropout = nn.Dropout(dropout)

    def forward(self, X, valid_lens):
        Y = self.ln1(X + self.dropout(self.attention(X, X, X, valid_lens)))
        return self.ln2(Y + self.dropout(self.ffn(Y)))


class BERTEncoder(nn.Module):
    """BERT encoder."""

    def __init__(
        self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_blks, dropout, max_len=64
    ):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, num_hiddens)
        self.segment_embedding = nn.Embedding(2, num_hiddens)
        self.blks = nn.Sequential()
        for i in range(num_blks):
            block = TransformerEncoderBlock(num_hiddens, ffn_num_hiddens, num_heads, dropout, True)
            self.blks.add_module(f"{i}", block)
        # In BERT, positional embeddings are learnable, thus we create a parameter of positional embeddings that
        # are long enough
        self.pos_embedding = nn.Parameter(torch.randn(1, max_len, num_hiddens))

    def forward(self, tokens, segments, valid_lens=None):
        # Shape of X remains unchanged in the following: (batch size, max sequence length, num_hiddens)
        X = self.token_embedding(tokens) + self.segment_embedding(segments)
        # before
        X = X + self.pos_embedding.data[:, : X.shape[1], :]
        # after
        X = X + self.pos_embedding[:, : X.shape[1], :]
        # end
        for blk in self.blks:
            X = blk(X, valid_lens)
        return X
