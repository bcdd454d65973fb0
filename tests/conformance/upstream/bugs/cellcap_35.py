"""Single-cell perturbations: how a cell responds depends on the state that it was in."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PerturbationResponse(nn.Module):
    """
    Response of cells to drugs: each drug uses some of the response programs, as much as the basal state of a cell
    matches the key that the drug has for the program.

    Args:
        n_latent: Size of the latent space.
        n_drug: Number of drugs.
        n_prog: Number of response programs.
        dropout_rate: Dropout of the responses.
    """

    def __init__(
        self, n_latent: int = 20, n_drug: int = 3, n_prog: int = 10, dropout_rate: float = 0.1
    ):
        super().__init__()
        self.n_latent = n_latent
        self.n_drug = n_drug
        self.n_prog = n_prog

        # keys of the programs, for each drug
        self.H_key = nn.Parameter(torch.randn(n_drug, n_prog, n_latent))
        # how much of a program a drug uses at all
        self.H_pq = nn.Parameter(torch.rand(n_drug, n_prog))
        # the programs
        self.w_qk = nn.Parameter(torch.randn(n_prog, n_latent) / math.sqrt(n_latent))
        self.dropout = nn.Dropout(dropout_rate)

    def get_attention(self, z_basal: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Return the attention of cells to programs, (n_cell, n_prog)."""
        key = torch.einsum("np,pqk->nqk", p, self.H_key)
        # before
        score = torch.bmm(key, z_basal.unsqueeze(-1)).squeeze(-1)
        # after
        score = torch.bmm(key, z_basal.unsqueeze(-1)).squeeze(-1) / math.sqrt(self.n_latent)
        # end
        return F.softmax(score, dim=1)

    def forward(self, z_basal: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """
        Args:
            z_basal: Basal states of cells, (n_cell, n_latent).
            p: The drug that each cell was given, one-hot, (n_cell, n_drug).

        Returns:
            The perturbed states, (n_cell, n_latent).
        """
        assert p.size(-1) == self.n_drug
        attn = self.get_attention(z_basal, p)
        usage = F.softplus(p @ self.H_pq)
        delta_z = torch.matmul(attn * usage, self.w_qk)
        return z_basal + self.dropout(delta_z)
