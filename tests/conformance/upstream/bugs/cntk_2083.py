"""Layers library: attention of a decoder to the states of an encoder (Bahdanau et al.)."""

from typing import Optional

import torch
from torch import nn


class Stabilizer(nn.Module):
    """A learned factor, positive, that keeps the size of activations in check."""

    def __init__(self, steepness: float = 4.0):
        super().__init__()
        self.steepness = steepness
        start = torch.tensor(1.0).mul(steepness).expm1().log() / steepness
        self.param = nn.Parameter(start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beta = nn.functional.softplus(self.param, beta=self.steepness)
        return beta * x


class AttentionModel(nn.Module):
    """
    Additive attention: the state of the decoder asks which states of the encoder matter now.

    Args:
        attention_dim: dimension of the projections that are compared
        enc_dim: dimension of the states of the encoder
        dec_dim: dimension of the state of the decoder
        enable_self_stabilization: whether the projections are stabilized
        go_backwards: whether the states of the encoder are in reverse
    """

    def __init__(
        self,
        attention_dim: int,
        enc_dim: int,
        dec_dim: int,
        enable_self_stabilization: bool = True,
        go_backwards: bool = False,
    ):
        super().__init__()
        self.go_backwards = go_backwards

        def dense(in_dim: int, out_dim: int, bias: bool) -> nn.Module:
            linear = nn.Linear(in_dim, out_dim, bias=bias)
            if not enable_self_stabilization:
                return linear
            return nn.Sequential(Stabilizer(), linear)

        # projections of the states, and of their sum to a score
        self.attn_proj_enc = dense(enc_dim, attention_dim, bias=False)
        self.attn_proj_dec = dense(dec_dim, attention_dim, bias=False)
        self.attn_proj_tanh = dense(attention_dim, 1, bias=False)

    def forward(
        self,
        h_enc: torch.Tensor,
        h_dec: torch.Tensor,
        h_enc_valid: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        Args:
            h_enc: states of the encoder, (batch, time, enc_dim)
            h_dec: state of the decoder, (batch, dec_dim)
            h_enc_valid: 1 at states, 0 at padding, (batch, time)

        Returns:
            the states of the encoder, summed with the weights of the attention
        """
        if self.go_backwards:
            h_enc = h_enc.flip(1)
            h_enc_valid = None if h_enc_valid is None else h_enc_valid.flip(1)

        h_enc_proj = self.attn_proj_enc(h_enc)
        h_dec_proj = self.attn_proj_dec(h_dec).unsqueeze(1)
        tanh_output = torch.tanh(h_dec_proj + h_enc_proj)
        u = self.attn_proj_tanh(tanh_output)  # (batch, time, 1)
        if h_enc_valid is not None:
            u = u.masked_fill(h_enc_valid.unsqueeze(-1) == 0, float("-inf"))
        attention_weights = torch.softmax(u, dim=1)
        # before
        h_att = torch.sum(h_enc_proj * attention_weights, dim=1)
        # after
        h_att = torch.sum(h_enc * attention_weights, dim=1)
        # end
        return h_att
