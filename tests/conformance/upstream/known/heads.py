"""Known bugs that mix heads, channels or batch entries."""

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


def _video() -> tuple[Any, ...]:
    """Return a video of 3 frames of 4 × 4 pixels."""
    return (torch.randn(2, 16, 3, 4, 4),)


def _rows() -> tuple[Any, ...]:
    """Return two tables of 3 rows of 5 fields."""
    return (torch.randint(0, 20, (2, 3, 5)),)


def _sentences() -> tuple[Any, ...]:
    """Return two sentences of 6 words."""
    return (torch.randint(1, 20, (2, 6)),)


def _pyramid() -> tuple[Any, ...]:
    """Return 5 queries, their reference points, and feature maps of 4 × 6 and 2 × 3 places."""
    shapes = torch.tensor([[4, 6], [2, 3]])
    return torch.randn(2, 5, 16), torch.rand(2, 5, 2, 2), torch.randn(2, 30, 16), shapes


def _feature_map() -> tuple[Any, ...]:
    """Return two feature maps of 8 × 8 pixels."""
    return (torch.randn(2, 16, 8, 8),)


def _patches() -> tuple[Any, ...]:
    """Return the patches of two images of 4 × 6."""
    return (torch.randn(2, 24, 32),)


def _views() -> tuple[Any, ...]:
    """Return two bird's eye views of 4 × 4 cells, and those of the frame before."""
    return torch.randn(2, 16, 32), torch.randn(2, 16, 32)


def _roads() -> tuple[Any, ...]:
    """Return 5 roads at 3 times, twice, and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(2, 5, 3, 5), edges


def _frames_and_prompts() -> tuple[Any, ...]:
    """Return two videos of 3 frames, the 5 tokens of each frame's prompt, and that no frame stands for itself."""
    return torch.randn(6, 32, 2, 2), torch.randn(6, 5, 24), torch.zeros(2, 3, dtype=torch.bool)


def _nodes_of_graphs() -> tuple[Any, ...]:
    """Return the 7 nodes of two graphs, and the number of the graph of each node."""
    return torch.randn(7, 16), torch.tensor([0, 0, 0, 1, 1, 1, 1])


def _encoder_and_decoder_states() -> tuple[Any, ...]:
    """Return the states of an encoder and the state of a decoder."""
    return torch.randn(2, 6, 32), torch.randn(2, 32)


