"""The attention of a graph transformer for molecules: keys and values are made per edge, from distances too."""

from typing import Optional

import torch
from torch import nn


def scatter(src: torch.Tensor, index: torch.Tensor, dim_size: int, reduce: str) -> torch.Tensor:
    """Reduce the rows of src that have the same index. Rows without any are 0."""
    out = src.new_zeros(dim_size, *src.shape[1:])
    index = index.view(-1, *(1 for _ in src.shape[1:])).expand_as(src)
    return out.scatter_reduce(0, index, src, reduce=reduce, include_self=False)


class EdgeConv(nn.Module):
    """A linear map of the features of a node, with weights that depend on the attributes of an edge."""

    def __init__(self, dim_in: int, dim_out: int, edge_attr_dim: int, hidden: int = 16):
        super().__init__()
        self.linear = nn.Linear(dim_in, dim_out, bias=False)
        self.radial_nn = nn.Sequential(
            nn.Linear(edge_attr_dim, hidden), nn.SiLU(), nn.Linear(hidden, dim_out)
        )

    def forward(self, node_attr: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        return self.linear(node_attr) * self.radial_nn(edge_attr)


class MultiheadAttention(nn.Module):
    """
    Graph attention layer with multiple heads

    ref: https://arxiv.org/abs/2006.10503
    """

    def __init__(
        self,
        dim_in: int,
        dim_out: int,
        dim_key: int,
        edge_attr_dim: int,
        num_heads: int,
        return_attention: bool = False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.return_attention = return_attention
        self.h_q = nn.Linear(dim_in, dim_key, bias=False)
        self.h_k = EdgeConv(dim_in, dim_key, edge_attr_dim)
        self.h_v = EdgeConv(dim_in, dim_out, edge_attr_dim)
        head = dim_key // num_heads
        # a weighted product of all pairs of features of a query and a key
        self.dot_weight = nn.Parameter(torch.randn(head, head))
        self.lin_out = nn.Linear(dim_out, dim_out, bias=False)

    def dot(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ehi,ij,ehj->eh", q, self.dot_weight, k) / q.shape[-1]

    def forward(
        self,
        node_attr: torch.Tensor,
        edge_index: torch.Tensor,
        edge_attr: torch.Tensor,
        edge_cutoff: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        Let N be the number of nodes, and E be the number of edges

        Parameters
        ----------
        node_attr: [N, dim_in]
        edge_index: [2, E]
        edge_attr: [E, edge_attr_dim]
        edge_cutoff: [E], a weight of each edge that falls to 0 with the distance

        Returns
        -------
        out: [N, dim_out]
        """
        src, dst = edge_index
        N, E = node_attr.shape[0], src.shape[0]

        # compute queries (per node), keys (per edge) and values (per edge)
        q = self.h_q(node_attr).view(N, self.num_heads, -1)
        k = self.h_k(node_attr[src], edge_attr).view(E, self.num_heads, -1)
        v = self.h_v(node_attr[src], edge_attr).view(E, self.num_heads, -1)

        # compute softmax
        logits = self.dot(q[dst], k)
        # before
        exp = logits.exp()
        # after
        largest = scatter(logits.detach(), dst, dim_size=N, reduce="amax")
        exp = (logits - largest[dst]).exp()
        # end
        if edge_cutoff is not None:
            exp = exp * edge_cutoff[:, None]
        z = scatter(exp, dst, dim_size=N, reduce="sum")
        attn = exp / z[dst]

        out = scatter(attn.unsqueeze(-1) * v, dst, dim_size=N, reduce="sum").view(N, -1)
        out = self.lin_out(out)
        if self.return_attention:
            return out, attn
        return out
