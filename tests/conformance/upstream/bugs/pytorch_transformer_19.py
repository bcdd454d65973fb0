"""Translation with a Transformer that is written from scratch. The masks are made as translate.py makes them."""

import math

import torch
import torch.nn as nn


class LayerNormalization(nn.Module):
    def __init__(self, features: int, eps: float = 10**-6) -> None:
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        # x: (batch, seq_len, hidden_size)
        mean = x.mean(dim=-1, keepdim=True)
        std = x.std(dim=-1, keepdim=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.bias


class InputEmbeddings(nn.Module):
    def __init__(self, d_model: int, vocab_size: int, seq_len: int, dropout: float) -> None:
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(0, seq_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.zeros(seq_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        # (batch, seq_len) --> (batch, seq_len, d_model)
        x = self.embedding(x) * math.sqrt(self.d_model)
        return self.dropout(x + self.pe[:, : x.shape[1], :])


class FeedForwardBlock(nn.Module):
    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.linear_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_2(self.dropout(torch.relu(self.linear_1(x))))


class ResidualConnection(nn.Module):
    def __init__(self, features: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = LayerNormalization(features)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class MultiHeadAttentionBlock(nn.Module):
    def __init__(self, d_model: int, h: int, dropout: float) -> None:
        super().__init__()
        assert d_model % h == 0, "d_model is not divisible by h"
        self.h = h
        self.d_k = d_model // h
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def attention(query, key, value, mask, dropout: nn.Dropout):
        d_k = query.shape[-1]
        # (batch, h, seq_len, d_k) --> (batch, h, seq_len, seq_len)
        attention_scores = (query @ key.transpose(-2, -1)) / math.sqrt(d_k)
        if mask is not None:
            # Write a very low value (indicating -inf) to the positions where mask == 0
            attention_scores.masked_fill_(mask == 0, -1e9)
        attention_scores = attention_scores.softmax(dim=-1)
        if dropout is not None:
            attention_scores = dropout(attention_scores)
        return (attention_scores @ value), attention_scores

    def forward(self, q, k, v, mask):
        query, key, value = self.w_q(q), self.w_k(k), self.w_v(v)
        # (batch, seq_len, d_model) --> (batch, h, seq_len, d_k)
        query = query.view(query.shape[0], query.shape[1], self.h, self.d_k).transpose(1, 2)
        key = key.view(key.shape[0], key.shape[1], self.h, self.d_k).transpose(1, 2)
        value = value.view(value.shape[0], value.shape[1], self.h, self.d_k).transpose(1, 2)
        x, self.attention_scores = MultiHeadAttentionBlock.attention(
            query, key, value, mask, self.dropout
        )
        x = x.transpose(1, 2).contiguous().view(x.shape[0], -1, self.h * self.d_k)
        return self.w_o(x)


class EncoderBlock(nn.Module):
    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h, dropout)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff, dropout)
        self.residual_connections = nn.ModuleList(
            [ResidualConnection(d_model, dropout) for _ in range(2)]
        )

    def forward(self, x, src_mask):
        attend = lambda x: self.self_attention_block(x, x, x, src_mask)  # noqa: E731
        x = self.residual_connections[0](x, attend)
        return self.residual_connections[1](x, self.feed_forward_block)


class DecoderBlock(nn.Module):
    def __init__(self, d_model: int, h: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.self_attention_block = MultiHeadAttentionBlock(d_model, h, dropout)
        self.cross_attention_block = MultiHeadAttentionBlock(d_model, h, dropout)
        self.feed_forward_block = FeedForwardBlock(d_model, d_ff, dropout)
        self.residual_connections = nn.ModuleList(
            [ResidualConnection(d_model, dropout) for _ in range(3)]
        )

    def forward(self, x, encoder_output, src_mask, tgt_mask):
        x = self.residual_connections[0](x, lambda x: self.self_attention_block(x, x, x, tgt_mask))
        x = self.residual_connections[1](
            x, lambda x: self.cross_attention_block(x, encoder_output, encoder_output, src_mask)
        )
        return self.residual_connections[2](x, self.feed_forward_block)


class Transformer(nn.Module):
    def __init__(
        self,
        src_vocab_size: int,
        tgt_vocab_size: int,
        seq_len: int = 64,
        d_model: int = 512,
        N: int = 2,
        h: int = 8,
        dropout: float = 0.1,
        d_ff: int = 128,
        pad_idx: int = 0,
    ) -> None:
        super().__init__()
        self.pad_idx = pad_idx
        self.src_embed = InputEmbeddings(d_model, src_vocab_size, seq_len, dropout)
        self.tgt_embed = InputEmbeddings(d_model, tgt_vocab_size, seq_len, dropout)
        self.encoder = nn.ModuleList([EncoderBlock(d_model, h, d_ff, dropout) for _ in range(N)])
        self.encoder_norm = LayerNormalization(d_model)
        self.decoder = nn.ModuleList([DecoderBlock(d_model, h, d_ff, dropout) for _ in range(N)])
        self.decoder_norm = LayerNormalization(d_model)
        self.projection_layer = nn.Linear(d_model, tgt_vocab_size)

    def encode(self, src, src_mask):
        src = self.src_embed(src)
        for layer in self.encoder:
            src = layer(src, src_mask)
        return self.encoder_norm(src)

    def decode(self, encoder_output, src_mask, tgt, tgt_mask):
        tgt = self.tgt_embed(tgt)
        for layer in self.decoder:
            tgt = layer(tgt, encoder_output, src_mask, tgt_mask)
        return self.decoder_norm(tgt)

    def forward(self, source, decoder_input):
        """
        source: (batch, src_len) token ids of the sentences, padded with pad_idx
        decoder_input: (batch, tgt_len) token ids of the translations so far
        Returns the scores of the next tokens, (batch, tgt_len, tgt_vocab_size)
        """
        source_mask = (source != self.pad_idx).unsqueeze(1).unsqueeze(1).int()
        encoder_output = self.encode(source, source_mask)

        # build mask for target and calculate output
        size = decoder_input.size(1)
        decoder_mask = torch.triu(torch.ones((1, size, size)), diagonal=1)
        # before
        decoder_mask = decoder_mask.type_as(source_mask).to(source.device)
        # after
        decoder_mask = (decoder_mask == 0).type_as(source_mask).to(source.device)
        # end
        decoder_mask = (decoder_input != self.pad_idx).unsqueeze(1).unsqueeze(
            1
        ).int() & decoder_mask
        out = self.decode(encoder_output, source_mask, decoder_input, decoder_mask)
        return self.projection_layer(out)
