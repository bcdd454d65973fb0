"""Known bugs of numbers that overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from upstream.cases import Case, edges, sizes
from upstream.proofs import (
    C,
    made,
    proves,
    tokens,
)


def _edges_with_attributes() -> tuple[Any, ...]:
    """Return the features of 5 nodes, the sources and targets of 8 edges, and 3 attributes of each edge."""
    return *edges(), torch.randn(8, 3)


CASES = (
    Case(
        "e3tools_3",
        "MultiheadAttention",
        "prescient-design/e3tools#3",
        "output-not-finite",
        known_as=("weights-wrong",),
        options=sizes(dim_in=16, dim_out=16, dim_key=8, edge_attr_dim=3, num_heads=2),
        example=_edges_with_attributes,
    ),
)


@proves("e3tools_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, C, 8, 3, 2), tokens(4, C) * 1e4
    sources, targets = torch.cartesian_prod(torch.arange(4), torch.arange(4)).T
    attributes = tokens(16, 3)
    q = m.h_q(x).view(4, 2, 4)
    k, v = (
        make(x[sources], attributes).view(4, 4, 2, -1).transpose(0, 1) for make in (m.h_k, m.h_v)
    )
    weights = (torch.einsum("thi,ij,tshj->tsh", q, m.dot_weight, k) / 4).softmax(1)
    expected = m.lin_out(torch.einsum("tsh,tshd->thd", weights, v).flatten(1))
    actual = m(x, torch.stack([sources, targets]), attributes)
    return actual / expected.abs().max(), expected / expected.abs().max()
