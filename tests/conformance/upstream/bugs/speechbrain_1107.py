"""Decoder of a Transformer for end-to-end speech recognition.

The beam search calls it with the tokens of the hypotheses so far.
"""

import math

import torch
from torch import nn


def length_to_mask(length, max_len):
    """Creates a binary mask for each sequence: True for frames within the length."""
    return torch.arange(max_len, device=length.device)[None, :] < length[:, None]


def get_lookahead_mask(padded_input):
    """Creates a mask that hides the later tokens (True: not seen)."""
    seq_len = padded_input.shape[1]
    ones = torch.ones((seq_len, seq_len), dtype=torch.bool, device=padded_input.device)
    return torch.triu(ones, diagonal=1)


class PositionalEncoding(nn.Module):
    """Adds absolute sinusoidal positions to the embeddings."""

    def __init__(self, input_size, max_len=2500):
        super().__init__()
        pe = torch.zeros(max_len, input_size)
        positions = torch.arange(0, max_len).unsqueeze(1).float()
        denominator = torch.exp(
            torch.arange(0, input_size, 2).float() * -(math.log(10000.0) / input_size)
        )
        pe[:, 0::2] = torch.sin(positions * denominator)
        pe[:, 1::2] = torch.cos(positions * denominator)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)].to(x.dtype)


class TransformerDecoderLayer(nn.Module):
    """One layer: masked self-attention, attention over the frames and a feed-forward network."""

    def __init__(self, d_ffn, nhead, d_model, dropout=0.0):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout, batch_first=True)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout, batch_first=True)
        self.pos_ffn = nn.Sequential(
            nn.Linear(d_model, d_ffn), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ffn, d_model)
        )
        self.norm1 = nn.LayerNorm(d_model, eps=1e-6)
        self.norm2 = nn.LayerNorm(d_model, eps=1e-6)
        self.norm3 = nn.LayerNorm(d_model, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tgt, memory, tgt_mask=None, memory_key_padding_mask=None):
        x = self.norm1(tgt)
        tgt2, self_attn = self.self_attn(x, x, x, attn_mask=tgt_mask)
        tgt = tgt + self.dropout(tgt2)
        x = self.norm2(tgt)
        tgt2, multihead_attention = self.multihead_attn(
            x, memory, memory, key_padding_mask=memory_key_padding_mask
        )
        tgt = tgt + self.dropout(tgt2)
        tgt = tgt + self.dropout(self.pos_ffn(self.norm3(tgt)))
        return tgt, self_attn, multihead_attention


class TransformerASRDecoder(nn.Module):
    """The decoding side of a Transformer for speech recognition.

    Arguments
    ---------
    tgt_vocab : int
        Size of the vocabulary.
    d_model, nhead, num_decoder_layers, d_ffn : int
        Sizes of the decoder.
    """

    def __init__(
        self, tgt_vocab, d_model=512, nhead=8, num_decoder_layers=6, d_ffn=2048, dropout=0.1
    ):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(tgt_vocab, d_model)
        self.positional_encoding_decoder = PositionalEncoding(d_model)
        self.layers = nn.ModuleList(
            [
                TransformerDecoderLayer(d_ffn, nhead, d_model, dropout)
                for _ in range(num_decoder_layers)
            ]
        )
        self.norm = nn.LayerNorm(d_model, eps=1e-6)
        self.seq_lin = nn.Linear(d_model, tgt_vocab)

    def forward(self, tgt, encoder_out, enc_len):
        """Scores the next token after each token of the hypotheses.

        Arguments
        ---------
        tgt : torch.Tensor
            The tokens so far, (batch, tokens).
        encoder_out : torch.Tensor
            The output of the encoder, (batch, frames, d_model).
        enc_len : torch.Tensor
            The number of frames of each utterance, (batch,).
        """
        tgt_mask = get_lookahead_mask(tgt)
        # before
        src_key_padding_mask = None
        # after
        src_key_padding_mask = ~length_to_mask(enc_len, encoder_out.shape[1])
        # end

        x = self.positional_encoding_decoder(self.embedding(tgt) * math.sqrt(self.d_model))
        for layer in self.layers:
            x, _, _ = layer(
                x,
                encoder_out,
                tgt_mask=tgt_mask,
                memory_key_padding_mask=src_key_padding_mask,
            )
        return self.seq_lin(self.norm(x))
