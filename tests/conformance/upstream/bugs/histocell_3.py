"""HistoCell: the types of the cells in a histology tile, from the cells themselves, their neighbours and the tissue."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphAttentionLayer(nn.Module):
    """
    Simple GAT layer for dense adjacency, similar to https://arxiv.org/abs/1710.10903

    h: (B, N, in_features), adj: (B, N, N)
    """

    def __init__(self, in_features, out_features, dropout, alpha, concat=True):
        super().__init__()
        self.dropout = dropout
        self.in_features = in_features
        self.out_features = out_features
        self.concat = concat

        self.W = nn.Parameter(torch.empty(in_features, out_features))
        nn.init.xavier_uniform_(self.W.data, gain=1.414)
        self.a = nn.Parameter(torch.empty(2 * out_features, 1))
        nn.init.xavier_uniform_(self.a.data, gain=1.414)
        self.leakyrelu = nn.LeakyReLU(alpha)

    def forward(self, h, adj):
        Wh = torch.matmul(h, self.W)
        e = self._scores(Wh)
        zero_vec = torch.full_like(e, torch.finfo(e.dtype).min)
        attention = torch.where(adj > 0, e, zero_vec)
        attention = F.softmax(attention, dim=-1)
        attention = F.dropout(attention, self.dropout, training=self.training)
        h_prime = torch.matmul(attention, Wh)

        if self.concat:
            return F.elu(h_prime)
        # before
        return h
        # after
        return h_prime
        # end

    def _scores(self, Wh):
        Wh1 = torch.matmul(Wh, self.a[: self.out_features])
        Wh2 = torch.matmul(Wh, self.a[self.out_features :])
        # broadcast add: (B, N, 1) + (B, 1, N)
        return self.leakyrelu(Wh1 + Wh2.transpose(-1, -2))

    def __repr__(self):
        return f"{self.__class__.__name__} ({self.in_features} -> {self.out_features})"


class HistoCell(nn.Module):
    """
    tissue: (B, feat_dim), features of the whole tile
    bag: (B, N, feat_dim), features of the patches around its cells
    adj: (B, N, N), 1 for cells that are close to each other, and for each cell and itself
    cell_size: (B, N, 2), width and height of each cell

    Returns the probabilities of the types of each cell, and the logits of the tissue.
    """

    def __init__(self, feat_dim=512, size_dim=16, k_class=5, tissue_class=3, dropout=0.5):
        super().__init__()
        self.gat = GraphAttentionLayer(feat_dim, feat_dim, dropout=dropout, alpha=0.2, concat=False)
        self.size_embed = nn.Sequential(nn.Linear(2, size_dim), nn.ReLU())
        self.merge = nn.Linear(feat_dim + size_dim, feat_dim)
        self.drop = nn.Dropout(dropout)

        self.out = nn.LSTM(input_size=feat_dim, hidden_size=feat_dim, batch_first=True)
        self.predict = nn.Sequential(nn.Linear(feat_dim, k_class), nn.Softmax(dim=-1))
        self.tc = nn.Linear(feat_dim, tissue_class + 1)

    def forward(self, tissue, bag, adj, cell_size):
        B, N, _ = bag.shape
        size_feats = self.size_embed(cell_size)
        mask_feats = self.merge(torch.cat([bag, size_feats], dim=-1))
        graph_feats = self.gat(self.drop(mask_feats), adj)

        # for each cell a sequence of two: the tissue, then the cell
        global_feats = tissue.unsqueeze(1).expand(-1, N, -1)
        seq_feats = torch.stack([global_feats, graph_feats], dim=2).flatten(0, 1)
        out_feats, _ = self.out(seq_feats)
        out_feats = self.drop(out_feats.view(B, N, 2, -1))

        tissue_cat = self.tc(out_feats[:, 0, 0])
        probs = self.predict(out_feats[:, :, 1])
        return probs, tissue_cat
