"""Two layers of a graph transformer, with a bias for the distance of two nodes."""

import torch
import torch.nn.functional as F
from torch import nn


class SpatialEncoder(nn.Module):
    """Embeds the distances of the nodes of each graph."""

    def __init__(self, max_dist, num_heads=1):
        super().__init__()
        self.max_dist = max_dist
        self.num_heads = num_heads
        # embedding 0 is for unreachable nodes
        self.embedding_table = nn.Embedding(max_dist + 2, num_heads, padding_idx=0)

    def forward(self, dist, num_nodes):
        """Return the bias of attention, of shape (B, N, N, num_heads)."""
        max_num_nodes = dist.shape[1]
        spatial_encoding = []
        for i, n in enumerate(num_nodes.tolist()):
            dist_embedding = self.embedding_table(dist[i, :n, :n].clamp(-1, self.max_dist) + 1)
            padded_encoding = dist_embedding.new_full(
                (max_num_nodes, max_num_nodes, self.num_heads), float("-inf")
            )
            padded_encoding[:n, :n] = dist_embedding
            # before
            spatial_encoding.append(padded_encoding)
            # after
            padded_encoding[n:] = 0
            spatial_encoding.append(padded_encoding)
            # end
        return torch.stack(spatial_encoding)


class BiasedMHA(nn.Module):
    def __init__(self, feat_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (feat_size // num_heads) ** -0.5
        self.q_proj = nn.Linear(feat_size, feat_size)
        self.k_proj = nn.Linear(feat_size, feat_size)
        self.v_proj = nn.Linear(feat_size, feat_size)
        self.out_proj = nn.Linear(feat_size, feat_size)

    def forward(self, ndata, attn_bias):
        q, k, v = (
            proj(ndata).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn_weights = q * self.scaling @ k.transpose(2, 3) + attn_bias.permute(0, 3, 1, 2)
        attn = F.softmax(attn_weights, dim=3) @ v
        return self.out_proj(attn.transpose(1, 2).flatten(2))


class Graphormer(nn.Module):
    def __init__(self, feat_size, num_heads, max_dist=5, num_layers=2):
        super().__init__()
        self.spatial_encoder = SpatialEncoder(max_dist, num_heads)
        self.layers = nn.ModuleList([BiasedMHA(feat_size, num_heads) for _ in range(num_layers)])

    def forward(self, nfeat, dist, num_nodes):
        """
        nfeat: the features of the nodes, of shape (B, N, feat_size). num_nodes: their numbers, (B,).
        dist: the distances of nodes, -1 for nodes that are not linked, of shape (B, N, N).
        """
        attn_bias = self.spatial_encoder(dist, num_nodes)
        for layer in self.layers:
            nfeat = nfeat + layer(nfeat, attn_bias)
        return nfeat
