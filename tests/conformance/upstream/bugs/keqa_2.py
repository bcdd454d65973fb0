"""Embeds the words of a question into one vector, by an attention to the states of a recurrent network."""

import torch
import torch.nn.functional as F
from torch import nn


class EmbedVector(nn.Module):
    """The entity or the predicate that a question asks about, as a vector of the knowledge graph."""

    def __init__(self, words_dim, hidden_size, output_size, dropout_prob=0.0):
        super().__init__()
        self.lstm = nn.LSTM(words_dim, hidden_size, num_layers=1, bidirectional=True)
        self.dropout = nn.Dropout(dropout_prob)
        self.nonlinear = nn.Tanh()
        self.attn = nn.Sequential(
            nn.Linear(hidden_size * 2 + words_dim, hidden_size),
            self.nonlinear,
            nn.Linear(hidden_size, 1),
        )
        self.hidden2tag = nn.Linear(hidden_size * 2, output_size)

    def forward(self, x):
        """x: embedded words, of shape (sequence length, batch, words_dim). Returns (batch, output_size)."""
        outputs, _ = self.lstm(x)
        # before
        attn_weights = F.softmax(self.attn(torch.cat((x, outputs), dim=2)), dim=-1)
        # after
        attn_weights = F.softmax(self.attn(torch.cat((x, outputs), dim=2)), dim=0)
        # end
        attn_applied = (attn_weights * outputs).sum(dim=0)
        return self.hidden2tag(self.dropout(attn_applied))
