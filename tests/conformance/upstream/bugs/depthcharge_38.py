"""Decodes a peptide from a mass spectrum, one amino acid after the other."""

import torch
from torch import nn


def generate_tgt_mask(sz):
    """Generate a square mask for the sequence.

    Parameters
    ----------
    sz : int
        The length of the target sequence.
    """
    return ~torch.triu(torch.ones(sz, sz, dtype=torch.bool)).transpose(0, 1)


class PositionalEncoder(nn.Module):
    """Adds sines and cosines of the position."""

    def __init__(self, dim_model, max_wavelength=10000):
        super().__init__()
        steps = torch.arange(0, dim_model, 2).float() / dim_model
        self.register_buffer("freqs", max_wavelength**-steps)

    def forward(self, X):
        angles = torch.arange(X.shape[1], device=X.device)[:, None] * self.freqs
        return X + torch.cat([angles.sin(), angles.cos()], dim=-1)


class PeptideDecoder(nn.Module):
    """A transformer decoder for peptide sequences.

    Parameters
    ----------
    dim_model : int
        The latent dimensionality.
    n_head : int
        The number of attention heads.
    dim_feedforward : int
        The width of the feed-forward layers.
    n_layers : int
        The number of layers.
    n_residues : int
        The number of amino acids; 0 stands for padding.
    max_charge : int
        The largest charge.
    """

    def __init__(
        self, dim_model=32, n_head=4, dim_feedforward=64, n_layers=1, n_residues=20, max_charge=5
    ):
        super().__init__()
        self.aa_encoder = nn.Embedding(n_residues + 1, dim_model, padding_idx=0)
        self.charge_encoder = nn.Embedding(max_charge, dim_model)
        self.mass_encoder = nn.Linear(1, dim_model)
        self.pos_encoder = PositionalEncoder(dim_model)
        layer = nn.TransformerDecoderLayer(
            d_model=dim_model,
            nhead=n_head,
            dim_feedforward=dim_feedforward,
            batch_first=True,
            dropout=0,
        )
        self.transformer_decoder = nn.TransformerDecoder(layer, num_layers=n_layers)
        self.final = nn.Linear(dim_model, n_residues + 1)

    def forward(self, tokens, masses, charges, memory):
        """Predict the next amino acid for a collection of sequences.

        Parameters
        ----------
        tokens : torch.Tensor of size (batch_size, length)
            The amino acids so far.
        masses : torch.Tensor of size (batch_size,)
            The masses of the precursors.
        charges : torch.Tensor of size (batch_size,)
            The charges of the precursors.
        memory : torch.Tensor of size (batch_size, n_peaks, dim_model)
            The representations from a spectrum encoder.
        """
        # The precursor comes first
        masses = self.mass_encoder(masses[:, None])
        charges = self.charge_encoder(charges - 1)
        precursors = (masses + charges)[:, None, :]
        tgt = torch.cat([precursors, self.aa_encoder(tokens)], dim=1)

        tgt = self.pos_encoder(tgt)
        # before
        tgt_mask = generate_tgt_mask(tgt.shape[1]).type_as(precursors)
        # after
        tgt_mask = generate_tgt_mask(tgt.shape[1]).to(precursors.device)
        # end
        preds = self.transformer_decoder(tgt=tgt, memory=memory, tgt_mask=tgt_mask)
        return self.final(preds)
