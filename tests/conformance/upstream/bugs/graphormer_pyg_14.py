"""The attention of a graph transformer over a batch of graphs whose nodes are concatenated."""

import torch
from torch import nn


class GraphormerAttentionHead(nn.Module):
    def __init__(self, dim_in: int, dim_q: int, dim_k: int):
        """
        :param dim_in: node feature matrix input number of dimension
        :param dim_q: query node feature matrix input number dimension
        :param dim_k: key node feature matrix input number of dimension
        """
        super().__init__()
        self.q = nn.Linear(dim_in, dim_q)
        self.k = nn.Linear(dim_in, dim_k)
        self.v = nn.Linear(dim_in, dim_k)

    def forward(self, x: torch.Tensor, b: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
        """
        :param x: node feature matrix
        :param b: spatial Encoding matrix
        :param ptr: batch pointer that shows graph indexes in batch of graphs
        """
        query, key, value = self.q(x), self.k(x), self.v(x)
        a = query.mm(key.transpose(0, 1)) / query.size(-1) ** 0.5
        same_graph = torch.zeros(len(x), len(x), dtype=torch.bool, device=x.device)
        for i in range(len(ptr) - 1):
            same_graph[ptr[i] : ptr[i + 1], ptr[i] : ptr[i + 1]] = True
        # before
        a = (a + b) * same_graph
        # after
        a = (a + b).masked_fill(~same_graph, float("-inf"))
        # end
        return torch.softmax(a, dim=-1).mm(value)


class GraphormerMultiHeadAttention(nn.Module):
    def __init__(self, num_heads: int, dim_in: int, dim_q: int, dim_k: int):
        super().__init__()
        self.heads = nn.ModuleList(
            [GraphormerAttentionHead(dim_in, dim_q, dim_k) for _ in range(num_heads)]
        )
        self.linear = nn.Linear(num_heads * dim_k, dim_in)

    def forward(self, x: torch.Tensor, b: torch.Tensor, ptr: torch.Tensor) -> torch.Tensor:
        """
        :param x: node feature matrix, of all graphs
        :param b: spatial Encoding matrix, of shape (nodes, nodes)
        :param ptr: the index of the first node of each graph, and the number of nodes
        :return: torch.Tensor, node embeddings after all attention heads
        """
        return self.linear(torch.cat([head(x, b, ptr) for head in self.heads], dim=-1))
