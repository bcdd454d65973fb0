"""Known bugs of calls that fail or depend on how the inputs are laid out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, image, sizes
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


def _word_and_states() -> tuple[Any, ...]:
    """Return the last words of 2 translations, the states of the decoder, and the outputs of the encoder."""
    states = torch.randn(1, 2, 16), torch.randn(1, 2, 16)
    return torch.tensor([[3], [7]]), states, torch.randn(2, 5, 16)


def _tall_image() -> tuple[Any, ...]:
    """Return two feature maps of 6 × 4 pixels."""
    return (torch.randn(2, 16, 6, 4),)


def _clicks() -> tuple[Any, ...]:
    """Return the clicks of two users, where there is none, and which ones are in the future."""
    x = torch.randn(2, 6, 16)
    return (
        x,
        x,
        torch.arange(6) < torch.tensor([[0], [2]]),
        ~torch.ones(6, 6, dtype=torch.bool).tril(),
    )


def _tall() -> tuple[Any, ...]:
    """Return two feature maps of 6 × 4 pixels, channels last."""
    return (torch.randn(2, 6, 4, 16),)


def _packed_images() -> tuple[Any, ...]:
    """Return the patches of two images, where they begin and end, and the angles of the patches."""
    return torch.randn(9, 32), torch.tensor([0, 5, 9]), torch.randn(9, 4)


def _queries_and_memory() -> tuple[Any, ...]:
    """Return queries, keys, values and which keys each query may look at."""
    memory = torch.randn(2, 7, 32)
    return torch.randn(2, 5, 32), memory, memory, torch.ones(2, 5, 7)


def _pixels_and_prompts() -> tuple[Any, ...]:
    """Return two images of 9 pixels, and the 5 tokens of their texts with the 4 tokens of their images."""
    return torch.randn(2, 9, 32), torch.randn(2, 9, 24)


def _translation() -> tuple[Any, ...]:
    """Return 6 words so far, 5 words of the encoder, and the causal mask."""
    return torch.randn(2, 6, 32), torch.randn(2, 5, 32), torch.ones(1, 6, 6).tril()


def _series() -> tuple[Any, ...]:
    """Return two series of 8 steps that attend to series of 12 steps."""
    past = torch.randn(2, 12, 32)
    return torch.randn(2, 8, 32), past, past


def _captions() -> tuple[Any, ...]:
    """Return the features of two images, their captions, and how long these are."""
    words = torch.arange(7) < torch.tensor([7, 5])[:, None]
    return torch.randn(2, 4, 4, 16), torch.randint(1, 50, (2, 7)) * words, torch.tensor([7, 5])


def _grids() -> tuple[Any, ...]:
    """Return two grids of 6 latitudes and 8 longitudes."""
    return (torch.randn(2, 6, 8, 16),)


CASES = (
    Case(
        "olmo_521",
        "OLMoSequentialBlock",
        "allenai/OLMo#521",
        "crashes",
        options={"causal": True},
    ),
    Case(
        "llama_899",
        "Attention",
        "meta-llama/llama#899",
        "crashes",
        known_as=("cache-mismatch", "causal-alignment"),
        options={"causal": True},
    ),
    Case(
        "attention_seq2seq_6",
        "BahdanauDecoder",
        "gabrielloye/Attention_Seq2seq-Translation#6",
        "crashes",
        known_as=("batch-mixed",),
        options=sizes(hidden_size=16, output_size=20),
        example=_word_and_states,
    ),
    Case(
        "paddlenlp_7882",
        "LlamaAttention",
        "PaddlePaddle/PaddleNLP#7882",
        "crashes",
        known_as=("length-dependent", "rotary-mismatch"),
        options={"causal": True},
    ),
    Case(
        "xformers_66",
        "ScaledDotProduct",
        "facebookresearch/xformers#66",
        "length-dependent",
        known_as=("crashes",),
        options={"causal": True},
    ),
    Case(
        "pytorch_nlp_90",
        "Attention",
        "PetrochukM/PyTorch-NLP#90",
        "stride-dependent",
        known_as=("crashes",),
    ),
    Case(
        "x_transformers_165",
        "Attention",
        "lucidrains/x-transformers#165",
        "undefined-or-global-name",
        known_as=("crashes",),
        options=sizes(dim=32, sparse_topk=2),
    ),
    Case(
        "linear_attention_mechanism_2",
        "PositionLinearAttention",
        "lironui/Linear-Attention-Mechanism#2",
        "crashes",
        known_as=("length-dependent",),
        options=sizes(in_places=16),
        example=_tall_image,
    ),
    Case(
        "tiny_universe_21",
        "Qwen2Attention",
        "datawhalechina/tiny-universe#21",
        "crashes",
        known_as=("group-order", "heads-mixed-split"),
        options={"causal": True},
    ),
    Case(
        "tisasrec_2",
        "TimeAwareMultiHeadAttention",
        "pmixer/TiSASRec.pytorch#2",
        "crashes",
        known_as=("mask-broadcast",),
        options=sizes(hidden_size=16, head_num=2),
        example=_clicks,
    ),
    Case(
        "rf_detr_148",
        "WindowedSelfAttention",
        "roboflow/rf-detr#148",
        "crashes",
        known_as=("length-dependent",),
        options=sizes(hidden_size=16, num_heads=4),
        example=_tall,
    ),
    Case(
        "videollama3_55",
        "VisionSdpaAttention",
        "DAMO-NLP-SG/VideoLLaMA3#55",
        "undefined-or-global-name",
        known_as=("crashes",),
        options=sizes(hidden_size=32, num_attention_heads=4),
        example=_packed_images,
    ),
    Case(
        "cs249r_book_1875",
        "MultiHeadAttention",
        "harvard-edge/cs249r_book#1875",
        "crashes",
        known_as=("mask-broadcast", "length-dependent"),
        options=sizes(embed_dim=32, num_heads=4),
        example=_queries_and_memory,
    ),
    Case(
        "vllm_13686",
        "Olmo2Attention",
        "vllm-project/vllm#13686",
        "crashes",
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, num_kv_heads=2)},
    ),
    Case(
        "video_crafter_38",
        "CrossAttention",
        "AILab-CVC/VideoCrafter#38",
        "crashes",
        known_as=("heads-mixed-merge",),
        options=sizes(
            query_dim=32,
            context_dim=24,
            heads=4,
            dim_head=8,
            img_cross_attention=True,
            text_context_length=5,
        ),
        example=_pixels_and_prompts,
    ),
    Case(
        "reclearn_54",
        "MultiHeadAttention",
        "ZiyaoGeng/RecLearn#54",
        "crashes",
        known_as=("mask-broadcast",),
        options={"causal": True, **sizes(d_model=32, num_heads=4)},
    ),
    Case(
        "nlp_torchtext_2",
        "DecoderLayer",
        "rexrex9/nlp_torchtext#2",
        "crashes",
        known_as=("future-leak", "context-wrong", "keys-values-swapped"),
        options={"causal": True, **sizes(e_dim=32, h_dim=8, n_heads=4)},
        example=_translation,
    ),
    Case(
        "long_short_transformer_2",
        "LongShortAttention",
        "lucidrains/long-short-transformer#2",
        "crashes",
        known_as=("mask-broadcast",),
        options=sizes(dim=32, heads=4, dim_head=8, window_size=4, r=2),
    ),
    Case(
        "time_series_library_209",
        "AutoCorrelationLayer",
        "thuml/Time-Series-Library#209",
        "crashes",
        options=sizes(d_model=32, n_heads=4, seq_len_q=8, seq_len_kv=12, modes=3),
        example=_series,
    ),
    Case(
        "diffusers_3207",
        "AttentionBlock",
        "huggingface/diffusers#3207",
        "crashes",
        known_as=("heads-mixed-merge", "batch-mixed"),
        options=sizes(channels=16, num_head_channels=4, norm_num_groups=4),
        example=image,
    ),
    Case(
        "pytorch_implementations_1",
        "DecoderWithAttention",
        "jaygala24/pytorch-implementations#1",
        "undefined-or-global-name",
        known_as=("crashes",),
        options=sizes(attention_dim=12, embed_dim=8, decoder_dim=24, vocab_size=50, encoder_dim=16),
        example=_captions,
    ),
    Case(
        "gridded_tnp_3",
        "SWINAttentionLayer",
        "cambridge-mlg/gridded-tnp#3",
        "crashes",
        known_as=("length-dependent",),
        options=sizes(
            embed_dim=16, num_heads=2, head_dim=8, feedforward_dim=32, window_sizes=(4, 4)
        ),
        example=_grids,
    ),
    Case(
        "lightning_attention_28",
        "NormLinearAttention",
        "OpenNLPLab/lightning-attention#28",
        "length-dependent",
        known_as=("output-not-finite",),
        options={
            "causal": True,
            **sizes(embed_dim=32, hidden_dim=32, num_heads=4, block=4),
        },
    ),
)


@proves("olmo_521")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.OLMoSequentialBlock, module.ModelConfig(C, H)), tokens()
    q, k, v = m.att_proj(m.attn_norm(x)).chunk(3, -1)
    return m(x), x + m.attn_out(attended(m.q_norm(q), m.k_norm(k), v, CAUSAL))


@proves("llama_899")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H), tokens()
    expected = m.wo(attended(m.wq(x), m.wk(x), m.wv(x), CAUSAL))
    return torch.cat([m(x[:, :4]), m(x[:, 4:], 4)], 1), expected


@proves("attention_seq2seq_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.BahdanauDecoder, C, 20), torch.randint(0, 20, (B, 1))
    hidden, encoded = (tokens(1, B, C), tokens(1, B, C)), tokens(B, B, C)
    alone = [
        m(words[[i]], (hidden[0][:, [i]], hidden[1][:, [i]]), encoded[[i]])[0] for i in range(B)
    ]
    return m(words, hidden, encoded)[0], torch.cat(alone)


@proves("paddlenlp_7882")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaAttention, C, H), tokens()
    q, k = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x)))
    context = F.scaled_dot_product_attention(q, k, heads(m.v_proj(x)), is_causal=True)
    return m(x), m.o_proj(merged(context))


@proves("xformers_66")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, q, k, v = made(module.ScaledDotProduct, seq_len=9), tokens(), tokens(), tokens()
    return m(q, k, v), F.scaled_dot_product_attention(q, k, v, CAUSAL)


@proves("pytorch_nlp_90")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.Attention, C), tokens(4, B, C).transpose(0, 1), tokens()
    return m(x, y)[0], m(x.contiguous(), y)[0]


@proves("x_transformers_165")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, H, sparse_topk=2), tokens()
    scores = heads(m.to_q(x)) @ heads(m.to_k(x)).mT
    kept = torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, 1.0) > 0
    weights = (scores / 5**0.5).masked_fill(~kept, -torch.inf).softmax(-1)
    return m(x), m.to_out(merged(weights @ heads(m.to_v(x))))


@proves("linear_attention_mechanism_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.PositionLinearAttention, C), tokens(B, C, 3, 4)
    with torch.no_grad():
        m.gamma += 1.0  # as after some steps of training
    q, k = (F.normalize(conv(image).flatten(2).mT, dim=-1) for conv in (m.query_conv, m.key_conv))
    weights = 1 + q @ k.mT
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6 * q.sum(-1, keepdim=True))
    context = weights @ m.value_conv(image).flatten(2).mT
    return m(image), image + context.mT.reshape(B, C, 3, 4)


@proves("tiny_universe_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Qwen2Attention, module.Qwen2Config(C)), tokens()
    q, k = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x), 2))
    k, v = (part.repeat_interleave(2, 1) for part in (k, heads(m.v_proj(x), 2)))
    return m(x), m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


@proves("tisasrec_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.TimeAwareMultiHeadAttention, C, H), tokens(), REAL.flip(1)
    context = attended(m.Q_w(x), m.K_w(x), m.V_w(x), CAUSAL)
    return m(x, x, ~real, ~CAUSAL)[real], context[real]


@proves("rf_detr_148")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.WindowedSelfAttention, C, H), tokens(B, 6, 4, C)
    expected = torch.zeros_like(image)
    for i, j in ((i, j) for i in (0, 3) for j in (0, 2)):
        x = image[:, i : i + 3, j : j + 2].flatten(1, 2)
        out = m.dense(attended(m.query(x), m.key(x), m.value(x)))
        expected[:, i : i + 3, j : j + 2] = out.view(B, 3, 2, C)
    return m(image), expected


@proves("videollama3_55")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, patches, angles = made(module.VisionSdpaAttention, C, H), tokens(9, C), tokens(9, 2)
    q, k, v = (project(patches).view(9, H, 4) for project in (m.q_proj, m.k_proj, m.v_proj))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    q, k = (
        torch.view_as_real(torch.complex(*x.contiguous().chunk(2, -1)) * turn).mT.flatten(-2)
        for x in (q, k)
    )
    same = torch.arange(9) < 5
    same = same[:, None] == same
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    expected = m.out_proj(context.transpose(0, 1).flatten(1))
    try:
        return m(patches, torch.tensor([0, 5, 9]), angles), expected
    except AttributeError:
        return torch.full_like(expected, float("nan")), expected


@proves("cs249r_book_1875")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, memory = made(module.MultiHeadAttention, C, H), tokens(), tokens(B, 5, C)
    keep = torch.ones(T, 5).tril().expand(B, T, 5)
    context = attended(m.q_proj(x), m.k_proj(memory), m.v_proj(memory), keep[0].bool())
    return m(x, memory, memory, keep), m.out_proj(context)


@proves("vllm_13686")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Olmo2Attention, C, H, 2), tokens()
    q, k, v = m.qkv_proj(x).split([C, 8, 8], -1)
    q, k = rotated(heads(m.q_norm(q))), rotated(heads(m.k_norm(k), 2))
    context = F.scaled_dot_product_attention(q, k, heads(v, 2), attn_mask=CAUSAL, enable_gqa=True)
    return m(x), m.o_proj(merged(context))


@proves("video_crafter_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CrossAttention, C, 5, H, 4, 0.0, True, 7, 0.5)
    x, text, image = tokens(), tokens(B, 7, 5), tokens(B, 4, 5)
    q = m.to_q(x)
    by_text = attended(q, m.to_k(text), m.to_v(text))
    by_image = attended(q, m.to_k_ip(image), m.to_v_ip(image))
    return m(x, torch.cat([text, image], 1)), m.to_out(by_text + by_image / 2)


@proves("reclearn_54")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    keep = CAUSAL & REAL[:, None, None]
    q, k, v = (heads(project(x)) for project in (m.wq, m.wk, m.wv))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return m(x, x, x, REAL), merged(context)


@proves("nlp_torchtext_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.DecoderLayer, C, 4, H), tokens(), tokens()

    def multi_head(layer: Any, x: Tensor, memory: Tensor, keep: Tensor | None = None) -> Tensor:
        q = torch.cat([head.lQ(x) for head in layer.atte_layers], -1)
        k = torch.cat([head.lK(memory) for head in layer.atte_layers], -1)
        v = torch.cat([head.lV(memory) for head in layer.atte_layers], -1)
        return layer.l(attended(q, k, v, keep))

    y = m.sa_LN(x + multi_head(m.self_attention, x, x, CAUSAL))
    y = m.ia_LN(y + multi_head(m.interactive_attention, y, source))
    return m(x, source, CAUSAL[None]), m.ff_LN(y + m.ff_layer(y))


@proves("long_short_transformer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.LongShortAttention, dim=C, heads=H, dim_head=4, window_size=2, r=2)
    x, counts = tokens(), REAL.sum(1)
    alone = [m(x[[i], : counts[i]])[0] for i in range(B)]
    return m(x, mask=REAL)[REAL], torch.cat(alone)


@proves("time_series_library_209")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, past = made(module.AutoCorrelationLayer, C, H, T, 8, 3), tokens(), tokens(B, 8, C)
    inner = m.inner_correlation
    q = torch.fft.rfft(m.query_projection(x), dim=1)[:, :3].unflatten(-1, (H, -1))
    k = torch.fft.rfft(m.key_projection(past), dim=1)[:, :3].unflatten(-1, (H, -1))
    v = torch.fft.rfft(m.value_projection(past), dim=1)[:, :3].unflatten(-1, (H, -1))
    scores = torch.einsum("bxhe,byhe->bhxy", q, k)
    scores = torch.complex(scores.real.tanh(), scores.imag.tanh())
    weights = torch.complex(inner.weights1, inner.weights2) / C**2
    out = torch.einsum("bhxy,byhe,heox->bxho", scores, v, weights).flatten(2)
    return m(x, past, past), m.out_projection(torch.fft.irfft(F.pad(out, (0, 0, 0, 1)), n=T, dim=1))


@proves("diffusers_3207")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionBlock, C, 4, 2), tokens(B, C, 2, 3)
    h = m.group_norm(x).flatten(2).mT
    context = m.proj_attn(attended(m.query(h), m.key(h), m.value(h)))
    return m(x), x + context.mT.reshape(x.shape)


@proves("pytorch_implementations_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.DecoderWithAttention, 12, 8, 24, 50, encoder_dim=C)
    images, captions = tokens(B, 3, 3, C), torch.randint(1, 50, (B, T))
    lengths = REAL.sum(-1)
    predictions, alphas = m(images, captions, lengths)
    expected, weights = torch.zeros_like(predictions), torch.zeros_like(alphas)
    # One image at a time.
    for i, length in enumerate(lengths.tolist()):
        pixels, a = images[i].flatten(0, 1), m.attention
        h, c = m.init_h(pixels.mean(0)), m.init_c(pixels.mean(0))
        for t in range(length - 1):
            scores = F.relu(a.encoder_att(pixels) + a.decoder_att(h)) @ a.full_att.weight[0]
            weights[i, t] = scores.softmax(-1)
            context = torch.sigmoid(m.f_beta(h)) * (weights[i, t].clone() @ pixels)
            h, c = m.decode_step(torch.cat([m.embedding(captions[i, t]), context]), (h, c))
            expected[i, t] = m.fc(h)
    return torch.cat([predictions, alphas], -1), torch.cat([expected, weights], -1)


@proves("gridded_tnp_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SWINAttentionLayer, C, H, 4, 24, (3, 4), (1, 2)), tokens(2, 7, 8, C)
    y = x
    # The grid starts after one row of padding. Tokens see each other if their windows are the same.
    for attn, ff, (down, right) in zip(m.attns, m.ff_blocks, ((0, 0), (1, 2)), strict=True):
        row, column = (torch.arange(7) + 1 - down) // 3, (torch.arange(8) - right) // 4
        window = (row[:, None] * 10 + column).flatten()
        z = attn.norm(y).flatten(1, 2)
        q, k, v = (heads(t) for t in attn.fn.to_qkv(z).chunk(3, -1))
        keep = window[:, None] == window
        context = merged(F.scaled_dot_product_attention(q, k, v, keep))
        y = y + attn.fn.to_out(context).unflatten(1, (7, 8))
        y = y + ff(y)
    return m(x), y


@proves("lightning_attention_28")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.NormLinearAttention, C, C, H, block=4), tokens()
    q, k, v, u = m.qkvu_proj(x).chunk(4, -1)
    back = (torch.arange(T)[:, None] - torch.arange(T)).double()
    decay = (-m.slope_rate[:, None, None] * back).exp() * CAUSAL
    weights = F.silu(heads(q)) @ F.silu(heads(k)).mT * decay
    context = merged(weights @ heads(v))
    size = context.square().mean(-1, keepdim=True).sqrt() + 1e-6
    return m(x), m.out_proj(u * context / size)
