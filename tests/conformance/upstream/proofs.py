"""What each re-created bug gets wrong, in numbers: what a module computes, and what it should compute.

A proof does not use the check. Most compare a module with torch's scaled_dot_product_attention on the module's own
projections; the others compare two calls that must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Proof = Callable[[Any], tuple[Tensor, Tensor]]
PROOFS: dict[str, Proof] = {}

B, T, C, H = 3, 6, 16, 4
REAL = torch.arange(T) < torch.tensor([T, 4, 3])[:, None]
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def proves(name: str) -> Callable[[Proof], Proof]:
    """Register a proof under the name of its case."""

    def register(proof: Proof) -> Proof:
        PROOFS[name] = proof
        return proof

    return register


def difference(name: str, module: ModuleType) -> float:
    """Return how far a version of a case is from what it should compute; infinity if it raises or returns NaN."""
    torch.manual_seed(0)
    try:
        actual, expected = PROOFS[name](module)
    except (RuntimeError, NameError):
        return float("inf")
    return float((actual - expected).detach().abs().max().nan_to_num(nan=float("inf")))


def made(definition: type[nn.Module], *args: Any, **kwargs: Any) -> Any:
    """Build a module in float64 and in eval mode."""
    return definition(*args, **kwargs).double().eval()


def tokens(*shape: int) -> Tensor:
    """Return random tokens in float64."""
    return torch.randn(*(shape or (B, T, C)), dtype=torch.float64)


def heads(x: Tensor, count: int = H) -> Tensor:
    """Split (B, T, H·D) into heads."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """Merge the heads."""
    return x.transpose(1, 2).flatten(2)


def attended(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, count: int = H) -> Tensor:
    """Attend with heads split from projected queries, keys and values; `keep` is of shape (B, Tk) or (Tq, Tk)."""
    if keep is not None and keep.shape[0] == B:
        keep = keep[:, None, None, :]
    q, k, v = (heads(x, count) for x in (q, k, v))
    return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep))


def rotated(x: Tensor, start: int = 0, interleaved: bool = False) -> Tensor:
    """Rotate (..., T, D) by the positions from `start` on."""
    half = x.shape[-1] // 2
    positions = torch.arange(start, start + x.shape[-2], dtype=torch.float32)
    angles = torch.outer(positions, 10000.0 ** -(torch.arange(half).float() / half)).double()
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    pairs = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    )
    return torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)


def in_steps(call: Callable[..., tuple[Tensor, Any]], x: Tensor) -> Tensor:
    """Return the outputs of consecutive calls, each with the cache of the call before."""
    first, cache = call(x[:, :3], None)
    second, cache = call(x[:, 3:5], cache)
    third, _ = call(x[:, 5:], cache)
    return torch.cat([first, second, third], dim=1)


# --- scale -------------------------------------------------------------------------------------------


@proves("vit_pytorch_65")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, heads=H, dim_head=9), tokens()
    return m(x), m.to_out(attended(*m.to_qkv(x).chunk(3, -1)))


@proves("ng_video_lecture_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, 8), tokens(B, T, 32)
    each = [
        F.scaled_dot_product_attention(h.query(x), h.key(x), h.value(x), CAUSAL) for h in m.heads
    ]
    return m(x), m.proj(torch.cat(each, -1))


@proves("vit_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    q, k, v = m.qkv(x).unflatten(-1, (-1, 3)).unbind(-1)
    return m(x), m.projection(attended(q, k, v))


@proves("machine_learning_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, H), tokens(), tokens()
    expected = m.output(attended(m.query(x), m.key(y), m.value(y), REAL))
    return m(x, y, y, REAL[:, None, None]), expected


@proves("perceiver_io_9")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, 20, C), tokens(), tokens(B, T, 20)
    return m(y, x, REAL), m.projection(attended(m.q(x), m.k(y), m.v(y), REAL))


# --- softmax -----------------------------------------------------------------------------------------


@proves("labml_146")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AttentionBlock, C, 2, 5), tokens(B, C, 3, 4)
    x = image.flatten(2).transpose(1, 2)
    q, k, v = (part.flatten(2) for part in m.projection(x).unflatten(-1, (2, -1)).chunk(3, -1))
    y = m.output(attended(q, k, v, count=2)) + x
    return m(image), y.transpose(1, 2).unflatten(-1, (3, 4))


@proves("fastnlp_254")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, 5, 7, H), tokens(), tokens()
    return m(x, y, y, ~REAL), m.out(attended(m.q_in(x), m.k_in(y), m.v_in(y), REAL))


@proves("pytorch_nlp_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.Attention, C), tokens(B, 4, C), tokens()
    query = m.linear_in(x)
    mix = F.scaled_dot_product_attention(query, y, y, scale=1.0)
    return m(x, y)[0], m.linear_out(torch.cat([mix, query], -1)).tanh()


@proves("rendezvous_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHMA, C, H), tokens()
    return m(x), m.concat(attended(m.to_query(x), m.to_key(x), m.to_value(x)))


# --- heads -------------------------------------------------------------------------------------------


@proves("fuxictr_30")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadSelfAttention, C, C, H), tokens()
    return m(x), attended(m.W_q(x), m.W_k(x), m.W_v(x))


@proves("transformer_from_scratch_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    q, k, v = (part.flatten(2) for part in m.qkv_proj(x).unflatten(-1, (H, -1)).chunk(3, -1))
    return m(x, REAL), m.o_proj(attended(q, k, v, REAL))


@proves("opacus_825")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.DPMultiheadAttention, C, H, batch_first=True), tokens(), tokens()
    return m(x, y, y), m.out_proj(attended(m.qlinear(x), m.klinear(y), m.vlinear(y)))


@proves("positional_encodings_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, H), tokens(), tokens()
    expected = m.out_proj(attended(m.query_proj(x), m.key_proj(y), m.value_proj(y)))
    return m(x, y, y), expected


@proves("onnx_7274")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GroupedQueryAttention, C, 4, 2), tokens()
    q, k, v = heads(m.q_proj(x), 4), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m(x), m.o_proj(merged(context))


@proves("omdet_19")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerLayer, C, H), tokens()
    return m(x), torch.cat([m(row[None]) for row in x])


@proves("pytorch_nlp_90")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.Attention, C), tokens(4, B, C).transpose(0, 1), tokens()
    return m(x, y)[0], m(x.contiguous(), y)[0]


# --- dropout -----------------------------------------------------------------------------------------


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


@proves("informer_97")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionLayer, C, H, attention_dropout=0.5).train(), tokens()
    q, k, v = (heads(p(x)) for p in (m.query_projection, m.key_projection, m.value_projection))
    torch.manual_seed(1)
    actual = m(x)
    torch.manual_seed(1)
    weights = (q @ k.mT / 2.0).masked_fill(~CAUSAL, -torch.inf).softmax(-1)
    return actual, m.out_projection(merged(F.dropout(weights, 0.5) @ v))


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


# --- masks -------------------------------------------------------------------------------------------


@proves("timm_2236")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EvaAttention, C, H), tokens()
    return m(x, REAL), m.proj(attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), REAL))


@proves("flamingo_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, media = (
        made(module.MaskedCrossAttention, dim=C, dim_head=4, heads=H),
        tokens(),
        tokens(B, 2, 3, C),
    )
    here = torch.zeros(B, T, dtype=torch.bool)
    here[0, 2] = here[1, 0] = here[1, 3] = True
    seen = here.cumsum(-1)
    keep = seen[..., None] == torch.tensor([1, 1, 1, 2, 2, 2])
    k, v = m.to_kv(media.flatten(1, 2)).chunk(2, -1)
    weights = heads(m.to_q(m.norm(x))) @ heads(k).mT / 2.0
    weights = weights.masked_fill(~keep[:, None], -1e300).softmax(-1) * keep[:, None]
    return m(x, media, here), m.to_out(merged(weights @ heads(v)))


@proves("halonet_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.HaloAttention, dim=C, block_size=2, halo_size=1, dim_head=4, heads=H)
    image, corner = tokens(B, C, 4, 4), []
    near = image[:, :, :3, :3].flatten(2).transpose(1, 2)  # what the block in the corner sees
    block = image[:, :, :2, :2].flatten(2).transpose(1, 2)
    corner = m.to_out(attended(m.to_q(block), *m.to_kv(near).chunk(2, -1)))
    return m(image)[:, :, :2, :2].flatten(2).transpose(1, 2), corner


@proves("memory_compressed_attention_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MemoryCompressedAttention, C, H), tokens()
    q, k, v = m.to_qkv(x).chunk(3, -1)
    return m(x), m.to_out(attended(q, k, v, CAUSAL))


@proves("ribonanza_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H, 4, 4), tokens()
    context = attended(m.w_qs(x), m.w_ks(x), m.w_vs(x), REAL)
    expected = m.layer_norm(m.fc(context) + x)
    return m(x, x, x, src_mask=REAL)[0][REAL], expected[REAL]


@proves("gluonts_1401")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x)), m.v_proj(x)[:, None].expand(-1, H, -1, -1)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=REAL[:, None, None]).mean(1)
    return m(x, REAL.long()), m.out_proj(context)


@proves("transformer_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, H), tokens(), tokens()
    expected = m.w_concat(attended(m.w_q(x), m.w_k(y), m.w_v(y), REAL))
    return m(x, y, y, REAL[:, None, None]), expected


@proves("transformer_40")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EncoderSelfAttention, C, H), tokens()
    return m(x, REAL), m.w_concat(attended(m.w_q(x), m.w_k(x), m.w_v(x), REAL))


@proves("transformers_35162")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DebertaSelfAttention, C, H), tokens()
    expected = attended(m.query_proj(x), m.key_proj(x), m.value_proj(x), REAL)
    return m(x, REAL), expected * REAL[..., None]


@proves("qwen_933")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.QWenAttention, C, H), tokens()
    keep = (CAUSAL & REAL[:, None])[:, None]
    q, k, v = (heads(part) for part in m.c_attn(x).chunk(3, -1))
    return m(x, REAL), m.c_proj(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


@proves("clip4clip_22")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.ResidualAttentionBlock, C, H), tokens()
    alone = torch.cat([m(row[None], real[None]) for row, real in zip(x, REAL, strict=True)])
    return m(x, REAL.long()), alone


@proves("attention_keras_36")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, C), tokens()
    expected = m.w_o(attended(m.qs_layer(x), m.ks_layer(x), m.vs_layer(x), REAL))
    return m(x, x, x, REAL[:, None].expand(-1, T, -1)), expected


@proves("nisqa_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, query, y = made(module.Alignment, 12, C), tokens(B, 5, 12), tokens()
    keep = REAL[:, None].expand(-1, 5, -1)
    return m(query, y, REAL.sum(-1))[0], F.scaled_dot_product_attention(m.linear(query), y, y, keep)


@proves("good_features_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionMIL, C), tokens()
    alone = torch.cat(
        [m(row[None, real], real[None, real]) for row, real in zip(x, REAL, strict=True)]
    )
    return m(x, REAL), alone


@proves("text_classifiers_92")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LabelAttentionClassifier, C, 5, H), tokens()
    labels = m.label_embeds.weight.expand(B, -1, -1)
    return m(x, REAL.long()), m.c_proj(attended(m.c_q(labels), m.c_k(x), m.c_v(x), REAL))


@proves("torch_brain_74")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.RotaryCrossAttention, dim=C, heads=H, dim_head=4), tokens(), tokens()
    k, v = m.to_kv(m.norm_context(y)).chunk(2, -1)
    return m(x, y, REAL), m.to_out(attended(m.to_q(m.norm(x)), k, v, REAL))


@proves("apex_1105")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    expected = m.output(attended(m.query(x), m.key(x), m.value(x), REAL))
    actual = copy.deepcopy(m).half()(x.half(), REAL).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("transformer_lens_366")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 4), tokens()
    with torch.no_grad():
        m.W_Q *= 1e6  # scores below −1e5, as in pythia-70m
    q, k, v = (torch.einsum("bpm,hmd->bhpd", x, w) for w in (m.W_Q, m.W_K, m.W_V))
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m(x), torch.einsum("bhqd,hdm->bqm", context, m.W_O) + m.b_O


@proves("opennmt_240")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TransformerDecoderLayer, C, H).to("meta")
    return torch.tensor(float(m.mask.is_meta)), torch.tensor(1.0)


@proves("xformers_66")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, q, k, v = made(module.ScaledDotProduct, seq_len=9), tokens(), tokens(), tokens()
    return m(q, k, v), F.scaled_dot_product_attention(q, k, v, CAUSAL)


# --- windows -----------------------------------------------------------------------------------------


def _windowed(m: Any, x: Tensor, window: int, kv_heads: int = H) -> Tensor:
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), kv_heads), heads(m.v_proj(x), kv_heads)
    keep = CAUSAL.triu(1 - window)
    return m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)))


@proves("transformers_39408")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MistralAttention, C, H, 3), tokens()
    return m(x), _windowed(m, x, 3)


@proves("mlx_lm_390")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 3), tokens()
    return m(x)[0], _windowed(m, x, 3)


@proves("unsloth_8253")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MistralAttention, C, H, 2, 3), tokens()
    return m(x), _windowed(m, x, 3, kv_heads=2)


# --- positions and caches ----------------------------------------------------------------------------


@proves("rotary_embedding_torch_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C), tokens()
    rows, cache = [], None
    for row in x.unbind(1):
        out, cache = m(row[:, None], cache)
        rows.append(out)
    return torch.cat(rows, 1), m(x)[0]


@proves("executorch_2010")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H), tokens()
    steps = torch.cat([m(x[:, :3], 0), m(x[:, 3:5], 3), m(x[:, 5:], 5)], 1)
    return steps, copy.deepcopy(m)(x, 0)


@proves("x_transformers_187")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C), tokens()
    return in_steps(m, x), m(x)[0]


@proves("gpt_neox_1003")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = module.RotaryEmbedding(8).to(torch.bfloat16), tokens(1).bfloat16()
    angles = torch.outer(torch.arange(600.0), m.inv_freq.float())
    return m(x, 600)[0].float().round(decimals=1), torch.cat(
        [angles, angles], -1
    ).cos().bfloat16().float().round(decimals=1)


@proves("modalities_462")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = module.RotaryTransform(32, 4).to(torch.bfloat16), tokens(1, 1, 600, 8).bfloat16()
    angles = torch.outer(torch.arange(600.0), m.inv_freq.float())
    expected = torch.cat([angles, angles], -1).cos().bfloat16().float()
    return m.cos_sin_tables(x)[0][0, 0].float(), expected


def _rotary(m: nn.Module, x: Tensor, names: str, keep: Tensor | None) -> Tensor:
    """Return the context of attention with interleaved rotary embeddings."""
    q, k, v = (heads(getattr(m, name)(x)) for name in names.split())
    q, k = rotated(q, interleaved=True), rotated(k, interleaved=True)
    return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep))


@proves("train_your_gpt_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, 24, H), tokens(B, T, 24)
    return m(x), m.W_o(_rotary(m, x, "W_q W_k W_v", CAUSAL))


@proves("ark_nlp_47")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RoPEAttention, 24, H), tokens(B, T, 24)
    return m(x), m.o_dense(_rotary(m, x, "q_dense k_dense v_dense", None))


@proves("transformers_29583")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.GPT2Attention, C, H), tokens(), REAL.flip(1)
    rows = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(rows)


@proves("open_transformer_25")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedSelfAttentionWithRelPos, H, C), tokens()
    q, v, k = m.qvk_proj(x).chunk(3, -1)
    q = q.unflatten(-1, (H, -1))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    sinusoids = m.positions(x, distances.flatten().float())
    pos = m.pos_proj(sinusoids).view(T, T, H, -1)
    scores = (q + m.posu).transpose(1, 2) @ heads(k).mT
    scores = scores + torch.einsum("bihd,ijhd->bhij", q + m.posv, pos)
    return m(x), m.output_proj(merged((scores / 2.0).softmax(-1) @ heads(v)))


# --- what is used, and gradients ---------------------------------------------------------------------


@proves("lanmt_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.TransformerCrossEncoderLayer, C, H), tokens(), tokens(B, 4, C)
    ones = torch.ones(B, 4)
    h1 = m.attention(*[m.layer_norm1(x)] * 3, mask=REAL) + x
    h2 = h1 + m.cross_attention(m.layer_norm2(h1), y, y, mask=ones)
    return m(x, REAL, y, ones), m.ff_layer(m.layer_norm3(h2)) + h2


@proves("audiolm_265")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBlock, C), tokens()
    y = m.attn(x) + x
    return m(x), m.ff(y) + y


@proves("a_gcn_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionGraphConvolution, C, C), tokens()
    direction, step = torch.randn_like(m.w_phi.weight), 1e-6
    loss = m(x).sum()
    gradient = torch.autograd.grad(loss, m.w_phi.weight, allow_unused=True)[0]
    with torch.no_grad():
        m.w_phi.weight += step * direction
        slope = (m(x).sum() - loss) / step
    actual = torch.zeros(()) if gradient is None else (gradient * direction).sum()
    close = (actual - slope).abs() < 1e-4 * (1 + slope.abs())
    return torch.where(close, slope, actual), slope
