"""The encoder of a variational autoencoder of molecules, which are written as tokens of SELFIES."""

import math

import torch
import torch.nn as nn


class PositionalEncoding(nn.Module):
    def __init__(self, embed_dim, max_len=128):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, embed_dim, 2) * (-math.log(10000.0) / embed_dim))
        pe = torch.zeros(1, max_len, embed_dim)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)].to(x.dtype)


class TransformerVAE(nn.Module):
    def __init__(
        self, vocab_size, embed_dim=32, num_heads=4, hidden_dim=48, num_layers=1, latent_dim=8
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.positional_encoding = PositionalEncoding(embed_dim)
        # before
        encoder_layer = nn.TransformerEncoderLayer(embed_dim, num_heads, hidden_dim, dropout=0.1)
        # after
        encoder_layer = nn.TransformerEncoderLayer(
            embed_dim, num_heads, hidden_dim, dropout=0.1, batch_first=True
        )
        # end
        self.encoder = nn.TransformerEncoder(
            encoder_layer, num_layers=num_layers, enable_nested_tensor=False
        )
        self.fc_mu = nn.Linear(embed_dim, latent_dim)
        self.fc_logvar = nn.Linear(embed_dim, latent_dim)
        self.latent_to_embed = nn.Linear(latent_dim, embed_dim)
        self.fc_out = nn.Linear(embed_dim, vocab_size)

    def encode(self, x):
        embedded = self.positional_encoding(self.embedding(x))
        encoded = self.encoder(embedded)
        pooled = encoded.mean(dim=1)
        return self.fc_mu(pooled), self.fc_logvar(pooled)

    def reparameterize(self, mu, logvar):
        if not self.training:
            return mu
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        """x: the ids of the tokens of each molecule, of shape (batch, tokens)"""
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        # the decoder is told the latent vector at each position
        hidden = self.latent_to_embed(z).unsqueeze(1).expand(-1, x.size(1), -1)
        hidden = self.positional_encoding(hidden)
        return self.fc_out(hidden), mu, logvar
