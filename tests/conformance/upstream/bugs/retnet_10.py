"""Retention: attention without a softmax, whose weights decay with the distance."""

import math

import torch
import torch.nn as nn


class SimpleRetention(nn.Module):
    """
    Simple retention mechanism based on the paper
    "Retentive Network: A Successor to Transformer for Large Language Models"
    """

    def __init__(self, hidden_size, gamma, head_size=None, double_v_dim=False):
        super().__init__()
        self.hidden_size = hidden_size
        self.head_size = hidden_size if head_size is None else head_size
        self.v_dim = self.head_size * 2 if double_v_dim else self.head_size
        self.gamma = gamma

        self.W_Q = nn.Parameter(torch.randn(hidden_size, self.head_size) / hidden_size**0.5)
        self.W_K = nn.Parameter(torch.randn(hidden_size, self.head_size) / hidden_size**0.5)
        self.W_V = nn.Parameter(torch.randn(hidden_size, self.v_dim) / hidden_size**0.5)

    def forward(self, X):
        """
        Parallel (default) representation of the retention mechanism.
        X: (batch_size, sequence_length, hidden_size)
        """
        Q, K, V = X @ self.W_Q, X @ self.W_K, X @ self.W_V
        D = self._decay(X.shape[1], X)
        return (Q @ K.transpose(-1, -2) * D.unsqueeze(0)) @ V

    def forward_chunkwise(self, x_i, r_i_1):
        """
        Chunkwise representation of the retention mechanism.
        x_i: (batch_size, chunk_size, hidden_size)
        r_i_1: (batch_size, head_size, v_dim), the state after the chunks before
        """
        chunk_size = x_i.shape[1]
        D = self._decay(chunk_size, x_i)
        Q, K, V = x_i @ self.W_Q, x_i @ self.W_K, x_i @ self.W_V

        # before
        r_i = K.transpose(-1, -2) @ V + (self.gamma**chunk_size) * r_i_1
        # after
        r_i = K.transpose(-1, -2) @ (V * D[-1].view(1, chunk_size, 1))
        r_i = r_i + (self.gamma**chunk_size) * r_i_1
        # end

        inner_chunk = (Q @ K.transpose(-1, -2) * D.unsqueeze(0)) @ V

        # e[i] = gamma ** (i + 1)
        e = self.gamma ** torch.arange(1, chunk_size + 1, device=x_i.device).to(x_i.dtype)
        cross_chunk = (Q @ r_i_1) * e.view(1, chunk_size, 1)
        return inner_chunk + cross_chunk, r_i

    def _decay(self, sequence_length, X):
        n = torch.arange(sequence_length, device=X.device).unsqueeze(1)
        m = torch.arange(sequence_length, device=X.device).unsqueeze(0)
        # distances to later tokens are clamped, as they are masked anyway
        return (self.gamma ** (n - m).clamp(min=0).to(X.dtype)) * (n >= m).to(X.dtype)


class MultiScaleRetention(nn.Module):
    """
    Multi-scale retention mechanism.

    chunk_size: length of the chunks into which a sequence is cut. None stands for the parallel representation.
    """

    def __init__(self, hidden_size, heads, double_v_dim=False, chunk_size=None):
        super().__init__()
        assert hidden_size % heads == 0, "hidden_size must be divisible by heads"
        self.hidden_size = hidden_size
        self.v_dim = hidden_size * 2 if double_v_dim else hidden_size
        self.heads = heads
        self.head_size = hidden_size // heads
        self.chunk_size = chunk_size

        gammas = 1 - torch.exp(torch.linspace(math.log(1 / 32), math.log(1 / 512), heads))
        self.gammas = gammas.tolist()

        self.swish = nn.SiLU()
        self.W_G = nn.Parameter(torch.randn(hidden_size, self.v_dim) / hidden_size**0.5)
        self.W_O = nn.Parameter(torch.randn(self.v_dim, hidden_size) / hidden_size**0.5)
        self.group_norm = nn.GroupNorm(heads, self.v_dim)
        self.retentions = nn.ModuleList(
            [
                SimpleRetention(hidden_size, gamma, self.head_size, double_v_dim)
                for gamma in self.gammas
            ]
        )

    def forward(self, X):
        """X: (batch_size, sequence_length, hidden_size)"""
        if self.chunk_size is None:
            Y = torch.cat([retention(X) for retention in self.retentions], dim=2)
        else:
            Y = self._chunkwise(X)
        Y = self.group_norm(Y.reshape(-1, self.v_dim)).reshape(Y.shape)
        return (self.swish(X @ self.W_G) * Y) @ self.W_O

    def _chunkwise(self, X):
        states = [X.new_zeros(X.shape[0], r.head_size, r.v_dim) for r in self.retentions]
        chunks = []
        for x_i in X.split(self.chunk_size, dim=1):
            steps = [r.forward_chunkwise(x_i, s) for r, s in zip(self.retentions, states)]
            chunks.append(torch.cat([y for y, _ in steps], dim=2))
            states = [s for _, s in steps]
        return torch.cat(chunks, dim=1)
