"""Graph attention by dot products of the features of the two ends of an edge."""

import torch
from torch import nn


def edge_softmax(num_nodes, dst, logits):
    """Normalize the logits, of shape (edges, heads, 1), over the edges that end in the same node."""
    index = dst.view(-1, 1, 1).expand_as(logits)
    top = logits.new_full((num_nodes, *logits.shape[1:]), float("-inf"))
    top = top.scatter_reduce(0, index, logits.detach(), reduce="amax")
    score = torch.exp(logits - top[dst])
    total = logits.new_zeros(num_nodes, *logits.shape[1:]).index_add(0, dst, score)
    return score / total[dst]


class DotGatConv(nn.Module):
    r"""
    Dot-product version of self-attention in GAT.

    Parameters
    ----------
    in_feats : int
        Input feature size.
    out_feats : int
        Output feature size of each head.
    num_heads : int
        Number of heads.
    allow_zero_in_degree : bool, optional
        If there are 0-in-degree nodes in the graph, their output is 0, for no message is passed
        to them. The module raises an error unless this is set to True.
    """

    def __init__(self, in_feats, out_feats, num_heads, allow_zero_in_degree=False):
        super().__init__()
        self._in_feats = in_feats
        self._out_feats = out_feats
        self._num_heads = num_heads
        self._allow_zero_in_degree = allow_zero_in_degree
        self.fc = nn.Linear(in_feats, out_feats * num_heads, bias=False)

    def forward(self, feat, edges, get_attention=False):
        """feat: (nodes, in_feats). edges: the sources and the destinations, of shape (2, edges)."""
        src, dst = edges
        num_nodes = feat.shape[0]
        if not self._allow_zero_in_degree and dst.unique().numel() < num_nodes:
            raise ValueError("There are 0-in-degree nodes in the graph.")
        ft = self.fc(feat).view(-1, self._num_heads, self._out_feats)

        # Step 1. dot product of the two ends of every edge
        a = (ft[src] * ft[dst]).sum(dim=-1, keepdim=True)

        # Step 2. edge softmax to compute attention scores
        # before
        sa = edge_softmax(num_nodes, dst, a) / self._out_feats**0.5
        # after
        sa = edge_softmax(num_nodes, dst, a / self._out_feats**0.5)
        # end

        # Step 3. broadcast the softmax value to each edge, and aggregate
        messages = ft[src] * sa
        rst = torch.zeros_like(ft).index_add(0, dst, messages)
        if get_attention:
            return rst, sa
        return rst
