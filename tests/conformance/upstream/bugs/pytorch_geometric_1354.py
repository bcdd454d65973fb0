"""Graph attention with a softmax over the edges that enter a node."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def maybe_num_nodes(index: Tensor, num_nodes: Optional[int] = None) -> int:
    return int(index.max()) + 1 if num_nodes is None else num_nodes


def scatter(src: Tensor, index: Tensor, dim_size: int, reduce: str = "sum") -> Tensor:
    """Reduces the rows of `src` that have the same `index`."""
    out = src.new_zeros((dim_size, *src.shape[1:]))
    index = index.view(-1, *[1] * (src.dim() - 1)).expand_as(src)
    reduce = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    return out.scatter_reduce(0, index, src, reduce=reduce, include_self=False)


def softmax(src: Tensor, index: Tensor, num_nodes: Optional[int] = None) -> Tensor:
    r"""Computes a sparsely evaluated softmax: groups the values of `src` along the first dimension by `index`, and
    computes the softmax of each group.

    Args:
        src (Tensor): The source tensor.
        index (LongTensor): The groups of the elements.
        num_nodes (int, optional): The number of groups.
    """
    num_nodes = maybe_num_nodes(index, num_nodes)

    # before
    out = scatter(src, index, dim_size=num_nodes, reduce="max")[index]
    # after
    out = src - scatter(src, index, dim_size=num_nodes, reduce="max")[index]
    # end
    out = out.exp()
    out_sum = scatter(out, index, dim_size=num_nodes, reduce="sum")[index]
    return out / (out_sum + 1e-16)


class GATConv(nn.Module):
    r"""The graph attentional operator.

    Args:
        in_channels (int): Size of each input sample.
        out_channels (int): Size of each output sample of a head.
        heads (int, optional): Number of heads.
        concat (bool, optional): If False, the heads are averaged.
        negative_slope (float, optional): The slope of the leaky ReLU.
        dropout (float, optional): Dropout of the attention coefficients.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels * (heads if concat else 1)))
        self.bias.requires_grad_(bias)
        nn.init.xavier_uniform_(self.att_src)
        nn.init.xavier_uniform_(self.att_dst)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        num_nodes = x.size(0)
        loop = torch.arange(num_nodes, device=x.device)
        edge_index = torch.cat([edge_index, torch.stack([loop, loop])], dim=1)
        j, i = edge_index  # messages go from j to i

        x = self.lin(x).view(-1, self.heads, self.out_channels)
        alpha_src = (x * self.att_src).sum(dim=-1)
        alpha_dst = (x * self.att_dst).sum(dim=-1)
        alpha = F.leaky_relu(alpha_src[j] + alpha_dst[i], self.negative_slope)
        alpha = softmax(alpha, i, num_nodes)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)

        out = scatter(x[j] * alpha.unsqueeze(-1), i, num_nodes)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out + self.bias
