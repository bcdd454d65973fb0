"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from upstream.cases import Case, edges, sizes
from upstream.proofs import C, H, attended, made, proves, tokens


def _atoms() -> tuple[Any, ...]:
    """Return the embeddings of the atoms of two structures, and which structure they belong to."""
    return torch.randn(11, 16), torch.randn(11, 16), torch.tensor([0] * 6 + [1] * 5)


def _weather() -> tuple[Any, ...]:
    """Return two states of 8 × 16 cells."""
    return (torch.randn(2, 128, 32),)


HELD_OUT: tuple[Case, ...] = (
    Case(
        "transunet_pytorch_4",
        "MultiHeadAttention",
        "mkara44/transunet_pytorch#4",
        "scale-wrong",
        options=sizes(embedding_dim=32, head_num=4),
    ),
    Case(
        "grapharna_10",
        "SequenceStructureModule",
        "mjustynaPhD/GraphaRNA#10",
        "mask-inverted",
        known_as=("batch-mixed",),
        options=sizes(dim=32),
        example=_atoms,
    ),
    Case(
        "vjepa2_160",
        "Block",
        "facebookresearch/vjepa2#160",
        "dropout-in-eval",
        options=sizes(dim=32, num_heads=4, drop=0.1),
    ),
    Case(
        "physicsnemo_1399",
        "Transformer2DBlock",
        "NVIDIA/physicsnemo#1399",
        "context-wrong",
        options=sizes(dim=32, num_heads=4, input_resolution=(8, 16), window_size=(4, 8)),
        example=_weather,
    ),
    Case(
        "pytorch_geometric_1354",
        "GATConv",
        "pyg-team/pytorch_geometric#1354",
        "attention-ignored",
        known_as=("weights-wrong",),
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=edges,
    ),
)


@proves("transunet_pytorch_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    q, k, v = m.qkv_layer(x).unflatten(-1, (C // H, 3, H)).permute(3, 0, 1, 4, 2).flatten(-2)
    return m(x), m.out_attention(attended(q, k, v))


@proves("grapharna_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SequenceStructureModule, C), tokens(7, C)
    alone = [m.transformer_encoder(one[None])[0] for one in x.split([4, 3])]
    batch = torch.tensor([0] * 4 + [1] * 3)
    return m(x[:, : C // 2], x[:, C // 2 :], batch), torch.cat(alone)


@proves("vjepa2_160")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Block, C, H, drop=0.1), tokens()
    q, k, v = m.attn.qkv(m.norm1(x)).chunk(3, -1)
    expected = x + m.attn.proj(attended(q, k, v))
    return m(x), expected + m.mlp(m.norm2(expected))


@proves("physicsnemo_1399")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Transformer2DBlock, C, H, (4, 8), (2, 4))
    x = tokens(2, 32, C)
    lat, lon = (
        t.flatten() for t in torch.meshgrid(torch.arange(4), torch.arange(8), indexing="ij")
    )
    # Rows 1 and 2 share a window; rows 0 and 3 are alone. Columns wrap.
    row, column = (lat + 1) // 2, ((lon - 2) % 8) // 4
    keep = (row[:, None] == row) & (column[:, None] == column)
    cell = ((lat - 1) % 2) * 4 + (lon - 2) % 4
    q, k, v = (
        t.unflatten(-1, (H, -1)).transpose(1, 2) for t in m.attn.qkv(m.norm1(x)).chunk(3, -1)
    )
    scores = q @ k.mT / 2 + m.attn.earth_position_bias[:, cell][:, :, cell]
    context = scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v
    return m(x), x + m.attn.proj(context.transpose(1, 2).flatten(2))


@proves("pytorch_geometric_1354")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (nodes, ends) = made(module.GATConv, C, 8, 2), edges()
    nodes = nodes.double()
    x = m.lin(nodes).unflatten(-1, (2, 8))
    scores = (x * m.att_src).sum(-1)[None] + (x * m.att_dst).sum(-1)[:, None]
    keep = torch.eye(5, dtype=torch.bool)
    keep[ends[1], ends[0]] = True
    scores = torch.nn.functional.leaky_relu(scores, 0.2).masked_fill(~keep[..., None], -torch.inf)
    return m(nodes, ends), torch.einsum("ijh,jhd->ihd", scores.softmax(1), x).flatten(1)
