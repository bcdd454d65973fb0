"""A layer of a point transformer: each point has a weight for every neighbor and every channel."""

import torch
from torch import nn


def exists(val):
    return val is not None


def batched_index_select(values, indices):
    """Take values[b, i, indices[b, i, k]] of values of shape (batch, points, points, dim)."""
    indices = indices[..., None].expand(-1, -1, -1, values.shape[-1])
    return values.gather(2, indices)


class PointTransformerLayer(nn.Module):
    def __init__(self, *, dim, pos_mlp_hidden_dim=64, attn_mlp_hidden_mult=4, num_neighbors=None):
        super().__init__()
        self.num_neighbors = num_neighbors
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.pos_mlp = nn.Sequential(
            nn.Linear(3, pos_mlp_hidden_dim), nn.ReLU(), nn.Linear(pos_mlp_hidden_dim, dim)
        )
        self.attn_mlp = nn.Sequential(
            nn.Linear(dim, dim * attn_mlp_hidden_mult),
            nn.ReLU(),
            nn.Linear(dim * attn_mlp_hidden_mult, dim),
        )

    def forward(self, x, pos, mask=None):
        """
        x: the features of the points, of shape (batch, points, dim)
        pos: their coordinates, of shape (batch, points, 3)
        mask: True at points and False at padding, of shape (batch, points)
        """
        n, num_neighbors = x.shape[1], self.num_neighbors
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)

        # positions and queries relative to those of every other point
        rel_pos = pos[:, :, None, :] - pos[:, None, :, :]
        rel_pos_emb = self.pos_mlp(rel_pos)
        qk_rel = q[:, :, None, :] - k[:, None, :, :]
        v = v[:, None, :, :].expand(-1, n, -1, -1)
        if exists(mask):
            mask = mask[:, :, None] & mask[:, None, :]

        # keep the nearest neighbors only
        if exists(num_neighbors) and num_neighbors < n:
            rel_dist = rel_pos.norm(dim=-1)
            if exists(mask):
                rel_dist = rel_dist.masked_fill(~mask, torch.finfo(rel_dist.dtype).max)
            dist, indices = rel_dist.topk(num_neighbors, largest=False)
            v = batched_index_select(v, indices)
            qk_rel = batched_index_select(qk_rel, indices)
            rel_pos_emb = batched_index_select(rel_pos_emb, indices)
            mask = mask.gather(2, indices) if exists(mask) else None

        v = v + rel_pos_emb
        sim = self.attn_mlp(qk_rel + rel_pos_emb)
        if exists(mask):
            sim = sim.masked_fill(~mask[..., None], -torch.finfo(sim.dtype).max)

        # before
        attn = sim.softmax(dim=-1)
        # after
        attn = sim.softmax(dim=-2)
        # end
        return torch.einsum("b i j d, b i j d -> b i d", attn, v)
