"""The encoder of FastSpeech2: it turns the symbols of a text into features."""

import torch
import torch.nn.functional as F
from torch import nn


def get_key_padding_mask(padded_input, pad_idx):
    """Creates a binary mask to prevent attention to padded locations.

    Arguments
    ---------
    padded_input: torch.Tensor
        Padded input, of shape (batch, time).
    pad_idx: int
        Index of the padding symbol.

    Returns
    -------
    key_padded_mask: torch.Tensor
        True at the padding.
    """
    return padded_input.eq(pad_idx)


class PositionalEmbedding(nn.Module):
    """Computation of the positional embeddings.

    Arguments
    ---------
    embed_dim: int
        dimensionality of the embeddings.
    """

    def __init__(self, embed_dim):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, embed_dim, 2.0) / embed_dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, seq_len, mask, dtype):
        """Computes the forward pass. The embeddings are kept where the mask, of shape (batch, time, 1), is one."""
        pos_seq = torch.arange(seq_len, device=mask.device).float()
        sinusoid_inp = torch.matmul(pos_seq[:, None], self.inv_freq[None].float())
        pos_emb = torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=1).to(dtype)
        return pos_emb[None] * mask


class TransformerEncoderLayer(nn.Module):
    def __init__(self, d_ffn, nhead, d_model, dropout=0.0):
        super().__init__()
        self.nhead = nhead
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.pos_ffn = nn.Sequential(
            nn.Linear(d_model, d_ffn), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ffn, d_model)
        )
        self.norm1 = nn.LayerNorm(d_model, eps=1e-6)
        self.norm2 = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, src, src_key_padding_mask=None):
        query, key, value = (
            t.unflatten(-1, (self.nhead, -1)).transpose(1, 2)
            for t in self.in_proj(src).chunk(3, dim=-1)
        )
        keep = None if src_key_padding_mask is None else ~src_key_padding_mask[:, None, None, :]
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=keep)
        src = self.norm1(src + self.out_proj(output.transpose(1, 2).flatten(2)))
        return self.norm2(src + self.pos_ffn(src))


class FastSpeech2Encoder(nn.Module):
    """
    Arguments
    ---------
    enc_num_layers, enc_num_head, enc_d_model, enc_ffn_dim: int
        sizes of the transformer
    n_char: int
        number of symbols for the token embedding
    padding_idx: int
        the index for padding
    """

    def __init__(
        self,
        enc_num_layers=1,
        enc_num_head=4,
        enc_d_model=32,
        enc_ffn_dim=64,
        enc_dropout=0.1,
        n_char=40,
        padding_idx=0,
    ):
        super().__init__()
        self.padding_idx = padding_idx
        self.encPreNet = nn.Embedding(n_char, enc_d_model, padding_idx=padding_idx)
        self.sinusoidal_positional_embed_encoder = PositionalEmbedding(enc_d_model)
        self.encoder = nn.ModuleList(
            [
                TransformerEncoderLayer(enc_ffn_dim, enc_num_head, enc_d_model, enc_dropout)
                for _ in range(enc_num_layers)
            ]
        )

    def forward(self, tokens):
        """tokens: (batch, time), padded at the end"""
        srcmask = get_key_padding_mask(tokens, pad_idx=self.padding_idx)
        srcmask_inverted = (~srcmask).unsqueeze(-1)

        token_feats = self.encPreNet(tokens)
        pos = self.sinusoidal_positional_embed_encoder(
            token_feats.shape[1],
            # before
            srcmask.unsqueeze(-1),
            # after
            srcmask_inverted,
            # end
            token_feats.dtype,
        )
        token_feats = torch.add(token_feats, pos) * srcmask_inverted
        for layer in self.encoder:
            token_feats = layer(token_feats, src_key_padding_mask=srcmask)
        return token_feats * srcmask_inverted
