"""Aggregates the history of an entity in a temporal knowledge graph, by attention to its neighbors."""

import torch
import torch.nn.functional as F
from torch import nn


class AttnAggregator(nn.Module):
    def __init__(self, h_dim, dropout, seq_len=10):
        super().__init__()
        self.h_dim = h_dim
        self.dropout = nn.Dropout(dropout)
        self.seq_len = seq_len
        self.attn_s = nn.Linear(3 * h_dim, h_dim)
        self.v_s = nn.Parameter(torch.empty(h_dim, 1))
        nn.init.xavier_uniform_(self.v_s, gain=nn.init.calculate_gain("relu"))

    def forward(self, s_hist, s, r, ent_embeds, rel_embeds):
        """
        s_hist: for each entity the neighbors that it had at each of its time steps, as lists of indices.
        s, r: the entities and their relations, of shape (batch). Returns (batch, seq_len, 3 * h_dim).
        """
        s_embed_seq_tensor = torch.zeros(
            len(s_hist), self.seq_len, 3 * self.h_dim, dtype=ent_embeds.dtype
        )
        for i, history in enumerate(s_hist):
            ss, rr = ent_embeds[s[i]], rel_embeds[r[i]]
            embeds = []
            for neighs in history:
                neighbors = ent_embeds[neighs]
                query = torch.cat([ss, rr]).expand(len(neighbors), -1)
                energy = torch.tanh(self.attn_s(torch.cat([neighbors, query], dim=1))) @ self.v_s
                weights = F.softmax(energy, dim=0)
                embeds.append((weights * neighbors).sum(dim=0))
            # before
            embeds = torch.stack([torch.cat([embed, ss, rr]) for embed in embeds])
            # after
            embeds = torch.stack([torch.cat([embed, ss, rr]) for embed in embeds])
            s_embed_seq_tensor[i, : len(embeds)] = embeds
            # end
        return self.dropout(s_embed_seq_tensor)
