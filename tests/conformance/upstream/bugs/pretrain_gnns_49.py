"""A graph attention layer for molecules, whose bonds have a type and a direction."""

import torch
import torch.nn.functional as F
from torch.nn import Parameter

num_bond_type = 6  # including aromatic and self-loop edge, and extra masked tokens
num_bond_direction = 3


def add_self_loops(edge_index, num_nodes):
    loops = torch.arange(num_nodes, device=edge_index.device)
    return torch.cat([edge_index, loops.expand(2, -1)], dim=1)


def softmax(src, index, num_nodes):
    """Softmax of the values of edges, among the edges of the same index. src: (edges, heads)"""
    index = index[:, None].expand_as(src)
    largest = src.new_full((num_nodes, src.size(1)), float("-inf"))
    largest = largest.scatter_reduce(0, index, src, reduce="amax")
    out = (src - largest.gather(0, index)).exp()
    total = torch.zeros_like(largest).scatter_add(0, index, out)
    return out / (total.gather(0, index) + 1e-16)


class GATConv(torch.nn.Module):
    """
    emb_dim: dimensionality of embeddings
    heads: number of heads, of which the mean is taken
    """

    def __init__(self, emb_dim, heads=2, negative_slope=0.2, aggr="add"):
        super().__init__()
        assert aggr == "add"
        self.emb_dim = emb_dim
        self.heads = heads
        self.negative_slope = negative_slope

        self.weight_linear = torch.nn.Linear(emb_dim, heads * emb_dim)
        self.att = Parameter(torch.empty(1, heads, 2 * emb_dim))
        self.bias = Parameter(torch.zeros(emb_dim))
        self.edge_embedding1 = torch.nn.Embedding(num_bond_type, heads * emb_dim)
        self.edge_embedding2 = torch.nn.Embedding(num_bond_direction, heads * emb_dim)

        torch.nn.init.xavier_uniform_(self.att)
        torch.nn.init.xavier_uniform_(self.edge_embedding1.weight.data)
        torch.nn.init.xavier_uniform_(self.edge_embedding2.weight.data)

    def forward(self, x, edge_index, edge_attr):
        """
        x: (atoms, emb_dim)
        edge_index: sources and targets of the bonds, (2, bonds)
        edge_attr: type and direction of the bonds, (bonds, 2)
        """
        # add self loops in the edge space
        edge_index = add_self_loops(edge_index, num_nodes=x.size(0))

        # add features corresponding to self-loop edges.
        self_loop_attr = edge_attr.new_zeros(x.size(0), 2)
        self_loop_attr[:, 0] = 4  # bond type for self-loop edge
        edge_attr = torch.cat((edge_attr, self_loop_attr), dim=0)
        edge_embeddings = self.edge_embedding1(edge_attr[:, 0])
        edge_embeddings = edge_embeddings + self.edge_embedding2(edge_attr[:, 1])

        x = self.weight_linear(x).view(-1, self.heads, self.emb_dim)
        return self.update(self.propagate(edge_index, x=x, edge_attr=edge_embeddings))

    def propagate(self, edge_index, x, edge_attr):
        messages = self.message(edge_index, x[edge_index[1]], x[edge_index[0]], edge_attr, len(x))
        return torch.zeros_like(x).index_add(0, edge_index[1], messages)

    def message(self, edge_index, x_i, x_j, edge_attr, num_nodes):
        # x_i: targets, x_j: sources
        edge_attr = edge_attr.view(-1, self.heads, self.emb_dim)
        x_j = x_j + edge_attr

        alpha = (torch.cat([x_i, x_j], dim=-1) * self.att).sum(dim=-1)
        alpha = F.leaky_relu(alpha, self.negative_slope)
        # before
        alpha = softmax(alpha, edge_index[0], num_nodes)
        # after
        alpha = softmax(alpha, edge_index[1], num_nodes)
        # end

        return x_j * alpha.view(-1, self.heads, 1)

    def update(self, aggr_out):
        return aggr_out.mean(dim=1) + self.bias
