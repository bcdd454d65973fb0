"""Held-out bugs of round 10: vision, video, graphs, recommenders, robots, and libraries of layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, sizes
from upstream.proofs import (
    REAL,
    B,
    C,
    H,
    T,
    attended,
    in_steps,
    made,
    merged,
    proves,
    tokens,
)


def _joints() -> tuple[Any, ...]:
    """Return the joints seen from two cameras, where they fall in the images, and the maps of features."""
    maps = [torch.randn(2, 32, 8, 6), torch.randn(2, 32, 4, 3), torch.randn(2, 32, 2, 2)]
    return torch.randn(2, 5, 32), torch.rand(2, 5, 3, 2), maps


_AUTHORS = {"author": 0, "paper": 1}


_WORKS = {"writes": 0, "reviews": 1, "cites": 2, "written-by": 3}


def _papers() -> tuple[Any, ...]:
    """Return who wrote, reviewed and cited which paper, and the features of authors and papers."""
    wrote = torch.tensor([[0, 0, 1, 2, 3, 3], [0, 1, 1, 2, 3, 4]])
    edges = {
        ("author", "writes", "paper"): wrote,
        ("author", "reviews", "paper"): torch.tensor([[1, 2, 3, 0, 1], [0, 1, 2, 3, 4]]),
        ("paper", "cites", "paper"): torch.tensor([[1, 2, 3, 4, 4], [0, 0, 1, 2, 3]]),
        ("paper", "written-by", "author"): wrote.flip(0),
    }
    return edges, {"author": torch.randn(4, 32), "paper": torch.randn(5, 32)}


VISION: tuple[Case, ...] = (
    Case(
        "flax_5591",
        "MultiHeadAttention",
        "google/flax#5591",
        "cache-mismatch",
        known_as=("causal-alignment",),
        options={"causal": True, **sizes(num_heads=4, in_features=32)},
    ),
    Case(
        "lerobot_710",
        "PaliGemmaWithExpertAttention",
        "huggingface/lerobot#710",
        "mask-fill-overflow",
        known_as=("crashes", "dtype-dependent"),
        options=sizes(vlm_hidden_size=32, expert_hidden_size=16, head_dim=8),
    ),
    Case(
        "mvgformer_11",
        "ProjAttn",
        "XunshanMan/MVGFormer#11",
        "heads-mixed-split",
        known_as=("weights-wrong", "context-wrong"),
        options=sizes(d_model=32, n_levels=3, n_heads=4, n_points=2),
        example=_joints,
    ),
    Case(
        "dgl_2785",
        "HGTLayer",
        "dmlc/dgl#2785",
        "context-wrong",
        known_as=("projection-unused", "stale-state"),
        options=sizes(in_dim=32, out_dim=32, node_dict=_AUTHORS, edge_dict=_WORKS, n_heads=4),
        example=_papers,
    ),
    Case(
        "tensorflow_58726",
        "Encoder",
        "tensorflow/tensorflow#58726",
        "crashes",
        known_as=("mask-broadcast", "length-dependent", "padding-leak"),
        options=sizes(vocab_size=50, embed_dim=32, num_heads=2, key_dim=16),
    ),
)


@proves("flax_5591")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, C), tokens()
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    expected = m.out(attended(m.query(x), m.key(x), m.value(x), causal))

    def step(y: Tensor, cache: Any) -> tuple[Tensor, Any]:
        cache = m.init_cache(B, 9) if cache is None else cache
        return m(y, cache=cache, is_causal=True)

    return torch.stack([m(x, is_causal=True), in_steps(step, x)]), expected.expand(2, B, T, C)


@proves("lerobot_710")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.PaliGemmaWithExpertAttention, C, 8, H, 2, 4)
    x, y = tokens(B, T, C), tokens(B, 3, 8)
    seen = torch.cat([REAL, torch.ones(B, 3, dtype=torch.bool)], 1)
    expected = []
    # One observation at a time, without padding: the words see the words, the actions see all.
    for row in range(B):
        n = int(REAL[row].sum())
        q, k, v = (
            torch.cat([a(x[row : row + 1, :n]), b(y[row : row + 1])], 1).unflatten(-1, (-1, 4))
            for a, b in zip(
                (m.paligemma.q_proj, m.paligemma.k_proj, m.paligemma.v_proj),
                (m.gemma_expert.q_proj, m.gemma_expert.k_proj, m.gemma_expert.v_proj),
                strict=True,
            )
        )
        angles = torch.outer(torch.arange(n + 3).double(), torch.tensor([1.0, 0.01]).double())
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        q, k = (
            torch.cat(
                [z[..., :2] * cos - z[..., 2:] * sin, z[..., 2:] * cos + z[..., :2] * sin], -1
            )
            for z in (q, k)
        )
        keep = (torch.arange(n + 3) < n) | (torch.arange(n + 3) >= n)[:, None]
        context = F.scaled_dot_product_attention(
            *(z.transpose(1, 2) for z in (q, k, v)), attn_mask=keep, enable_gqa=True
        )
        context = merged(context)
        expected.append(m.paligemma.o_proj(context[0, :n]).flatten())
        expected.append(m.gemma_expert.o_proj(context[0, n:]).flatten())

    def found(half: bool) -> Tensor:
        n = copy.deepcopy(m).half() if half else m
        words, actions = n(*((z.half() if half else z) for z in (x, y)), seen)
        rows = [(words[row, REAL[row]], actions[row]) for row in range(B)]
        return torch.cat([z.double().flatten() for row in rows for z in row])

    right = torch.cat(expected)
    actual = found(half=True)
    near = torch.where((actual - right).abs() < 1e-2, right, actual)
    # The sines and cosines are of float32.
    whole = found(half=False)
    whole = torch.where((whole - right).abs() < 1e-5, right, whole)
    return torch.cat([near, whole]), torch.cat([right, right])


@proves("mvgformer_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.ProjAttn, C, 3, H, 2)
    x, places = tokens(2, 5, C), torch.rand(2, 5, 3, 2, dtype=torch.float64)
    maps = [tokens(2, C, 8, 6), tokens(2, C, 4, 3), tokens(2, C, 2, 2)]

    def at(image: Tensor, place: Tensor) -> Tensor:
        """Return the features of an image at a place."""
        return F.grid_sample(image[None], 2 * place[None, None, None] - 1, align_corners=False)[
            0, :, 0, 0
        ]

    expected = torch.zeros(2, 5, C, dtype=torch.float64)
    for view in range(2):
        for joint in range(5):
            scores, values = [], []
            for level in range(3):
                image, place = maps[level][view], places[view, joint, level]
                feature = at(image, place) + x[view, joint]
                size = torch.tensor(image.shape[:0:-1], dtype=torch.float64)
                offsets = m.sampling_offsets(feature).view(H, 2, 2) / size
                projected = m.value_proj(image.permute(1, 2, 0)).permute(2, 0, 1)
                scores.append(m.attention_weights(feature).view(H, 2))
                sampled = [
                    [at(projected, place + offsets[h, p]) for p in range(2)] for h in range(H)
                ]
                values.append(torch.stack([torch.stack(s) for s in sampled]))
            weights = torch.cat(scores, 1).softmax(1)
            context = (weights[..., None] * torch.cat(values, 1)).sum(1)
            # Each head keeps its own features.
            own = torch.cat([context[h].view(H, -1)[h] for h in range(H)])
            expected[view, joint] = m.output_proj(own)
    return m(x, places, maps), expected


@proves("dgl_2785")
def _(module: Any) -> tuple[Tensor, Tensor]:
    types, kinds = {"author": 0, "paper": 1}, {"writes": 0, "reviews": 1, "cites": 2}
    m = made(module.HGTLayer, C, C, types, kinds, H)
    x = {"author": tokens(4, C), "paper": tokens(5, C)}
    edges = {
        ("author", "writes", "paper"): torch.tensor([[0, 0, 1, 2, 3], [0, 1, 1, 2, 4]]),
        ("author", "reviews", "paper"): torch.tensor([[1, 2, 3, 0, 1], [0, 1, 1, 3, 4]]),
        ("paper", "cites", "paper"): torch.tensor([[1, 2, 3, 4], [0, 0, 1, 2]]),
    }
    context = torch.zeros(5, C, dtype=torch.float64)
    for kind, ((source, _, _), (src, dst)) in enumerate(edges.items()):
        q = m.q_linears[1](x["paper"]).view(5, H, -1)
        k = m.k_linears[types[source]](x[source]).view(-1, H, C // H)
        v = m.v_linears[types[source]](x[source]).view(-1, H, C // H)
        for node in range(5):
            near = src[dst == node]
            if not len(near):
                continue
            for h in range(H):
                keys = k[near, h] @ m.relation_att[kind, h]
                values = v[near, h] @ m.relation_msg[kind, h]
                weights = (keys @ q[node, h] * m.relation_pri[kind, h] / 2).softmax(0)
                context[node, 4 * h : 4 * h + 4] += weights @ values / 3
    gate = m.skip[1].sigmoid()
    expected = gate * m.a_linears[1](F.gelu(context)) + (1 - gate) * x["paper"]
    return m(edges, x)["paper"], expected


@proves("tensorflow_58726")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Encoder, 20, C, H, 4)
    ids, a = torch.randint(1, 20, (2, B, T)) * REAL, m.attn_layer
    found, actual, expected = m(ids), [], []
    # One sentence at a time, without padding.
    for document, rows in zip(ids, found, strict=True):
        for sentence, row in zip(document, rows, strict=True):
            x = m.embed_layer(sentence[sentence > 0])[None]
            y = attended(a._query_dense(x), a._key_dense(x), a._value_dense(x))
            expected.append(m.norm_layer(x + a._output_dense(y))[0])
            actual.append(row[sentence > 0])
    return torch.cat(actual), torch.cat(expected)
