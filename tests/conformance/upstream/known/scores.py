"""Known bugs of scores on their way from queries and keys to weights."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, edges, image, sizes
from upstream.proofs import (
    CAUSAL,
    REAL,
    B,
    C,
    H,
    T,
    attended,
    heads,
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _windows() -> tuple[Any, ...]:
    """Return the tokens of two windows of 2 × 2 × 2, from the skip connection and from below."""
    return torch.randn(2, 8, 16), torch.randn(2, 8, 16)


def _graph() -> tuple[Any, ...]:
    """Return the features of 5 nodes, and which nodes are neighbors; each is one of itself."""
    x, (source, target) = edges()
    adjacent = torch.eye(5)
    adjacent[source, target] = adjacent[target, source] = 1
    return x, adjacent


def _groups() -> tuple[Any, ...]:
    """Return 4 tokens of a task, and 3 of observations and 2 of readouts at 3 times."""
    return torch.randn(2, 4, 32), torch.randn(2, 3, 3, 32), torch.randn(2, 3, 2, 32)


def _image_tokens() -> tuple[Any, ...]:
    """Return a class token and 3 × 4 patches."""
    return (torch.randn(2, 13, 32),)


def _volumes() -> tuple[Any, ...]:
    """Return two volumes."""
    return (torch.randn(2, 16, 4, 5, 3),)


def _channels_last() -> tuple[Any, ...]:
    """Return two feature maps of 7 × 7 pixels."""
    return (torch.randn(2, 7, 7, 16),)


def _weighted_graphs() -> tuple[Any, ...]:
    """Return the node features and the weighted adjacency matrices of two graphs of 7 nodes, as one list."""
    weights = torch.rand(2, 7, 7) * 2 * (torch.rand(2, 7, 7) < 0.4)
    return ([torch.randn(2, 7, 16), weights + weights.mT],)


def _voxels() -> tuple[Any, ...]:
    """Return the features of 13 voxels, and where they are in the grid."""
    places = torch.randperm(512)[:13]
    return torch.randn(13, 32), torch.stack([places // 64, places // 8 % 8, places % 8], dim=-1)


CASES = (
    Case(
        "nnformer_88",
        "WindowAttention_kv",
        "282857341/nnFormer#88",
        "weights-wrong",
        known_as=("relative-shift-wrong", "projection-unused"),
        options=sizes(dim=16, window_size=(2, 2, 2), num_heads=4),
        example=_windows,
    ),
    Case(
        "attention_gym_86",
        "AlibiAttention",
        "meta-pytorch/attention-gym#86",
        "weights-wrong",
        known_as=("relative-shift-wrong",),
        options={"causal": True, **sizes(dim=32, num_heads=4)},
    ),
    Case(
        "swin_transformer_v2_1",
        "WindowMultiHeadAttention",
        "ChristophReich1996/Swin-Transformer-V2#1",
        "weights-wrong",
        known_as=("scale-wrong",),
        options=sizes(in_features=16, window_size=4, number_of_heads=4),
        example=image,
    ),
    Case(
        "hunyuandit_247",
        "CrossAttention",
        "Tencent-Hunyuan/HunyuanDiT#247",
        "weights-wrong",
        known_as=("gradient-wrong", "rotary-precision"),
        options=sizes(qdim=32, kdim=24, num_heads=4),
    ),
    Case(
        "mlx_3071",
        "AlibiAttention",
        "ml-explore/mlx#3071",
        "weights-wrong",
        options={"causal": True, **sizes(dims=48, num_heads=6)},
    ),
    Case(
        "pygat_16",
        "SpGraphAttentionLayer",
        "diegoantognini/pyGAT#16",
        "weights-wrong",
        options=sizes(in_features=16, out_features=8),
        example=_graph,
    ),
    Case(
        "octo_75",
        "BlockTransformer",
        "octo-models/octo#75",
        "weights-wrong",
        options=sizes(token_embedding_size=32, num_heads=4),
        example=_groups,
    ),
    Case(
        "tt_metal_42891",
        "BeitSdpaSelfAttention",
        "tenstorrent/tt-metal#42891",
        "weights-wrong",
        known_as=("scale-wrong", "relative-shift-wrong"),
        options=sizes(hidden_size=32, num_attention_heads=4, window_size=(3, 4)),
        example=_image_tokens,
    ),
    Case(
        "aprender_2143",
        "AlibiSelfAttention",
        "paiml/aprender#2143",
        "weights-wrong",
        known_as=("relative-shift-wrong",),
        options={"causal": True, **sizes(d_model=32, n_heads=4)},
    ),
    Case(
        "attention_mechanism_1",
        "cbam",
        "nikhilroxtomar/Attention-Mechanism-Implementation#1",
        "weights-wrong",
        options=sizes(channel=16),
        example=image,
    ),
    Case(
        "retnet_10",
        "MultiScaleRetention",
        "Jamie-Stirling/RetNet#10",
        "weights-wrong",
        known_as=("context-wrong", "cache-mismatch", "length-dependent"),
        options={"causal": True, **sizes(hidden_size=32, heads=4, chunk_size=3)},
    ),
    Case(
        "ccnet_105",
        "CrissCrossAttention3D",
        "speedinghzl/CCNet#105",
        "weights-wrong",
        known_as=("context-wrong", "rows-not-normalised"),
        options=sizes(in_dim=16),
        example=_volumes,
    ),
    Case(
        "timm_2438",
        "SwinTransformerV2Block",
        "huggingface/pytorch-image-models#2438",
        "weights-wrong",
        known_as=("mask-broadcast",),
        options=sizes(dim=16, num_heads=2, window_size=4, shift_size=2),
        example=_channels_last,
    ),
    Case(
        "spektral_299",
        "GATNet",
        "danielegrattarola/spektral#299",
        "weights-wrong",
        known_as=("mask-fill-positive", "mask-inverted"),
        options=sizes(n_node_features=16, n_labels=5),
        example=_weighted_graphs,
    ),
    Case(
        "autoware_ml_93",
        "Block",
        "tier4/autoware-ml#93",
        "weights-wrong",
        known_as=("length-dependent",),
        options=sizes(channels=32, num_heads=4, patch_size=5),
        example=_voxels,
    ),
    Case(
        "transformers_4499",
        "T5Decoder",
        "huggingface/transformers#4499",
        "weights-wrong",
        known_as=("mask-unused", "padding-leak"),
        options={
            "causal": True,
            **sizes(
                vocab_size=50,
                d_model=32,
                d_kv=8,
                d_ff=48,
                num_layers=2,
                num_heads=4,
                output_attentions=True,
            ),
        },
    ),
)


@proves("nnformer_88")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, skip, up = made(module.WindowAttention_kv, C, (2, 2, 2), H), tokens(B, 8, C), tokens(B, 8, C)
    with torch.no_grad():
        m.relative_position_bias_table += tokens(27, H)  # as after some steps of training
    places = torch.cartesian_prod(*[torch.arange(2)] * 3)
    s, h, w = (places[:, None] - places + 1).unbind(-1)
    bias = m.relative_position_bias_table.view(3, 3, 3, H)[s, h, w].permute(2, 0, 1)
    k, v = m.kv(up).chunk(2, -1)
    return m(skip, up), m.proj(attended(skip, k, v, bias))


@proves("attention_gym_86")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, C, H), tokens()
    distances = torch.arange(T)[:, None] - torch.arange(T)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).double()[:, None, None]
    bias = (-slopes * distances).masked_fill(~CAUSAL, -torch.inf)
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.out(attended(q, k, v, bias))


@proves("swin_transformer_v2_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, window = made(module.WindowMultiHeadAttention, C, 2, H), tokens(B, C, 2, 2)
    q, k, v = (heads(part) for part in m.mapping_qkv(window.flatten(2).mT).chunk(3, -1))
    bias = m.meta_network(m.relative_coordinates_log).permute(2, 0, 1)
    cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    out = m.projection(merged((cosines / m.tau + bias).softmax(-1) @ v))
    return m(window), out.mT.reshape(B, C, 2, 2)


@proves("hunyuandit_247")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, prompt = made(module.CrossAttention, C, 12, H), tokens(), tokens(B, T, 12)
    k, v = m.kv_proj(prompt).unflatten(-1, (2, H, 4)).permute(2, 0, 3, 1, 4)
    q = rotated(m.q_norm(heads(m.q_proj(x))), interleaved=True)
    context = F.scaled_dot_product_attention(q, m.k_norm(k), v, attn_mask=REAL[:, None, None])
    return m(x, prompt, REAL), m.out_proj(merged(context))


@proves("mlx_3071")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, 24, 6), tokens(B, T, 24)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]).double()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    bias = (slopes[:, None, None] * distances).masked_fill(~CAUSAL, float("-inf"))
    q, k, v = (heads(project(x), 6) for project in (m.query_proj, m.key_proj, m.value_proj))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m(x), m.out_proj(merged(context))


@proves("pygat_16")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpGraphAttentionLayer, C, 5), tokens(T, C)
    adjacent = (torch.rand(T, T) < 0.5) | torch.eye(T, dtype=torch.bool)
    h = x @ m.W
    scores = F.leaky_relu(h @ m.a[0, :5, None] + h @ m.a[0, 5:], 0.2)
    weights = scores.masked_fill(~adjacent, float("-inf")).softmax(-1)
    return m(x, adjacent), F.elu(weights @ h)


@proves("octo_75")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, task = made(module.BlockTransformer, C, H), tokens(B, 2, C)
    obs, readout = tokens(B, 2, 3, C), tokens(B, 2, 2, C)
    without = m(task, obs, readout[:, :, :0])  # no task and no observation looks at a readout
    return torch.cat([out.flatten(1) for out in m(task, obs, readout)[:2]], 1), torch.cat(
        [out.flatten(1) for out in without[:2]], 1
    )


@proves("tt_metal_42891")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.BeitSdpaSelfAttention, C, H, (2, 3)), tokens(B, 7, C)
    with torch.no_grad():
        m.relative_position_bias.relative_position_bias_table += tokens(18, H)  # as after training
    q, k, v = (heads(project(x)) for project in (m.query, m.key, m.value))
    bias = m.relative_position_bias()
    return m(x), merged(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


@proves("aprender_2143")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiSelfAttention, C, H), tokens()
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).double()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    bias = (slopes[:, None, None] * distances).masked_fill(~CAUSAL, float("-inf"))
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m(x), m.proj(merged(context))


@proves("attention_mechanism_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.cbam, C, 4, 3), tokens(B, C, 4, 4)
    gate = (m.ca.mlp(x.mean((2, 3))) + m.ca.mlp(x.amax((2, 3)))).sigmoid()
    y = x * gate[..., None, None]
    pooled = torch.stack([y.mean(1), y.amax(1)], 1)
    return m(x), y * m.sa.conv(pooled).sigmoid()


@proves("retnet_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiScaleRetention, C, H, chunk_size=2), tokens()
    distances, outs = torch.arange(T)[:, None] - torch.arange(T), []
    for r in m.retentions:
        decay = torch.where(CAUSAL, r.gamma ** distances.clamp(min=0).double(), 0.0)
        outs.append(((x @ r.W_Q) @ (x @ r.W_K).mT * decay) @ (x @ r.W_V))
    y = m.group_norm(torch.cat(outs, -1).flatten(0, 1)).unflatten(0, (B, T))
    return m(x), (F.silu(x @ m.W_G) * y) @ m.W_O


@proves("ccnet_105")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CrissCrossAttention3D, C), tokens(2, C, 3, 4, 2)
    torch.nn.init.ones_(m.gamma)
    places = torch.cartesian_prod(*(torch.arange(n) for n in x.shape[2:]))
    # Voxels on a common line differ in at most one coordinate.
    keep = (places[:, None] != places).sum(-1) < 2
    q, k, v = (c(x).flatten(2).mT for c in (m.query_conv, m.key_conv, m.value_conv))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=1.0)
    return m(x), x + context.mT.unflatten(2, x.shape[2:])


@proves("timm_2438")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    for height, width, shift in ((7, 5, 2), (5, 8, 1), (6, 7, 0), (8, 4, 2)):
        m, x = made(module.SwinTransformerV2Block, C, H, 4, shift), tokens(2, height, width, C)
        a, pixels = m.attn, x.flatten(1, 2)
        places = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        # The windows are those of an endless grid that is moved by the shift.
        windows = (places - shift).div(4, rounding_mode="floor")
        keep = (windows[:, None] == windows).all(-1)
        away = (places[:, None] - places).float() / 3 * 8
        away = away.sign() * (away.abs() + 1).log2() / 3
        q, k, v = (heads(y) for y in a.qkv(pixels).chunk(3, -1))
        bias = 16 * a.cpb_mlp(away.double()).sigmoid().permute(2, 0, 1)
        scale = a.logit_scale.clamp(max=math.log(100)).exp()
        scores = torch.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
        weights = (scores * scale + bias).masked_fill(~keep, -torch.inf).softmax(-1)
        y = pixels + m.norm1(a.proj(merged(weights @ v)))
        actual.append(m(x).flatten())
        expected.append((y + m.norm2(m.mlp(y))).flatten())
    return torch.cat(actual), torch.cat(expected)


@proves("spektral_299")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GATNet, C, 5, 4, H), tokens()
    weights = torch.rand(B, T, T, dtype=torch.float64) * 2 * (torch.rand(B, T, T) < 0.4)

    def convolved(conv: Any, x: Tensor, a: Tensor) -> Tensor:
        rows = []
        # One node at a time, and its neighbours and itself alone.
        for i in range(T):
            near = [j for j in range(T) if j == i or a[i, j] > 0]
            h = torch.einsum("nf,fhc->hnc", x, conv.kernel)
            mine = (h[:, i] * conv.attn_kernel_self[..., 0].mT).sum(-1)
            theirs = (h[:, near] * conv.attn_kernel_neighs[..., 0].mT[:, None]).sum(-1)
            weight = F.leaky_relu(mine[:, None] + theirs, 0.2).softmax(-1)
            rows.append((weight[..., None] * h[:, near]).sum(1))
        return torch.stack(rows)

    graphs = []
    for row, a in zip(x, weights, strict=True):
        y = F.elu(convolved(m.conv1, row, a).flatten(1) + m.conv1.bias)
        graphs.append(convolved(m.conv2, y, a).mean(1) + m.conv2.bias)
    return m([x, weights]), torch.stack(graphs)


@proves("autoware_ml_93")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, actual, expected = made(module.Block, C, H, 5), [], []
    for count in (3, 10, 13):
        places = torch.randperm(64)[:count]
        coord = torch.stack([places // 16, places // 4 % 4, places % 4], dim=-1)
        bits = [
            (coord[:, axis] >> bit & 1) << 3 * bit + axis for bit in range(2) for axis in range(3)
        ]
        order, x = torch.stack(bits).sum(0).argsort(), tokens(count, C)
        q, k, v = m.attn.qkv(m.norm1(x)).chunk(3, -1)
        context = torch.zeros_like(x)
        for start in range(0, count, 5):
            # The last window reaches back, so that it is as long as the others.
            window = order[max(0, min(start, count - 5)) : start + 5]
            mine = order[start : start + 5]
            context[mine] = attended(q[mine][None], k[window][None], v[window][None])[0]
        y = x + m.attn.proj(context)
        actual.append(m(x, coord))
        expected.append(y + m.mlp(m.norm2(y)))
    return torch.cat(actual), torch.cat(expected)


@proves("transformers_4499")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    # One source at a time, without its padding. The distances are less than the exact buckets.
    distances = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    for output_attentions in (False, True):
        m = made(module.T5Decoder, 20, C, 5, 24, 3, H, output_attentions)
        ids, states = torch.randint(0, 20, (B, T)), tokens()
        actual.append(m(ids, states, REAL.long())[0])
        bias = m.block[0].SelfAttention.relative_attention_bias(distances).permute(2, 0, 1)
        bias = bias.masked_fill(~CAUSAL, -torch.inf)
        rows = []
        for row, real in enumerate(REAL):
            x, y = m.embed_tokens(ids[row])[None], states[row, real][None]
            for block in m.block:
                for a, norm, keep in (
                    (block.SelfAttention, block.layer_norms[0], bias),
                    (block.EncDecAttention, block.layer_norms[1], None),
                ):
                    z = norm(x)
                    read = z if keep is not None else y
                    q, k, v = heads(a.q(z)), heads(a.k(read)), heads(a.v(read))
                    out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=1.0)
                    x = x + a.o(merged(out))
                x = x + block.wo(block.wi(block.layer_norms[2](x)).relu())
            rows.append(m.final_layer_norm(x))
        expected.append(torch.cat(rows))
    return torch.stack(actual), torch.stack(expected)
