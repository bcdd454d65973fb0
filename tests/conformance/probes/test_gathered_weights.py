"""Softmaxes over what the product or the sum of the values goes over: tokens, or the neighbors in a graph."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

EFFICIENT = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(x).chunk(3, -1))
        q = q.softmax(dim=-1)
        k = k.softmax(dim=1)
        context = torch.einsum('bnhd,bnhe->bhde', k, v)
        out = torch.einsum('bnhd,bhde->bnhe', q, context)
        return self.to_out(out.flatten(2))
"""
GRAPH = """import torch
from torch import nn


class Attention(nn.Module):
    '''Each node looks at the nodes that have an edge to it.'''

    def __init__(self, in_dim=16, out_dim=8):
        super().__init__()
        self.query = nn.Linear(in_dim, out_dim)
        self.key = nn.Linear(in_dim, out_dim)
        self.value = nn.Linear(in_dim, out_dim)

    def forward(self, h, src, dst):
        N = h.shape[0]
        q, k, v = self.query(h)[dst], self.key(h)[src], self.value(h)[src]
        e = ((q * k).sum(-1) / k.shape[-1] ** 0.5).exp()
        z = torch.zeros(N, dtype=h.dtype).scatter_add(0, dst, e)
        a = e / z[dst]
        out = torch.zeros(N, v.shape[1], dtype=h.dtype)
        return out.scatter_add(0, dst[:, None].expand_as(v), a[:, None] * v)
"""


def found(tmp_path, source, example=None):
    with written(tmp_path, source) as target:
        report = check(target, example=example)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


def test_a_softmax_over_features_weights_no_tokens(tmp_path):
    assert found(tmp_path, EFFICIENT) == []
    wrong = EFFICIENT.replace("k.softmax(dim=1)", "k.softmax(dim=-1)")
    assert found(tmp_path, wrong) == [("softmax-wrong-dim", "k = k.softmax(dim=-1)")]


def test_the_kernel_of_a_linear_attention_is_no_weight(tmp_path):
    """Its products are divided by their sums."""
    source = EFFICIENT.replace("k.softmax(dim=1)", "k.softmax(dim=-1)").replace(
        "        return",
        "        out = out / torch.einsum('bnhd,bhd->bnh', q, k.sum(1))[..., None]\n        return",
    )
    assert found(tmp_path, source) == []


@pytest.mark.parametrize("old", ["scatter_add(0, dst, e)\n        a = e / z[dst]"])
def test_a_softmax_over_the_edges_that_are_summed(tmp_path, old):
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    example = (torch.randn(5, 16), *edges)
    assert found(tmp_path, GRAPH, example) == []
    wrong = GRAPH.replace(old, old.replace("dst", "src"))
    assert found(tmp_path, wrong, example) == [("softmax-wrong-dim", "a = e / z[src]")]


def test_weights_of_a_hypergraph_belong_to_the_sum_into_its_edges(tmp_path):
    """The same weights bring the edges back to their nodes, where they need not sum to 1."""
    source = GRAPH.replace(
        "        out = torch.zeros(N, v.shape[1], dtype=h.dtype)\n",
        "        edges = torch.zeros(N, v.shape[1], dtype=h.dtype)\n"
        "        edges = edges.scatter_add(0, dst[:, None].expand_as(v), a[:, None] * v)\n"
        "        v, dst = edges[dst], src\n"
        "        out = torch.zeros(N, v.shape[1], dtype=h.dtype)\n",
    )
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    example = (torch.randn(5, 16), *edges)
    assert found(tmp_path, source, example) == []
    wrong = source.replace(
        "scatter_add(0, dst, e)\n        a = e / z[dst]",
        "scatter_add(0, src, e)\n        a = e / z[src]",
    )
    assert found(tmp_path, wrong, example) == [("softmax-wrong-dim", "a = e / z[src]")]