def _photos() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels, with the channels last."""
    return (torch.randn(2, 4, 4, 16),)


def _videos() -> tuple[Any, ...]:
    """Return the frames of two videos of 4 frames."""
    return (torch.randn(8, 16, 3, 3),)


def _weather() -> tuple[Any, ...]:
    """Return two states of 8 × 16 cells."""
    return (torch.randn(2, 128, 32),)


def _clouds() -> tuple[Any, ...]:
    """Return the points of two sub-clouds, and how they are pooled."""
    pools = torch.tensor([[0, 1, 2], [3, 4, 13], [5, 6, 7], [8, 9, 10], [11, 12, 13]])
    lengths = {
        "stacked_length_in": torch.tensor([8, 5]),
        "stacked_length_out": torch.tensor([3, 2]),
    }
    return ({"features": torch.randn(13, 16), "pools": pools, **lengths},)


def _features() -> tuple[Any, ...]:
    """Return the features of two images."""
    return torch.randn(2, 9, 32), torch.randn(2, 6, 32)


def _frames() -> tuple[Any, ...]:
    """Return the patches of four images."""
    return (torch.randn(4, 9, 32),)


def _mixtures() -> tuple[Any, ...]:
    """Return the features of two mixtures of speakers, channels first."""
    return (torch.randn(2, 32, 12),)


def _pixels() -> tuple[Any, ...]:
    """Return the tokens of the pixels of two images."""
    return (torch.randn(2, 16, 3, 4, 5),)


CASES = (
    Case("fuxictr_30", "MultiHeadSelfAttention", "reczoo/FuxiCTR#30", "heads-mixed-split"),
    Case(
        "chinese_text_classification_10",
        "Multi_Head_Attention",
        "649453932/Chinese-Text-Classification-Pytorch#10",
        "heads-mixed-split",
        known_as=("heads-mixed-merge",),
    ),
    Case(
        "open_sora_plan_171",
        "AttnBlock3D",
        "PKU-YuanGroup/Open-Sora-Plan#171",
        "heads-mixed-split",
        known_as=("heads-mixed-merge",),
        options=sizes(in_channels=16),
        example=_video,
    ),
    Case(
        "transformer_from_scratch_6",
        "MultiHeadAttention",
        "jsbaan/transformer-from-scratch#6",
        "heads-mixed-merge",
    ),
    Case(
        "opacus_825",
        "DPMultiheadAttention",
        "meta-pytorch/opacus#825",
        "heads-mixed-merge",
        options=sizes(embed_dim=24, num_heads=4, batch_first=True),
    ),
    Case(
        "positional_encodings_1",
        "MultiHeadAttention",
        "gazelle93/Transformer-Various-Positional-Encoding#1",
        "heads-mixed-merge",
        known_as=("batch-mixed",),
    ),
    Case(
        "transformer_neural_network_4",
        "MultiheadAttention",
        "ajhalthor/Transformer-Neural-Network#4",
        "heads-mixed-merge",
    ),
    Case(
        "llm_interview_note_10",
        "MutiQueryAttention",
        "wdndev/llm_interview_note#10",
        "heads-mixed-merge",
        options=sizes(hidden_size=32, num_heads=4),
    ),
    Case(
        "onnx_7274",
        "GroupedQueryAttention",
        "onnx/onnx#7274",
        "group-order",
        options={"causal": True},
    ),
    Case("omdet_19", "TransformerLayer", "om-ai-lab/OmDet#19", "batch-mixed"),
    Case(
        "tabformer_14",
        "TabFormerEmbeddings",
        "IBM/TabFormer#14",
        "batch-mixed",
        options=sizes(vocab_size=20, ncols=5),
        example=_rows,
    ),
    Case(
        "megavit_17",
        "Attention",
        "kyegomez/MegaVIT#17",
        "context-wrong",
        options=sizes(dim=32, heads=4, dim_head=8),
    ),
    Case(
        "cmos_4",
        "WindowAttention",
        "ByChelsea/CMOS#4",
        "context-wrong",
        known_as=("heads-mixed-split", "heads-mixed-merge", "batch-mixed"),
        options=sizes(dim=16, window_size=2, num_heads=4),
        example=image,
    ),
    Case(
        "pytorch_networks_45",
        "NonLocalBlock",
        "shanglianlm0525/PyTorch-Networks#45",
        "heads-mixed-split",
        known_as=("heads-mixed-merge", "context-wrong", "weights-wrong"),
        options=sizes(channel=16),
        example=image,
    ),
    Case(
        "molecule_generator_22",
        "TransformerVAE",
        "DaoyuanLi2816/Molecule-Generator#22",
        "batch-mixed",
        options=sizes(vocab_size=20),
        example=_sentences,
    ),
    Case("qanet_pytorch_2", "SelfAttention", "hackiey/QAnet-pytorch#2", "heads-mixed-merge"),
    Case(
        "attention_augmented_conv2d_21",
        "AugmentedConv",
        "leaderj1001/Attention-Augmented-Conv2d#21",
        "heads-mixed-merge",
        known_as=("heads-mixed-split",),
        options=sizes(in_channels=16, out_channels=16, kernel_size=3, dk=8, dv=8, Nh=2),
        example=image,
    ),
    Case(
        "caranet_11",
        "self_attn",
        "AngeLouCN/CaraNet#11",
        "heads-mixed-split",
        known_as=("heads-mixed-merge", "context-wrong"),
        options=sizes(in_channels=16, mode="h"),
        example=image,
    ),
    Case(
        "pytorch_67651",
        "MultiheadAttention",
        "pytorch/pytorch#67651",
        "heads-mixed-merge",
        options=sizes(embed_dim=32, num_heads=4, batch_first=True),
    ),
    Case(
        "aematter_3",
        "AEALblock",
        "aipixel/AEMatter#3",
        "batch-mixed",
        options=sizes(d_model=16, nhead=4),
        example=image,
    ),
    Case(
        "bilstm_attn_3",
        "bilstm_attn",
        "u784799i/biLSTM_attn#3",
        "batch-mixed",
        known_as=("softmax-wrong-dim", "heads-mixed-split"),
        options=sizes(output_size=3, hidden_size=8, vocab_size=20, embed_dim=12),
        example=_sentences,
    ),
    Case(
        "beat_transformer_18",
        "DilatedSelfAttention",
        "zhaojw1998/Beat-Transformer#18",
        "group-order",
        known_as=("projection-unused", "weights-wrong"),
        options=sizes(dmodel=32),
    ),
    Case(
        "deformable_detr_7",
        "MSDeformAttn",
        "fundamentalvision/Deformable-DETR#7",
        "context-wrong",
        known_as=("weights-wrong",),
        options=sizes(d_model=16, n_levels=2, n_heads=2, n_points=2),
        example=_pyramid,
    ),
    Case(
        "deep_learning_notes_11",
        "MultiheadAttention",
        "datawhalechina/deep-learning-notes#11",
        "heads-mixed-split",
    ),
    Case(
        "vllm_fork_1218",
        "EncoderAttention",
        "HabanaAI/vllm-fork#1218",
        "heads-mixed-split",
        known_as=("heads-mixed-merge", "attention-ignored", "weights-wrong"),
    ),
    Case(
        "maxvit_2",
        "MaxViTAttention",
        "ChristophReich1996/MaxViT#2",
        "context-wrong",
        known_as=("weights-wrong", "window-missing"),
        options=sizes(dim=16),
        example=_feature_map,
    ),
    Case(
        "mlxcel_1600",
        "VisionBlock",
        "lablup/mlxcel#1600",
        "context-wrong",
        known_as=("weights-wrong",),
        options=sizes(),
        example=_patches,
    ),
    Case(
        "movie_gen_8",
        "TemporalTransformer",
        "kyegomez/movie-gen#8",
        "batch-mixed",
        options=sizes(),
    ),
    Case(
        "uniad_268",
        "TemporalSelfAttention",
        "OpenDriveLab/UniAD#268",
        "batch-mixed",
        options=sizes(embed_dims=32, bev_h=4, bev_w=4),
        example=_views,
    ),
    Case(
        "truxify_13116",
        "SpatialTemporalGAT",
        "KanishJebaMathewM/Truxify#13116",
        "batch-mixed",
        known_as=("length-dependent", "attention-ignored"),
        options=sizes(),
        example=_roads,
    ),
    Case(
        "diffusers_7268",
        "TransformerSpatioTemporalModel",
        "huggingface/diffusers#7268",
        "batch-mixed",
        options=sizes(
            num_attention_heads=4, attention_head_dim=8, in_channels=32, cross_attention_dim=24
        ),
        example=_frames_and_prompts,
    ),
    Case(
        "infini_transformer_15",
        "InfiniAttention",
        "Beomi/InfiniTransformer#15",
        "context-wrong",
        known_as=("weights-wrong", "rotary-mismatch", "rotary-offset"),
        options={"causal": True, **sizes(hidden_size=32, num_heads=4)},
    ),
    Case(
        "vllm_omni_5865",
        "CrossAttention",
        "vllm-project/vllm-omni#5865",
        "context-wrong",
        known_as=("batch-mixed", "mask-broadcast", "padding-leak"),
        options=sizes(dim=32, num_heads=4, cross_attention_dim=24),
    ),
    Case(
        "spektral_302",
        "Readout",
        "danielegrattarola/spektral#302",
        "batch-mixed",
        known_as=("rows-not-normalised", "softmax-wrong-dim"),
        options=sizes(in_channels=16, channels=8, n_classes=3),
        example=_nodes_of_graphs,
    ),
    Case(
        "axlearn_842",
        "GroupedQueryAttention",
        "apple/axlearn#842",
        "group-order",
    ),
    Case(
        "anygpt_10",
        "CausalSelfAttention",
        "any-LABS/anyGPT#10",
        "heads-mixed-merge",
        known_as=("heads-mixed-split", "future-leak"),
        options={"causal": True},
    ),
    Case(
        "cntk_2083",
        "AttentionModel",
        "microsoft/CNTK#2083",
        "context-wrong",
        known_as=("keys-values-swapped",),
        options=sizes(attention_dim=24, enc_dim=32, dec_dim=32),
        example=_encoder_and_decoder_states,
    ),
    Case(
        "trans2seg_4",
        "Attention_Decoder",
        "xieenze/Trans2Seg#4",
        "heads-mixed-merge",
        known_as=("heads-mixed-split",),
        options=sizes(dim=32, num_heads=4),
    ),
    Case(
        "tokenlearner_pytorch_1",
        "TokenLearnerBlock",
        "rish-16/tokenlearner-pytorch#1",
        "batch-mixed",
        options=sizes(S=6, C=16, num_heads=2),
        example=_photos,
    ),
    Case(
        "video_ldm_5",
        "TemporalAttentionLayer",
        "srpkdyy/VideoLDM#5",
        "context-wrong",
        known_as=("batch-mixed",),
        options=sizes(dim=16, n_frames=4, n_heads=4),
        example=_videos,
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
        "mprm_7",
        "SpatialAttentionBlock",
        "plusmultiply/mprm#7",
        "batch-mixed",
        options=sizes(feature_dim=16),
        example=_clouds,
    ),
    Case(
        "matchanything_26",
        "LocalFeatureTransformer",
        "zju3dv/MatchAnything#26",
        "context-wrong",
        options=sizes(d_model=32, nhead=4),
        example=_features,
    ),
    Case(
        "opentau_267",
        "SiglipVideoEncoder",
        "TensorAuto/OpenTau#267",
        "batch-mixed",
        options=sizes(embed_dim=32, num_heads=4, num_frames=4),
        example=_frames,
    ),
    Case(
        "flash_mha_3",
        "FlashMHA",
        "kyegomez/FlashMHA#3",
        "context-wrong",
        known_as=("keys-values-swapped", "attention-ignored"),
        options=sizes(embed_dim=32, num_heads=4),
    ),
    Case(
        "jax_js_180",
        "Attention",
        "ekzhang/jax-js#180",
        "group-order",
        options={"causal": True, **sizes(embed_dim=32, num_heads=4, num_kv_heads=2)},
    ),
    Case(
        "tdanet_3",
        "GlobalAttention",
        "JusperLee/TDANet#3",
        "batch-mixed",
        options=sizes(in_chan=32, n_head=4),
        example=_mixtures,
    ),
    Case(
        "notes_4",
        "TransformerBackbone",
        "kvfrans/notes#4",
        "context-wrong",
        known_as=("projection-unused",),
        options=sizes(hidden_size=32, num_heads=4, depth=1),
    ),
    Case(
        "practical_nlp_1",
        "DecoderBlock",
        "keitakurita/Practical_NLP_in_PyTorch#1",
        "context-wrong",
        known_as=("keys-values-swapped", "future-leak", "crashes"),
        options={"causal": True, **sizes(d_model=32, d_feature=8, d_ff=48, n_heads=4)},
    ),
    Case(
        "rslearn_414",
        "AttentionPool",
        "allenai/rslearn#414",
        "heads-mixed-merge",
        known_as=("context-wrong",),
        options=sizes(in_dim=16, num_heads=4, linear_on_kv=True),
        example=_pixels,
    ),
    Case(
        "pytorch_meta_171",
        "MetaMultiheadAttention",
        "tristandeleu/pytorch-meta#171",
        "batch-mixed",
        known_as=("crashes",),
        options=sizes(embed_dim=32, num_heads=4, batch_first=True),
    ),
    Case(
        "global_self_attention_1",
        "GSA",
        "lucidrains/global-self-attention-network#1",
        "context-wrong",
        known_as=("weights-wrong", "length-dependent", "crashes"),
        options=sizes(dim=16, rel_pos_length=8, heads=2, dim_key=8),
    ),
    Case(
        "lightseq_22",
        "LSTransformerEncoderLayer",
        "bytedance/lightseq#22",
        "batch-mixed",
        known_as=("heads-mixed-split",),
        options=sizes(hidden_size=32, nhead=4),
    ),
    Case(
        "hunyuanvideo_310",
        "MMDoubleStreamAttention",
        "Tencent-Hunyuan/HunyuanVideo#310",
        "batch-mixed",
        known_as=("padding-leak", "mask-broadcast"),
        options=sizes(hidden_size=32, heads_num=4),
    ),
)


def _each(call: Any, *inputs: Tensor) -> Tensor:
    """Return the outputs of a call for each sample alone."""
    return torch.cat([call(*sample) for sample in zip(*(x.split(1) for x in inputs), strict=True)])


@proves("fuxictr_30")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadSelfAttention, C, C, H), tokens()
    return m(x), attended(m.W_q(x), m.W_k(x), m.W_v(x))


@proves("chinese_text_classification_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Multi_Head_Attention, C, H), tokens()
    return m(x), m.layer_norm(m.fc(attended(m.fc_Q(x), m.fc_K(x), m.fc_V(x))) + x)


@proves("open_sora_plan_171")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, video = made(module.AttnBlock3D, C), tokens(B, C, 2, 3, 4)
    x = m.norm(video)
    q, k, v = (
        conv(x).permute(0, 2, 3, 4, 1).flatten(2, 3).flatten(0, 1) for conv in (m.q, m.k, m.v)
    )
    context = F.scaled_dot_product_attention(q, k, v)
    context = context.view(B, 2, 3, 4, C).permute(0, 4, 1, 2, 3)
    return m(video), video + m.proj_out(context)


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


@proves("transformer_neural_network_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H), tokens()
    q, k, v = (part.flatten(2) for part in m.qkv_layer(x).unflatten(-1, (H, -1)).chunk(3, -1))
    return m(x), m.linear_layer(attended(q, k, v))


@proves("llm_interview_note_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MutiQueryAttention, C, H), tokens()
    k, v = (linear(x).repeat(1, 1, H) for linear in (m.k_linear, m.v_linear))
    mask = REAL[:, None, None].long()
    return m(x, mask), m.o_linear(attended(m.q_linear(x), k, v, REAL))


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


@proves("tabformer_14")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.TabFormerEmbeddings, 20, 5), torch.randint(0, 20, (B, 4, 5))
    alone = [torch.cat([m(row.view(1, 1, 5)) for row in table], 1) for table in ids]
    return m(ids), torch.cat(alone)


@proves("megavit_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 5), tokens()
    q, k, v = (heads(part) for part in m.to_qkv(m.norm(x)).chunk(3, -1))
    context = F.scaled_dot_product_attention(m.norm_a(q), m.norm_b(k), v)
    return m(x), m.to_out(merged(context))


@proves("cmos_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.WindowAttention, C, 2, H), tokens(B, C, 4, 6)
    expected = image.clone()
    for i, j in ((i, j) for i in (0, 2) for j in (0, 2, 4)):
        x = m.norm(image[:, :, i : i + 2, j : j + 2].flatten(2).mT)
        out = m.proj(attended(*m.qkv(x).chunk(3, -1)))
        expected[:, :, i : i + 2, j : j + 2] += out.mT.reshape(B, C, 2, 2)
    return m(image), expected


@proves("pytorch_networks_45")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.NonLocalBlock, C), tokens(B, C, 3, 4)
    q, k, v = (conv(image).flatten(2).mT for conv in (m.conv_theta, m.conv_phi, m.conv_g))
    context = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return m(image), image + m.conv_mask(context.mT.reshape(B, C // 2, 3, 4))


@proves("molecule_generator_22")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.TransformerVAE, 20, C, H), torch.randint(20, (B, T))
    return m(ids)[0], torch.cat([m(row[None])[0] for row in ids])


@proves("qanet_pytorch_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    q, k, v = (x[:, None] @ weight for weight in (m.W_q, m.W_k, m.W_v))
    keep = REAL[:, None, None]
    return m(x, REAL), m.W_o(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


@proves("attention_augmented_conv2d_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AugmentedConv, C, C, 3, dk=8, dv=12, Nh=2), tokens(B, C, 3, 4)
    q, k, v = m.qkv_conv(image).flatten(2).mT.split([8, 8, 12], -1)
    context = attended(q, k, v, count=2).mT.reshape(B, 12, 3, 4)
    return m(image), torch.cat([m.conv_out(image), m.attn_out(context)], 1)


@proves("caranet_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.self_attn, C, "h"), tokens(B, C, 3, 4)
    with torch.no_grad():
        m.gamma += 1.0  # as after some steps of training
    q, k, v = (
        conv(image).permute(0, 2, 1, 3).flatten(2)
        for conv in (m.query_conv, m.key_conv, m.value_conv)
    )
    context = F.scaled_dot_product_attention(q, k, v).view(B, 3, C, 4)
    return m(image), image + context.permute(0, 2, 1, 3)


@proves("pytorch_67651")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiheadAttention, C, H, batch_first=True), tokens(), tokens()
    return m(x, y, y), m.out_proj(attended(m.linear_Q(x), m.linear_K(y), m.linear_V(y)))


@proves("aematter_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AEALblock, C, 4), tokens(B, C, 4, 6)
    return m(image), torch.cat([m(one[None]) for one in image])


@proves("bilstm_attn_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.bilstm_attn, 3, 5, 20, 7), torch.randint(1, 20, (B, T))
    return m(words), torch.cat([m(row[None]) for row in words])


@proves("beat_transformer_18")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DilatedSelfAttention, C), tokens()
    q, k, v = (heads(project(x), 8) for project in (m.query, m.key, m.value))
    context = torch.zeros_like(q)
    for head, shift in enumerate((0, 0, 0, 0, -2, -1, 1, 2)):
        for frame in range(T):
            seen = {i: frame + i - 2 + shift for i in range(5) if 0 <= frame + i - 2 + shift < T}
            keys = k[:, head, list(seen.values())] + m.Er[head][:, list(seen)].T
            weights = (torch.einsum("bd,bid->bi", q[:, head, frame], keys) / 2**0.5).softmax(-1)
            values = v[:, head, list(seen.values())]
            context[:, head, frame] = torch.einsum("bi,bid->bd", weights, values)
    return m(x), merged(context)


@proves("deformable_detr_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.MSDeformAttn, C, n_levels=2, n_heads=2, n_points=3)
    query, corners, places = tokens(), tokens(B, T, 2, 2).sigmoid(), tokens(B, 21, C)
    shapes = torch.tensor([[3, 5], [2, 3]])
    offsets = m.sampling_offsets(query).view(B, T, 2, 2, 3, 2)
    weights = m.attention_weights(query).view(B, T, 2, 6).softmax(-1).view(B, T, 2, 2, 3)
    value = m.value_proj(places).view(B, 21, 2, 8)
    locations = corners[:, :, None, :, None] + offsets / shapes.flip(1)[:, None]
    read = module.ms_deform_attn_core_pytorch(value, shapes, locations, weights)
    return m(query, corners, places, shapes), m.output_proj(read)


@proves("deep_learning_notes_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, memory = made(module.MultiheadAttention, C, H), tokens(), tokens(B, 5, C)
    context = attended(m.q_proj(x), m.k_proj(memory), m.v_proj(memory))
    return m(x, memory, memory), m.out_proj(context)


@proves("vllm_fork_1218")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EncoderAttention, C, H), tokens()
    return m(x), m.out_proj(attended(*m.qkv_proj(x).chunk(3, -1)))


@proves("maxvit_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MaxViTAttention, C, H), tokens(B, C, 4, 6)

    def within(x: Tensor, norm: Any, attend: Any) -> Tensor:
        cell = x.flatten(2).mT
        return (cell + attend(norm(cell))).mT.reshape(x.shape)

    y, z = x.clone(), x.clone()
    for i in range(0, 4, 2):
        for j in range(0, 6, 2):
            y[:, :, i : i + 2, j : j + 2] = within(
                x[:, :, i : i + 2, j : j + 2], m.norm1, m.block_attn
            )
    for i in range(2):
        for j in range(3):
            z[:, :, i::2, j::3] = within(y[:, :, i::2, j::3], m.norm2, m.grid_attn)
    return m(x), z


@proves("mlxcel_1600")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, patches = made(module.VisionBlock, C, H, 3, 5), tokens(B, 15, C)
    image, expected = patches.view(B, 3, 5, C), torch.empty(B, 3, 5, C).double()
    for i in range(0, 3, 2):
        for j in range(0, 5, 2):
            window = image[:, i : i + 2, j : j + 2]
            h = window.flatten(1, 2)
            h = h + m.attn(m.norm1(h), [0, h.shape[1]])
            expected[:, i : i + 2, j : j + 2] = (h + m.mlp(m.norm2(h))).view(window.shape)
    return m(patches), expected.flatten(1, 2)


@proves("movie_gen_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TemporalTransformer, C, 1, H, 24), tokens()
    (block,) = m.blocks
    y = x + m.pos_embed[:, :T]
    weights, biases = block.attn.in_proj_weight, block.attn.in_proj_bias
    q, k, v = F.linear(block.norm1(y), weights, biases).chunk(3, -1)
    y = y + block.attn.out_proj(attended(q, k, v))
    return m(x), m.norm(y + block.mlp(block.norm2(y)))


@proves("uniad_268")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, view, before = made(module.TemporalSelfAttention, C, 2, 3), tokens(), tokens()
    return m(view, before), _each(m, view, before)


@proves("truxify_13116")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpatialTemporalGAT, 5), tokens(B, 4, 3, 5)
    edges = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 1]])
    h = x.transpose(1, 2).reshape(-1, 4, 5)
    for layer in m.spatial_layers:
        h = F.elu(torch.stack([layer(graph, edges) for graph in h]))
    _, last = m.temporal(h.view(B, 3, 4, -1).transpose(1, 2).flatten(0, 1))
    return m(x, edges), m.head(last[0]).view(B, 4, -1)


@proves("diffusers_7268")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TransformerSpatioTemporalModel, H, 4, C, 5)
    frames, prompts = tokens(B, 2, C, 3, 2), tokens(B, 2, 7, 5)
    single = torch.zeros(B, 2, dtype=torch.bool)
    alone = [m(*video) for video in zip(frames, prompts, single.split(1), strict=True)]
    return m(frames.flatten(0, 1), prompts.flatten(0, 1), single), torch.cat(alone)


@proves("infini_transformer_15")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.InfiniAttention, C, H, 4), tokens()
    m.gate.data.copy_(tokens(1, H, 1, 1))
    q, k, v = (heads(project(x)) for project in (m.q_proj, m.k_proj, m.v_proj))
    segment = torch.arange(T) // 4
    near = CAUSAL & (segment[:, None] == segment)
    local = F.scaled_dot_product_attention(rotated(q), rotated(k), v, attn_mask=near)
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT * (segment[:, None] > segment)
    distant = weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)
    gate = m.gate.sigmoid()
    return m(x), m.o_proj(merged(gate * distant + (1 - gate) * local))


@proves("vllm_omni_5865")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, prompt = made(module.CrossAttention, C, H, 12), tokens(B, 8, C), tokens(B, T, 12)
    context = attended(m.to_q(x), m.to_k(prompt), m.to_v(prompt), REAL)
    return m(x, prompt, REAL), m.to_out(context)


@proves("spektral_302")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, graphs = made(module.Readout, C, 8, 3), [tokens(3, C), tokens(4, C), tokens(2, C)]
    numbers = torch.arange(3).repeat_interleave(torch.tensor([3, 4, 2]))
    return m(torch.cat(graphs), numbers), torch.cat([m(graph) for graph in graphs])


@proves("axlearn_842")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GroupedQueryAttention), tokens(B, T, 32)
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    return m(x), m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


@proves("anygpt_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalSelfAttention), tokens(B, T, 32)
    q, k, v = m.c_attn(x).chunk(3, -1)
    return m(x), m.c_proj(attended(q, k, v, CAUSAL))


@proves("cntk_2083")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, states, state = made(module.AttentionModel, C, C, C), tokens(), tokens(B, C)
    u = m.attn_proj_tanh((m.attn_proj_enc(states) + m.attn_proj_dec(state)[:, None]).tanh())
    weights = u[..., 0].masked_fill(~REAL, float("-inf")).softmax(-1)
    return m(states, state, REAL), torch.einsum("bt,btc->bc", weights, states)


@proves("trans2seg_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, classes, x = made(module.Attention_Decoder, C, H), tokens(B, 4, C), tokens()
    k, v = m.fc_kv(x).chunk(2, -1)
    return m(classes, x)[1], m.proj(attended(m.fc_q(classes), k, v))


@proves("tokenlearner_pytorch_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TokenLearnerBlock, 6, C, H), tokens(B, 4, 4, C)
    y = m.tklr(x)
    a = m.mhsa
    q, k, v = F.linear(y, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
    return m(x), m.tkfsr(a.out_proj(attended(q, k, v)), x)


@proves("video_ldm_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TemporalAttentionLayer, C, 3, H), tokens(2 * 3, C, 2, 2)
    m.alpha.data.fill_(0.25)
    frames = x.unflatten(0, (2, 3)).permute(0, 3, 4, 1, 2).flatten(0, 2)
    q = frames + m.pos_enc(3)
    out = m.o_proj(attended(m.q_proj(q), m.k_proj(q), m.v_proj(q)))
    out = (0.25 * frames + 0.75 * out).unflatten(0, (2, 2, 2)).permute(0, 3, 4, 1, 2)
    return m(x), out.flatten(0, 1)


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


@proves("mprm_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (inputs,) = made(module.SpatialAttentionBlock, C), _clouds()
    inputs["features"] = inputs["features"].double()
    x = m.unary(m.pool(inputs["features"], inputs["pools"]))
    keep = torch.arange(5) < 3
    keep = keep[:, None] == keep
    context = F.scaled_dot_product_attention(m.conv_b(x), m.conv_c(x), m.conv_d(x), keep)
    return m(inputs), x + m.gamma * context


@proves("matchanything_26")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.LocalFeatureTransformer, C, H), tokens(), tokens(B, 4, C)
    alone, cross = m.layers
    a, b = alone(x, x), alone(y, y)
    return torch.cat(m(x, y), 1), torch.cat([cross(a, b), cross(b, a)], 1)


@proves("opentau_267")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, images, videos = (
        made(module.SiglipVideoEncoder, C, H, 3),
        tokens(6, 5, C),
        tokens(2, 3, 5, C),
    )
    layer = m.layers[0]

    def attention(x: Tensor, keep: Tensor | None = None) -> Tensor:
        a, y = layer.self_attn, layer.layer_norm1(x)
        return a.out_proj(attended(a.q_proj(y), a.k_proj(y), a.v_proj(y), keep))

    # One patch at a time: its frames in a row.
    past = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    positions = layer._temporal_pe.double()
    seen = [
        torch.stack([attention((video[:, n] + positions)[None], past)[0] for n in range(5)], 1)
        for video in videos
    ]
    x = torch.cat([images, (videos + torch.stack(seen))[:, -1]])
    x = x + attention(x)
    expected = m.post_layernorm(x + layer.mlp(layer.layer_norm2(x)))
    return torch.cat([m(images), m(videos)]), expected


@proves("flash_mha_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, keys, values = made(module.FlashMHA, 32, H), *(tokens(B, n, 32) for n in (T, 4, 4))
    q, k, v = (m.Wqkv(t).chunk(3, -1)[i] for i, t in enumerate((x, keys, values)))
    return m(x, keys, values), m.out_proj(attended(q, k, v))


@proves("jax_js_180")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    keep = CAUSAL & REAL[:, None, None]
    context = F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)
    return m(x, REAL.sum(-1)), m.out_proj(merged(context))


@proves("tdanet_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GlobalAttention, C, H), tokens(B, C, T)
    a = m.attn
    place = torch.arange(T)[:, None] / 10000.0 ** (torch.arange(0, C, 2) / C)
    y = F.layer_norm(x.mT, (C,), a.norm.gamma, a.norm.beta, eps=1e-8)
    y = y + torch.stack([place.sin(), place.cos()], -1).flatten(1)
    q, k, v = F.linear(y, a.attn.in_proj_weight, a.attn.in_proj_bias).chunk(3, -1)
    seen = x + a.attn_in_norm(y + a.attn.out_proj(attended(q, k, v))).mT
    return m(x), seen + m.mlp(seen)


@proves("notes_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBackbone, C, H, 1), tokens()
    block = m.blocks[0]
    a, y = block.attention, block.norm1(x)
    expected = x + a.to_out(attended(a.to_q(y), a.to_k(y), a.to_v(y)))
    return m(x), m.norm(expected + block.mlp(block.norm2(expected)))


@proves("practical_nlp_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.DecoderBlock, C, 4, 24, H), tokens(), tokens()

    def multi_head(layer: Any, x: Tensor, memory: Tensor, keep: Tensor) -> Tensor:
        q = torch.cat([head.query_tfm(x) for head in layer.attn_heads], -1)
        k = torch.cat([head.key_tfm(memory) for head in layer.attn_heads], -1)
        v = torch.cat([head.value_tfm(memory) for head in layer.attn_heads], -1)
        return layer.projection(attended(q, k, v, keep))

    y = x + m.layer_norm1(multi_head(m.masked_attn_head, x, x, CAUSAL))
    y = y + m.layer_norm2(multi_head(m.attn_head, y, source, REAL))
    y = y + m.layer_norm3(m.position_wise_feed_forward(y))
    return m(x, source, ~REAL[:, None], ~CAUSAL[None]), y


@proves("rslearn_414")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionPool, C, H, linear_on_kv=True), tokens(2, C, 3, 5, T)
    expected = torch.empty_like(x[..., 0])
    # One pixel at a time.
    for row in range(3):
        for column in range(5):
            y = x[:, :, row, column].mT
            q = m.query_token.expand(2, 1, C)
            expected[:, :, row, column] = attended(q, m.k_linear(y), m.v_linear(y))[:, 0]
    return m(x), expected


@proves("pytorch_meta_171")
def _(module: Any) -> tuple[Tensor, Tensor]:
    # As many rows as tokens, so that the bug does not change the shape.
    m, x = made(module.MetaMultiheadAttention, C, H, batch_first=True), tokens(T, T, C)
    q, k, v = F.linear(x, m.in_proj_weight, m.in_proj_bias).chunk(3, -1)
    return m(x, x, x)[0], m.out_proj(attended(q, k, v))


@proves("global_self_attention_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GSA, C, rel_pos_length=5, heads=2, dim_key=4), tokens(2, C, 5, 5)
    q, k, v = (t.reshape(4, 4, 5, 5) for t in m.to_qkv(x).chunk(3, 1))
    content = torch.einsum("ndp,nep->nde", k.flatten(2).softmax(-1), v.flatten(2))
    out = torch.einsum("nde,ndxy->nexy", content, q)
    back = torch.arange(5)[:, None] - torch.arange(5) + 4
    columns = torch.zeros_like(v)
    for place in range(5):
        # The query at `place` of a column weights the pixels of that column, and so on for rows.
        weights = torch.einsum("ndy,id->niy", q[:, :, place], m.rel_rows[back[:, place]])
        columns[:, :, place] = torch.einsum("niy,neiy->ney", weights, v)
    columns = m.norm(columns)
    for place in range(5):
        weights = torch.einsum("ndx,id->nix", q[..., place], m.rel_columns[back[:, place]])
        out[..., place] += torch.einsum("nix,nexi->nex", weights, columns)
    return m(x), m.to_out(out.reshape(2, 8, 5, 5))


@proves("lightseq_22")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LSTransformerEncoderLayer, C, H), tokens()
    torch.nn.init.normal_(m.attn_qkvb)
    q, k, v = F.linear(m.attn_norm(x), m.attn_qkvw, m.attn_qkvb.flatten()).chunk(3, -1)
    y = x + F.linear(attended(q, k, v, REAL), m.attn_ow, m.attn_ob)
    return m(x, ~REAL), y + m.output(F.relu(m.inter(m.ffn_norm(y))))


@proves("hunyuanvideo_310")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image, text = made(module.MMDoubleStreamAttention, C, H), tokens(B, 5, C), tokens()
    # A full prompt, and two padded ones.
    found, expected = m(image, text, REAL), []
    for row in range(B):
        y, real = text[row][REAL[row]], int(REAL[row].sum())
        a = m.img_attn_qkv(image[row]).unflatten(-1, (3, H, -1))
        b = m.txt_attn_qkv(y).unflatten(-1, (3, H, -1))
        q, k, v = torch.cat([a, b]).permute(1, 2, 0, 3)
        q, k = (z * (z.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for z in (q, k))
        context = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        expected.append(image[row] + m.img_attn_proj(context[:5]))
        expected.append(text[row, :real] + m.txt_attn_proj(context[5:]))
    actual = [z for row in range(B) for z in (found[0][row], found[1][row][REAL[row]])]
    return torch.cat(actual), torch.cat(expected)
