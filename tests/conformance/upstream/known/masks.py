"""Known bugs of what a mask hides."""

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
    in_steps,
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _text_and_images() -> tuple[Any, ...]:
    """Return texts of 9 tokens and 2 images of 3 patches, the first image after 2 tokens in the first text only."""
    locations = torch.zeros(2, 9, dtype=torch.bool)
    locations[0, 2] = locations[0, 6] = locations[1, 0] = locations[1, 4] = True
    return torch.randn(2, 9, 16), torch.randn(2, 2, 3, 16), locations


def _signals() -> tuple[Any, ...]:
    """Return two signals with their windows, and the number of windows of the second one."""
    return torch.randn(2, 5, 12), torch.randn(2, 7, 16), torch.tensor([7, 4])


def _nodes_and_edges() -> tuple[Any, ...]:
    """Return two graphs of up to 6 nodes, with the features of all pairs of nodes."""
    real = torch.arange(6) < torch.tensor([[6], [4]])
    return torch.randn(2, 6, 16), torch.randn(2, 6, 6, 16), real


def _feature_map() -> tuple[Any, ...]:
    """Return two feature maps of 8 × 8 pixels."""
    return (torch.randn(2, 16, 8, 8),)


def _channels_last() -> tuple[Any, ...]:
    """Return two feature maps of 8 × 8 pixels, channels last."""
    return (torch.randn(2, 8, 8, 16),)


def _image_and_text() -> tuple[Any, ...]:
    """Return images of 6 places, texts of 5 words, and which words are real."""
    return (
        torch.randn(2, 6, 16),
        torch.randn(2, 5, 12),
        torch.arange(5) < torch.tensor([[5], [3]]),
    )


def _ids() -> tuple[Any, ...]:
    """Return the ids of the tokens of two sentences, the second padded with zeros."""
    ids = torch.randint(1, 20, (2, 7))
    ids[1, 4:] = 0
    return (ids,)


def _people() -> tuple[Any, ...]:
    """Return noisy origins and goals of up to 6 people, the steps, the scenes and the numbers of people."""
    return torch.rand(2, 6, 4), torch.tensor([3, 7]), torch.randn(2, 16), torch.tensor([6, 4])


def _each(call: Any, *inputs: Tensor) -> Tensor:
    """Return the outputs of a call for each sample alone."""
    return torch.cat([call(*sample) for sample in zip(*(x.split(1) for x in inputs), strict=True)])


def _samples_of_molecules() -> tuple[Any, ...]:
    """Return two samples of each of two molecules of 8 atoms, pairs in windows of 4, and where there are atoms."""
    return torch.randn(4, 8, 16), torch.randn(2, 2, 4, 4, 8), torch.ones(4, 8)


def _videos() -> tuple[Any, ...]:
    """Return two videos of 4 frames of 5 pixels, and that the first is one of separate images."""
    return torch.randn(2, 5, 4, 32), None, torch.tensor([True, False])


def _patches_of_two_images() -> tuple[Any, ...]:
    """Return the patches of images of 2 × 3 and 2 × 2, their rotations, and which are of the same image."""
    places = torch.tensor([[r, c] for w in (3, 2) for r in range(2) for c in range(w)])
    angles = (places[:, :, None] * torch.tensor([1.0, 0.1])).flatten(1)
    image = torch.tensor([0] * 6 + [1] * 4)
    rotations = torch.polar(torch.ones_like(angles), angles)
    return torch.randn(1, 10, 32), rotations, image[:, None] == image


def _video_and_query() -> tuple[Any, ...]:
    """Return two videos of 7 frames, two queries of up to 5 words, and where there are words."""
    words = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return torch.randn(2, 7, 32), torch.randn(2, 5, 32), words


def _targets_and_memory() -> tuple[Any, ...]:
    """Return 6 tokens and 5 tokens of the encoder, both with the time first."""
    return torch.randn(6, 2, 32), torch.randn(5, 2, 32)


def _exercises() -> tuple[Any, ...]:
    """Return 6 exercises as queries and keys, their answers as values, and the mask of what was before."""
    exercises = torch.randn(2, 6, 32)
    mask = torch.ones(1, 1, 6, 6).tril()
    return exercises, exercises, torch.randn(2, 6, 32), mask


def _queries_keys_values() -> tuple[Any, ...]:
    """Return the queries, keys and values of 12 tokens."""
    return torch.randn(2, 12, 16), torch.randn(2, 12, 16), torch.randn(2, 12, 16)


def _tokens_and_empty_cache() -> tuple[Any, ...]:
    """Return 6 tokens, and the keys, values and length of an empty cache."""
    return torch.randn(2, 6, 32), (torch.zeros(2, 32, 4, 8), torch.zeros(2, 32, 4, 8), 0)


def _titles() -> tuple[Any, ...]:
    """Return the tokens of two titles and where they are no padding."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    return torch.randint(1, 64, (2, 7)) * mask, mask


def _recordings() -> tuple[Any, ...]:
    """Return two spectrograms and the texts that they speak, each with its lengths."""
    text = torch.randint(1, 40, (2, 6))
    return torch.randn(2, 8, 9), torch.tensor([9, 7]), text, torch.tensor([6, 4])


def _texts() -> tuple[Any, ...]:
    """Return two texts, of which the shorter is padded."""
    return (torch.tensor([[5, 3, 9, 12, 7, 3, 21], [8, 3, 3, 30, 0, 0, 0]]),)


LENGTHS = REAL.sum(1).tolist()


def _atoms() -> tuple[Any, ...]:
    """Return the embeddings of the atoms of two structures, and which structure they belong to."""
    return torch.randn(11, 16), torch.randn(11, 16), torch.tensor([0] * 6 + [1] * 5)


def _molecules() -> tuple[Any, ...]:
    """Return the atoms of two molecules, and where they are padded."""
    return torch.randn(2, 9, 24), torch.arange(9) >= torch.tensor([9, 6])[:, None]


def _sources() -> tuple[Any, ...]:
    """Return the words of two targets, the states of two sources, and the lengths of the sources."""
    return torch.randn(2, 5, 32), torch.randn(2, 8, 32), torch.tensor([8, 5])


def _translations() -> tuple[Any, ...]:
    """Return the words of two targets and two sources, and where there are words."""
    words = torch.arange(7)
    target, source = words < torch.tensor([7, 4])[:, None], words < torch.tensor([5, 7])[:, None]
    return torch.randn(2, 7, 32), torch.randn(2, 7, 32), target, source


def _documents() -> tuple[Any, ...]:
    """Return two rows of packed documents, and the document of each token."""
    return torch.randn(2, 8, 32), torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2]])


def _characters() -> tuple[Any, ...]:
    """Return the positions of the characters of two images, their patches, and the characters."""
    return torch.randn(2, 7, 32), torch.randn(2, 12, 32), torch.randn(2, 7, 32)


def _series() -> tuple[Any, ...]:
    """Return two series of 3 channels and 32 steps, the second one padded at the left."""
    observed = torch.arange(32) >= torch.tensor([0, 13])[:, None]
    return torch.randn(2, 3, 32) * observed[:, None], observed.long()


def _graphs() -> tuple[Any, ...]:
    """Return the nodes of two graphs, and the graph of each node."""
    return torch.randn(9, 16), torch.tensor([0] * 6 + [1] * 3)


def _patches_of_videos() -> tuple[Any, ...]:
    """Return the patches of 5 frames of two videos."""
    return (torch.randn(2, 5, 4, 16),)


def _clips() -> tuple[Any, ...]:
    """Return two clips, the second one padded with a blank frame, their captions, and which frames are real."""
    real = torch.arange(3) < torch.tensor([3, 2])[:, None]
    frames = torch.randn(2, 3, 3, 8, 8) * real[:, :, None, None, None]
    return frames, torch.randint(0, 50, (2, 6)), real


def _padded_with_floats() -> tuple[Any, ...]:
    """Return queries, keys and values, tokens first, and a mask of −∞ for padded keys."""
    padding = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    mask = torch.zeros(2, 7).masked_fill(padding, -torch.inf)
    return torch.randn(5, 2, 32), torch.randn(7, 2, 32), torch.randn(7, 2, 32), mask


def _projected(attention: Any, x: Tensor, y: Tensor, keep: Tensor | None = None) -> Tensor:
    """Attend with the projections of a torch.nn.MultiheadAttention."""
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    q, k, v = (F.linear(z, w, b) for z, w, b in zip((x, y, y), weights, biases, strict=True))
    q, k, v = heads(q), heads(k), heads(v)
    return attention.out_proj(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


CASES = (
    Case(
        "flamingo_10",
        "MaskedCrossAttention",
        "lucidrains/flamingo-pytorch#10",
        "mask-unused",
        options=sizes(dim=16, dim_head=8, heads=2),
        example=_text_and_images,
    ),
    Case(
        "transformers_35162",
        "DebertaSelfAttention",
        "huggingface/transformers#35162",
        "mask-unused",
    ),
    Case(
        "qwen_933",
        "QWenAttention",
        "QwenLM/Qwen#933",
        "mask-unused",
        known_as=("future-leak",),
        options={"causal": True},
    ),
    Case(
        "diffusers_12294",
        "QwenDoubleStreamAttention",
        "huggingface/diffusers#12294",
        "mask-unused",
        known_as=("padding-leak",),
    ),
    Case(
        "mead_baseline_679",
        "BahdanauAttention",
        "mead-ml/mead-baseline#679",
        "mask-unused",
        known_as=("padding-leak",),
    ),
    Case(
        "halonet_4",
        "HaloAttention",
        "lucidrains/halonet-pytorch#4",
        "mask-inverted",
        options=sizes(dim=16, block_size=2, halo_size=1),
        example=image,
    ),
    Case(
        "text_classifiers_92",
        "LabelAttentionClassifier",
        "InseeFrLab/torchTextClassifiers#92",
        "mask-inverted",
    ),
    Case("torch_brain_74", "RotaryCrossAttention", "neuro-galaxy/torch_brain#74", "mask-inverted"),
    Case(
        "transformers_38094",
        "Llama4TextAttention",
        "huggingface/transformers#38094",
        "mask-inverted",
    ),
    Case(
        "llms_from_scratch_1061",
        "MHAPyTorchSDPAWithoutFlash",
        "rasbt/LLMs-from-scratch#1061",
        "mask-inverted",
        known_as=("future-leak",),
        options={"causal": True, **sizes(d_in=24, d_out=32, num_heads=4, context_length=16)},
    ),
    Case(
        "timm_2236",
        "EvaAttention",
        "huggingface/pytorch-image-models#2236",
        "mask-after-softmax",
        known_as=("output-not-finite",),
    ),
    Case(
        "nisqa_17",
        "Alignment",
        "gabrielmittag/NISQA#17",
        "mask-after-softmax",
        known_as=("output-not-finite",),
        options=sizes(query_dim=12, y_dim=16),
        example=_signals,
    ),
    Case("transformer_40", "EncoderSelfAttention", "hyunwoongko/transformer#40", "mask-broadcast"),
    Case("clip4clip_22", "ResidualAttentionBlock", "ArrowLuo/CLIP4Clip#22", "mask-broadcast"),
    Case(
        "attention_keras_36",
        "MultiHeadAttention",
        "lsdefine/attention-is-all-you-need-keras#36",
        "mask-broadcast",
    ),
    Case(
        "graph_transformer_2",
        "Attention",
        "lucidrains/graph-transformer-pytorch#2",
        "mask-broadcast",
        known_as=("crashes",),
        options=sizes(dim=16, dim_head=4, heads=4),
        example=_nodes_and_edges,
    ),
    Case(
        "resshift_81",
        "SwinTransformerBlock",
        "zsyOAOA/ResShift#81",
        "mask-broadcast",
        options=sizes(dim=16, num_heads=2, window_size=4, shift_size=2),
        example=_feature_map,
    ),
    Case(
        "xformers_103",
        "ScaledDotProduct",
        "facebookresearch/xformers#103",
        "future-leak",
        known_as=("mask-unused",),
        options={"causal": True, **sizes(causal=True)},
    ),
    Case(
        "former_10",
        "SelfAttention",
        "pbloem/former#10",
        "self-hidden",
        known_as=("output-not-finite", "nan-on-masked-rows"),
        options={"causal": True, **sizes(k=8, heads=2, mask=True)},
    ),
    Case(
        "vllm_omni_5704",
        "DiTAttention",
        "vllm-project/vllm-omni#5704",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(dim=32, heads=4, dim_head=8),
    ),
    Case(
        "srformer_14",
        "PSA_Block",
        "HVision-NKU/SRFormer#14",
        "mask-broadcast",
        known_as=("self-hidden", "weights-wrong"),
        options=sizes(dim=16, num_heads=2),
        example=_channels_last,
    ),
    Case(
        "mmdetection_11803",
        "BiMultiHeadAttention",
        "open-mmlab/mmdetection#11803",
        "mask-unused",
        known_as=("padding-leak", "mask-fill-too-small"),
        options=sizes(v_dim=16, l_dim=12, embed_dim=16, num_heads=4),
        example=_image_and_text,
    ),
    Case(
        "di_engine_333",
        "Attention",
        "opendilab/DI-engine#333",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(
            input_dim=32, head_dim=8, output_dim=32, head_num=4, dropout=torch.nn.Dropout(0.0)
        ),
    ),
    Case(
        "jiant_465",
        "BertEmbedderModule",
        "nyu-mll/jiant#465",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(vocab_size=20),
        example=_ids,
    ),
    Case(
        "pytorch_examples_649",
        "TransformerModel",
        "pytorch/examples#649",
        "mask-inverted",
        known_as=("future-leak",),
        options={"causal": True, **sizes(ninp=32, nhead=4)},
    ),
    Case(
        "crowd_behavior_11",
        "EmitterDenoiser",
        "InhwanBae/Crowd-Behavior-Generation#11",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(),
        example=_people,
    ),
    Case(
        "diskt_6",
        "ContradictoryAttention",
        "zyy-2001/DisKT#6",
        "future-leak",
        options={"causal": True},
    ),
    Case(
        "buzzbloom_10",
        "CascadeEncoder",
        "HeyWeCome/BuzzBloom#10",
        "future-leak",
        options={"causal": True},
    ),
    Case(
        "boltz_523",
        "AtomAttention",
        "jwohlwend/boltz#523",
        "mask-broadcast",
        known_as=("batch-mixed",),
        options=sizes(c_s=16, c_z=8, num_heads=4, window=4),
        example=_samples_of_molecules,
    ),
    Case(
        "attentions_4",
        "MultiHeadAttention",
        "sooftware/attentions#4",
        "mask-broadcast",
        known_as=("batch-mixed", "padding-leak", "mask-unused", "nan-on-masked-rows"),
    ),
    Case(
        "keras_23038",
        "DecoderSelfAttention",
        "keras-team/keras#23038",
        "future-leak",
        known_as=("mask-unused",),
        options={"causal": True},
    ),
    Case(
        "cellflow_226",
        "TokenAttentionPooling",
        "theislab/CellFlow#226",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(dim=32, num_heads=4),
    ),
    Case(
        "transformers_47946",
        "GPT2Model",
        "huggingface/transformers#47946",
        "mask-unused",
        known_as=("padding-leak",),
        options={"causal": True, **sizes(hidden_size=32, num_attention_heads=4)},
    ),
    Case(
        "video_diffusion_6",
        "Attention",
        "lucidrains/video-diffusion-pytorch#6",
        "mask-inverted",
        options=sizes(dim=32, heads=4, dim_head=8),
        example=_videos,
    ),
    Case(
        "atkt_1",
        "AttentionModule",
        "xiaopengguo/ATKT#1",
        "future-leak",
        known_as=("mask-after-softmax", "rows-not-normalised"),
        options={"causal": True, **sizes(hidden_dim=32)},
    ),
    Case(
        "mistral_inference_218",
        "TransformerBlock",
        "mistralai/mistral-inference#218",
        "mask-unused",
        known_as=("batch-mixed",),
        options=sizes(dim=32, hidden_dim=64, n_heads=4),
        example=_patches_of_two_images,
    ),
    Case(
        "lighthouse_77",
        "T2V_TransformerEncoder",
        "line/lighthouse#77",
        "mask-broadcast",
        known_as=("batch-mixed", "padding-leak", "nan-on-masked-rows", "mask-unused"),
        options=sizes(d_model=32, nhead=4),
        example=_video_and_query,
    ),
    Case(
        "causal_transformer_decoder_1",
        "CausalTransformerDecoder",
        "alex-matton/causal-transformer-decoder#1",
        "future-leak",
        options={"causal": True, **sizes(d_model=32, nhead=4)},
        example=_targets_and_memory,
    ),
    Case(
        "eduktm_39",
        "MultiHeadAttention",
        "bigdata-ustc/EduKTM#39",
        "future-leak",
        known_as=("mask-unused",),
        options=sizes(n_feat=32, n_heads=4),
        example=_exercises,
    ),
    Case(
        "local_attention_5",
        "LocalAttention",
        "lucidrains/local-attention#5",
        "future-leak",
        known_as=("window-missing",),
        options={"causal": True, **sizes(window_size=4, causal=True, exact_windowsize=True)},
        example=_queries_keys_values,
    ),
    Case(
        "alpa_608",
        "OPTSelfAttention",
        "alpa-projects/alpa#608",
        "future-leak",
        known_as=("cache-mismatch", "causal-alignment"),
        options={"causal": True, **sizes()},
        example=_tokens_and_empty_cache,
    ),
    Case(
        "news_recommendation_llm_21",
        "PLMBasedNewsEncoder",
        "YadaYuki/news-recommendation-llm#21",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(),
        example=_titles,
    ),
    Case(
        "nemo_6677",
        "AlignerModel",
        "NVIDIA-NeMo/Speech#6677",
        "mask-inverted",
        known_as=("padding-leak", "nan-on-masked-rows", "output-not-finite"),
        options=sizes(),
        example=_recordings,
    ),
    Case(
        "time_series_prediction_32",
        "DecoderLayer",
        "LongxingTan/Time-series-prediction#32",
        "future-leak",
        known_as=("mask-fill-too-small", "mask-inverted"),
        options={"causal": True, **sizes(hidden_size=32, num_attention_heads=4)},
    ),
    Case(
        "unsloth_2868",
        "LlamaAttention",
        "unslothai/unsloth#2868",
        "future-leak",
        options={"causal": True},
    ),
    Case(
        "speechbrain_2276",
        "FastSpeech2Encoder",
        "speechbrain/speechbrain#2276",
        "mask-inverted",
        options=sizes(),
        example=_texts,
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
        "molm_8",
        "Blip2Qformer",
        "lsh0520/3D-MoLM#8",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(),
        example=_molecules,
    ),
    Case(
        "opennmt_272",
        "StdRNNDecoder",
        "OpenNMT/OpenNMT-py#272",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(hidden_size=32),
        example=_sources,
    ),
    Case(
        "entrenar_310",
        "TransformerBlock",
        "paiml/entrenar#310",
        "future-leak",
        options={
            "causal": True,
            **sizes(hidden_size=32, num_heads=4, num_kv_heads=2, intermediate_size=48),
        },
    ),
    Case(
        "keras_io_1046",
        "TransformerDecoder",
        "keras-team/keras-io#1046",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(embed_dim=32, latent_dim=48, num_heads=2),
        example=_translations,
    ),
    Case(
        "praxis_38",
        "PraxisAttention",
        "0-5788719150923125/praxis#38",
        "mask-unused",
        known_as=("batch-mixed",),
        options={"causal": True, **sizes()},
        example=_documents,
    ),
    Case(
        "cdistnet_pytorch_2",
        "MDCDP",
        "chibohe/CdistNet-pytorch#2",
        "mask-inverted",
        known_as=("future-leak",),
        options={"causal": True, **sizes(d_model=32, d_inner=48, n_head=4, d_k=8, d_v=8)},
        example=_characters,
    ),
    Case(
        "sktime_10685",
        "MomentFMForecastNet",
        "sktime/sktime#10685",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(seq_len=32, forecast_horizon=4, d_model=32, n_heads=4),
        example=_series,
    ),
    Case(
        "nsa_release_3",
        "NativeSparseAttention",
        "tilde-research/nsa-release#3",
        "mask-inverted",
        known_as=("future-leak",),
        options={
            "causal": True,
            **sizes(hidden_size=32, n_heads=4, n_kv_heads=2, block_size=2, window_size=4),
        },
    ),
    Case(
        "graphtrans_10",
        "GraphTransformer",
        "ucbrise/graphtrans#10",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(num_tasks=3, gnn_emb_dim=16, d_model=32, nhead=4, dim_feedforward=48),
        example=_graphs,
    ),
    Case(
        "jafar_2",
        "STTransformer",
        "FLAIROx/jafar#2",
        "future-leak",
        options={
            "causal": True,
            **sizes(in_dim=16, model_dim=32, out_dim=16, num_blocks=1, num_heads=4),
        },
        example=_patches_of_videos,
    ),
    Case(
        "pytorch_transformer_19",
        "Transformer",
        "hkproj/pytorch-transformer#19",
        "mask-inverted",
        known_as=("future-leak", "self-hidden"),
        options=sizes(src_vocab_size=50, tgt_vocab_size=60, d_model=32, N=1, h=4, d_ff=48),
    ),
    Case(
        "kempner_forge_131",
        "VideoVLMWrapper",
        "KempnerInstitute/KempnerForge#131",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(vocab_size=50),
        example=_clips,
    ),
    Case(
        "mlverse_torch_1205",
        "nn_multihead_attention",
        "mlverse/torch#1205",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(embed_dim=32, num_heads=4),
        example=_padded_with_floats,
    ),
    Case(
        "speechbrain_1107",
        "TransformerASRDecoder",
        "speechbrain/speechbrain#1107",
        "mask-unused",
        known_as=("padding-leak",),
        options={
            "causal": True,
            **sizes(tgt_vocab=50, d_model=32, nhead=4, num_decoder_layers=2, d_ffn=48),
        },
    ),
    Case(
        "paddle3d_235",
        "DetrTransformerDecoderLayer",
        "PaddlePaddle/Paddle3D#235",
        "mask-inverted",
        options=sizes(embed_dims=32, num_heads=4, feedforward_channels=48),
    ),
    Case(
        "seq2seq_pytorch_6",
        "Seq2SeqAttention",
        "MaximumEntropy/Seq2Seq-PyTorch#6",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(
            src_emb_dim=16,
            trg_emb_dim=16,
            src_vocab_size=50,
            trg_vocab_size=50,
            src_hidden_dim=32,
            trg_hidden_dim=32,
        ),
    ),
)


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


@proves("diffusers_12294")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image, text = made(module.QwenDoubleStreamAttention, C, H), tokens(B, 5, C), tokens()
    alone = [
        m(pixels[None], row[None, real])[0]
        for pixels, row, real in zip(image, text, REAL, strict=True)
    ]
    return m(image, text, REAL.long())[0], torch.cat(alone)


@proves("mead_baseline_679")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, query, y = made(module.BahdanauAttention, C), tokens(B, C), tokens()
    alone = [
        m(state[None], row[None, real], row[None, real])
        for state, row, real in zip(query, y, REAL, strict=True)
    ]
    return m(query, y, y, REAL.long()), torch.cat(alone)


@proves("halonet_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.HaloAttention, dim=C, block_size=2, halo_size=1, dim_head=4, heads=H)
    image, corner = tokens(B, C, 4, 4), []
    near = image[:, :, :3, :3].flatten(2).transpose(1, 2)  # what the block in the corner sees
    block = image[:, :, :2, :2].flatten(2).transpose(1, 2)
    corner = m.to_out(attended(m.to_q(block), *m.to_kv(near).chunk(2, -1)))
    return m(image)[:, :, :2, :2].flatten(2).transpose(1, 2), corner


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


@proves("transformers_38094")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Llama4TextAttention, C, H, 2), tokens()
    keep = (CAUSAL & REAL[:, None])[:, None]
    mask = torch.zeros(B, 1, T, T).double().masked_fill(~keep, torch.finfo(torch.float64).min)
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return m(x, mask), m.o_proj(merged(context))


@proves("llms_from_scratch_1061")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHAPyTorchSDPAWithoutFlash, C, 24, H, 9), tokens()
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.proj(attended(q, k, v, CAUSAL))


@proves("timm_2236")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EvaAttention, C, H), tokens()
    return m(x, REAL), m.proj(attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), REAL))


@proves("nisqa_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, query, y = made(module.Alignment, 12, C), tokens(B, 5, 12), tokens()
    keep = REAL[:, None].expand(-1, 5, -1)
    return m(query, y, REAL.sum(-1))[0], F.scaled_dot_product_attention(m.linear(query), y, y, keep)


@proves("transformer_40")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EncoderSelfAttention, C, H), tokens()
    return m(x, REAL), m.w_concat(attended(m.w_q(x), m.w_k(x), m.w_v(x), REAL))


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


@proves("graph_transformer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, edges = made(module.Attention, C, 4, H), tokens(), tokens(B, T, T, C)
    alone = [
        m(row[None, real], pairs[None, real][:, :, real])[0]
        for row, pairs, real in zip(x, edges, REAL, strict=True)
    ]
    return m(x, edges, REAL)[REAL], torch.cat(alone)


@proves("resshift_81")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.SwinTransformerBlock, C, 2), tokens(B, C, 8, 8)
    # Pixels see each other if they share a shifted window, and the shift did not carry one of them around the border.
    line = torch.arange(8)
    window = (line - 2) % 8 // 4
    near = (window[:, None] == window) & ((line[:, None] < 2) == (line < 2))
    keep = (near[:, None, :, None] & near[None, :, None, :]).reshape(64, 64)
    q, k, v = m.attn.qkv(m.norm1(image.flatten(2).transpose(1, 2))).chunk(3, -1)
    out = m.attn.proj(attended(q, k, v, keep, count=2))
    return m(image), image + out.transpose(1, 2).view_as(image)


@proves("xformers_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, q, k, v = made(module.ScaledDotProduct, causal=True), tokens(), tokens(), tokens()
    return m(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)


@proves("former_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, 2, mask=True), tokens()
    context = attended(m.toqueries(x), m.tokeys(x), m.tovalues(x), CAUSAL, count=2)
    return m(x), m.unifyheads(context)


@proves("vllm_omni_5704")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DiTAttention, C, H, 4), tokens()
    alone = [m(row[None, real])[0] for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL)[REAL], torch.cat(alone)


@proves("srformer_14")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.PSA_Block, C, 2), tokens(B, 8, 12, C)
    x = m.norm1(image).roll((-2, -2), (1, 2))
    expected = torch.zeros_like(x)
    for i, j in ((i, j) for i in (0, 4) for j in (0, 4, 8)):
        window = x[:, i : i + 4, j : j + 4]
        cells = m.attn.kv(window).view(B, 2, 2, 2, 2, 2, 4).permute(5, 0, 1, 3, 2, 4, 6)
        k, v = cells.reshape(2, B, 4, C)
        from_top, from_left = torch.arange(i, i + 4) >= 6, torch.arange(j, j + 4) >= 10
        region = from_top[:, None] * 2 + from_left
        keep = region.flatten()[:, None] == region[::2, ::2].flatten()
        context = attended(m.attn.q(window.flatten(1, 2)), k, v, keep, count=2)
        expected[:, i : i + 4, j : j + 4] = m.attn.proj(context).view(B, 4, 4, C)
    return m(image), image + expected.roll((2, 2), (1, 2))


@proves("mmdetection_11803")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.BiMultiHeadAttention, C, 12, 20, H)
    image, text = tokens(B, 5, C), tokens(B, T, 12)
    alone = [
        m(places[None], row[None, real])[0]
        for places, row, real in zip(image, text, REAL, strict=True)
    ]
    return m(image, text, REAL)[0], torch.cat(alone)


@proves("di_engine_333")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, C, H, torch.nn.Dropout(0.0)), tokens()
    q, k, v = m.attention_pre(x).chunk(3, -1)
    return m(x, REAL), m.project(attended(q, k, v, REAL))


@proves("jiant_465")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.BertEmbedderModule, 20), torch.randint(1, 20, (B, T)) * REAL
    alone = [m(row[None, real])[0] for row, real in zip(ids, REAL, strict=True)]
    return m(ids)[REAL], torch.cat(alone)


@proves("pytorch_examples_649")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerModel, C, H), tokens()
    a = m.self_attn
    q, k, v = F.linear(x, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
    return m(x), m.norm(x + a.out_proj(attended(q, k, v, CAUSAL)))


@proves("crowd_behavior_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, people = made(module.EmitterDenoiser, C, H, context_dim=5), tokens(B, T, 4)
    steps, scenes, counts = torch.tensor([1, 5, 9]), tokens(B, 5), REAL.sum(1)
    alone = [m(people[[i], : counts[i]], steps[[i]], scenes[[i]], counts[[i]])[0] for i in range(B)]
    return m(people, steps, scenes, counts)[REAL], torch.cat(alone)


@proves("diskt_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.ContradictoryAttention, C, H), tokens()
    past = x[:, :4]
    return m(x, x, x)[:, :4], m(past, past, past)


@proves("buzzbloom_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CascadeEncoder, C, H), tokens()
    return m(x)[:, :4], m(x[:, :4])


@proves("boltz_523")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, atoms, real = made(module.AtomAttention, C, 5, H, 3), tokens(4, T, C), torch.ones(4, T)
    pairs = tokens(2, 2, 3, 3, 5)
    return m(atoms, pairs, real), _each(m, atoms, pairs.repeat_interleave(2, 0), real)


@proves("attentions_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    context = attended(m.query_proj(x), m.key_proj(x), m.value_proj(x), REAL)
    return m(x, x, x, ~REAL[:, None].expand(B, T, T))[0], context


@proves("keras_23038")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DecoderSelfAttention, C, H), tokens()
    a = m.attention
    context = attended(a.query_dense(x), a.key_dense(x), a.value_dense(x), CAUSAL)
    return m(x), m.norm(x + a.output_dense(context))


@proves("cellflow_226")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TokenAttentionPooling, C, H), tokens()
    alone = [m(row[None, real], real[None, real]) for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL), torch.cat(alone)


@proves("transformers_47946")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, states = made(module.GPT2Model, C, H), tokens(B, 4, C), tokens()
    alone = [m(x[[i]], states[[i]][:, REAL[i]]) for i in range(B)]
    return m(x, states, None, REAL.long()), torch.cat(alone)


@proves("video_diffusion_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, videos, bias = made(module.Attention, C, H, 5), tokens(B, 4, T, C), tokens(H, T, T)
    separate = torch.tensor([True, False, True])
    q, k, v = (x.unflatten(-1, (H, 5)).transpose(2, 3) for x in m.to_qkv(videos).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    mixed = torch.where(separate[:, None, None, None, None], v, mixed)
    return m(videos, bias, separate), m.to_out(mixed.transpose(2, 3).flatten(3))


@proves("atkt_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionModule, C, 5), tokens()
    scores = m.similarity(m.mlp(x).tanh())
    past = [(scores[:, :t].softmax(1) * x[:, :t]).sum(1) for t in range(1, T + 1)]
    return m(x), torch.cat([torch.stack(past, 1), x], -1)


@proves("mistral_inference_218")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBlock, C, 24, H), tokens(1, 10, C)
    angles = [module.precompute_freqs_cis_2d(C // H, 2, w).to(torch.cdouble) for w in (3, 2)]
    alone = [m(*image) for image in zip(x.split([6, 4], 1), angles, strict=True)]
    return m(x, torch.cat(angles), module.block_diagonal_mask([6, 4])), torch.cat(alone, 1)


@proves("lighthouse_77")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, video, text = made(module.T2V_TransformerEncoder, C, H), tokens(B, 5, C), tokens()
    counts = REAL.sum(1)
    alone = [m(video[[i]], text[[i], : counts[i]]) for i in range(B)]
    return m(video, text, REAL.long()), torch.cat(alone)


@proves("causal_transformer_decoder_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CausalTransformerDecoder, C, H)
    x, memory = tokens(T, B, C), tokens(5, B, C)
    return m(x, memory), torch.cat([m(x[: t + 1], memory)[-1:] for t in range(T)])


@proves("eduktm_39")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, v = made(module.MultiHeadAttention, C, n_heads=H), tokens(), tokens()
    mask = CAUSAL[None, None]
    parts = [m(x[:, :t], x[:, :t], v[:, :t], mask[:, :, :t, :t])[:, -1:] for t in range(1, T + 1)]
    return m(x, x, v, mask), torch.cat(parts, 1)


@proves("local_attention_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.LocalAttention, 4, causal=True, exact_windowsize=True)
    q, k, v = (tokens(B, 12, C) for _ in range(3))
    keep = torch.ones(12, 12, dtype=torch.bool).tril().triu(-4)
    return m(q, k, v), F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@proves("alpa_608")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.OPTSelfAttention, module.OPTConfig(C, H, 8)), tokens()
    q, k, v = m.qkv_combined(x).chunk(3, -1)
    expected = m.out_proj(attended(q, k, v, CAUSAL))
    steps = in_steps(lambda y, cache: m(y, cache or m.init_cache(B, torch.float64)), x)
    return torch.stack([m(x)[0], steps]), expected.expand(2, B, T, C)


@proves("news_recommendation_llm_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.PLMBasedNewsEncoder), torch.randint(1, 64, (B, T)) * REAL
    alone = [m(ids[i : i + 1, :n], REAL[i : i + 1, :n]) for i, n in enumerate(LENGTHS)]
    return m(ids, REAL), torch.cat(alone)


@proves("nemo_6677")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, spec = made(module.AlignerModel, 20, C, 8), tokens(B, 8, 9)
    text, aligner = torch.randint(1, 20, (B, T)), m.alignment_encoder
    keys = aligner.key_proj(m.embed(text).transpose(1, 2)).transpose(1, 2)
    distances = torch.cdist(aligner.query_proj(spec).transpose(1, 2), keys)
    scores = (-0.0005 * distances**2).masked_fill(~REAL[:, None], float("-inf"))
    actual, _ = m(spec, torch.tensor([9, 8, 7]), text, REAL.sum(1))
    return actual, scores.softmax(-1)[:, None]


@proves("time_series_prediction_32")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, memory = made(module.DecoderLayer, C, H), tokens(), tokens(B, 4, C)
    a, c = m.self_attention, m.cross_attention
    y = m.ln1(x + attended(a.dense_q(x), a.dense_k(x), a.dense_v(x), CAUSAL))
    y = m.ln2(y + attended(c.dense_q(y), c.dense_k(memory), c.dense_v(memory)))
    return m(x, memory), m.ln3(y + m.ffn(y))


@proves("unsloth_2868")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaAttention, C, H, 2), tokens()
    q, k = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x), 2))
    context = F.scaled_dot_product_attention(
        q, k, heads(m.v_proj(x), 2), is_causal=True, enable_gqa=True
    )
    return m(x), m.o_proj(merged(context))


@proves("speechbrain_2276")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.FastSpeech2Encoder, enc_d_model=C)
    ids, kept = torch.randint(1, 40, (B, T)) * REAL, REAL[..., None].double()
    angles = torch.arange(T).double()[:, None] * 10000.0 ** -(torch.arange(0.0, C, 2) / C).double()
    x = m.encPreNet(ids) + torch.cat([angles.sin(), angles.cos()], -1)
    return m(ids), m.encoder[0](x * kept, ~REAL) * kept


@proves("grapharna_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SequenceStructureModule, C), tokens(7, C)
    alone = [m.transformer_encoder(one[None])[0] for one in x.split([4, 3])]
    batch = torch.tensor([0] * 4 + [1] * 3)
    return m(x[:, : C // 2], x[:, C // 2 :], batch), torch.cat(alone)


@proves("molm_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, atoms = made(module.Blip2Qformer), tokens(B, T, 24)
    former, x, keys = m.Qformer, m.query_tokens.expand(B, -1, -1), m.ln_graph(atoms)
    for a, seen, keep in ((former.attention, None, None), (former.crossattention, keys, REAL)):
        seen = x if seen is None else seen
        context = attended(a.query(x), a.key(seen), a.value(seen), keep)
        x = a.LayerNorm(a.dense(context) + x)
    x = former.LayerNorm(former.output_query(F.gelu(former.intermediate_query(x))) + x)
    return m(atoms, ~REAL), F.normalize(m.graph_proj(x), dim=-1)


@proves("opennmt_272")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.StdRNNDecoder, C), tokens(), tokens()
    states = m.rnn(x)[0]
    query = m.attn.linear_in(states)
    keep = REAL[:, None, :]
    context = F.scaled_dot_product_attention(query, source, source, keep, scale=1.0)
    expected = m.attn.linear_out(torch.cat([context, states], -1)).tanh()
    return m(x, source, REAL.sum(-1))[0], expected


@proves("entrenar_310")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBlock, C, H, 2, 24), tokens()
    y = m.input_norm(x)
    q, k, v = rotated(heads(m.w_q(y))), rotated(heads(m.w_k(y), 2)), heads(m.w_v(y), 2)
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = x + m.w_o(merged(context))
    y = m.post_attn_norm(expected)
    return m(x), expected + m.w_down(F.silu(m.w_gate(y)) * m.w_up(y))


@proves("keras_io_1046")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.TransformerDecoder, C, 24, H), tokens(), tokens()
    first, second, words = m.attention_1, m.attention_2, REAL.flip(0)
    seen = (CAUSAL & words[:, None])[:, None]
    q, k, v = (heads(f(x)) for f in (first.query_dense, first.key_dense, first.value_dense))
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
    y = m.layernorm_1(x + first.output_dense(context))
    projected = second.query_dense(y), second.key_dense(source), second.value_dense(source)
    y = m.layernorm_2(y + second.output_dense(attended(*projected, REAL)))
    return m(x, source, words, REAL), m.layernorm_3(y + m.dense_proj(y))


@proves("praxis_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.PraxisAttention, module.AttentionConfig(C, H)), tokens()
    blocks = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0]])
    keep = CAUSAL & (blocks[:, :, None] == blocks[:, None])
    place = torch.arange(T, dtype=torch.float64)
    slopes = 4.0 ** -torch.arange(1, H + 1, dtype=torch.float64)
    bias = -slopes[:, None, None] * (place[:, None] - place).abs()
    bias = bias.masked_fill(~keep[:, None], -torch.inf)
    q, k, v = heads(m.query(x)), heads(m.key(x), 2), heads(m.value(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)
    return m(x, blocks), m.output(merged(context))


@proves("cdistnet_pytorch_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, places, patches, words = (
        made(module.MDCDP, C, 24, H, 4, 4),
        tokens(),
        tokens(B, 9, C),
        tokens(),
    )

    def unit(u: Any, x: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
        a = u.slf_attn
        x = a.layer_norm(a.fc(attended(a.w_qs(x), a.w_ks(y), a.w_vs(y), keep)) + x)
        return u.layer_norm(x + u.w_2(F.relu(u.w_1(x))))

    x = unit(m.sae, places, places, CAUSAL)
    seen, read = unit(m.cbi_v, x, patches, None), unit(m.cbi_s, x, words, CAUSAL)
    gate = (torch.cat([seen, read], -1) @ m.conv.weight[:, :, 0, 0].T).sigmoid()
    return m(places, patches, words), (1 - gate) * seen + gate * read


@proves("sktime_10685")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.MomentFMForecastNet, 24, 5, 4, C, H)
    starts, expected = [0, 9, 12], []
    series, observed = tokens(B, 2, 24), torch.arange(24) >= torch.tensor(starts)[:, None]
    # One series at a time: the patches that hold values, and nothing else.
    for row, start in zip(series, starts, strict=True):
        for y in row[:, start:]:
            mean, stdev = y.mean(), (y.var(correction=0) + 1e-5).sqrt()
            patches = F.pad((y - mean) / stdev, (start % 4, 0)).view(1, -1, 4)
            x = m.model.value_embedding(patches) + m.model.position_embedding[start // 4 :]
            for block in m.model.blocks:
                q, k, v = block.qkv(block.norm1(x)).chunk(3, -1)
                x = x + block.o(attended(q, k, v))
                x = x + block.ff(block.norm2(x))
            features = F.pad(m.model.norm(x), (0, 0, start // 4, 0)).flatten()
            expected.append(m.model.head(features) * stdev + mean)
    return m(series * observed[:, None], observed.long()), torch.stack(expected).view(B, 2, 5)


@proves("nsa_release_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.NativeSparseAttention, C, H, 2, 2, 3), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    gates, rows = m.gate_proj(x).sigmoid().view(B, T, 2, H, 1), []

    def block(c: Any, y: Tensor, j: int) -> Tensor:
        return c.proj((y[:, :, 2 * j : 2 * j + 2] + c.pos_emb).flatten(2))

    # One query at a time: the blocks that end before it or with it, and its window.
    for t in range(T):
        near = F.scaled_dot_product_attention(
            q[:, :, [t]], *(y[:, :, max(0, t - 2) : t + 1] for y in (k, v)), enable_gqa=True
        )
        far, full = torch.zeros_like(near), range((t + 1) // 2)
        if full:
            keys = torch.stack([block(m.compress_k, k, j) for j in full], 2)
            values = torch.stack([block(m.compress_v, v, j) for j in full], 2)
            far = F.scaled_dot_product_attention(q[:, :, [t]], keys, values, enable_gqa=True)
        rows.append(gates[:, t, 0] * far[:, :, 0] + gates[:, t, 1] * near[:, :, 0])
    return m(x), m.o_proj(torch.stack(rows, 1).flatten(2))


@proves("graphtrans_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, nodes = made(module.GraphTransformer, 3, 8, C, H, 24), tokens(13, 8)
    graphs, block, expected = torch.tensor([0] * 6 + [1] * 4 + [2] * 3), m.blocks[0], []
    for graph in range(3):
        x = m.gnn2transformer(nodes[graphs == graph])[None]
        y, a = block.ln1(x), block.attn
        x = x + a.proj(attended(a.query(y), a.key(y), a.value(y)))
        x = x + block.mlp(block.ln2(x))
        expected.append(m.graph_pred_linear(x.mean(1)))
    return m(nodes, graphs), torch.cat(expected)


@proves("jafar_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, video = made(module.STTransformer, C, 16, 8, 1, H), tokens(B, T, 4, C)
    block = m.blocks[0]

    def attention(a: Any, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return a.out(attended(a.query(x), a.key(x), a.value(x), keep))

    x = m.embed(video) + m.positions.pe[:4]
    y = block.spatial_norm(x)
    x = x + torch.stack([attention(block.spatial_attention, y[:, t]) for t in range(T)], 1)
    y = block.temporal_norm(x)
    x = x + torch.stack(
        [attention(block.temporal_attention, y[:, :, n], CAUSAL) for n in range(4)], 2
    )
    return m(video), m.out(x + F.gelu(block.ffn(block.ffn_norm(x))))


@proves("pytorch_transformer_19")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Transformer, 20, 30, 16, C, 2, H, d_ff=24)
    source, words = torch.randint(1, 20, (B, T)) * REAL, torch.randint(1, 30, (B, T))

    def attend(a: Any, x: Tensor, y: Tensor, keep: Tensor) -> Tensor:
        return a.w_o(attended(a.w_q(x), a.w_k(y), a.w_v(y), keep))

    memory = m.src_embed(source)
    for layer in m.encoder:
        first, second = layer.residual_connections
        x = first.norm(memory)
        memory = memory + attend(layer.self_attention_block, x, x, REAL)
        memory = memory + layer.feed_forward_block(second.norm(memory))
    memory, y = m.encoder_norm(memory), m.tgt_embed(words)
    for layer in m.decoder:
        first, second, third = layer.residual_connections
        x = first.norm(y)
        y = y + attend(layer.self_attention_block, x, x, CAUSAL)
        y = y + attend(layer.cross_attention_block, second.norm(y), memory, REAL)
        y = y + layer.feed_forward_block(third.norm(y))
    return m(source, words), m.projection_layer(m.decoder_norm(y))


@proves("kempner_forge_131")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.VideoVLMWrapper, 20, C, 2, H, 2, 24, 8)
    pixels, words = tokens(B, 3, 3, 4, 8), torch.randint(0, 20, (B, T))
    real = torch.arange(3) < torch.tensor([3, 2, 1])[:, None]
    prefix = m.adapter(m.vision_encoder(pixels.flatten(0, 1)).flatten(2).mT).reshape(B, 6, C)
    x = torch.cat([prefix, m.transformer.token_embedding(words)], 1)
    seen = torch.cat([real.repeat_interleave(2, 1), torch.ones(B, T, dtype=torch.bool)], 1)
    keep = torch.ones(6 + T, 6 + T, dtype=torch.bool).tril() & seen[:, None, None]
    for layer in m.transformer.layers:
        a, y = layer.attention, layer.attention_norm(x)
        q, k = rotated(heads(a.q_proj(y))), rotated(heads(a.k_proj(y), 2))
        context = F.scaled_dot_product_attention(q, k, heads(a.v_proj(y), 2), keep, enable_gqa=True)
        x = x + a.o_proj(merged(context))
        y = layer.mlp_norm(x)
        x = x + layer.down_proj(F.silu(layer.gate_proj(y)) * layer.up_proj(y))
    return m(pixels, words, real), m.transformer.output_head(m.transformer.norm(x[:, 6:]))


@proves("mlverse_torch_1205")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, query, source = made(module.nn_multihead_attention, C, H), tokens(B, 4, C), tokens()
    torch.nn.init.normal_(m.in_proj_bias)
    (wq, wk, wv), (bq, bk, bv) = m.in_proj_weight.chunk(3), m.in_proj_bias.chunk(3)
    projected = F.linear(query, wq, bq), F.linear(source, wk, bk), F.linear(source, wv, bv)
    expected = m.out_proj(attended(*projected, REAL))
    added = torch.zeros(B, T, dtype=torch.float64).masked_fill(~REAL, -torch.inf)
    calls = [
        m(query.mT.permute(2, 0, 1), *[source.transpose(0, 1)] * 2, p)[0] for p in (~REAL, added)
    ]
    return torch.stack(calls).transpose(1, 2), expected.expand(2, *expected.shape)


@proves("speechbrain_1107")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TransformerASRDecoder, 20, C, H, 2, 24)
    words, frames, expected = torch.randint(1, 20, (B, 5)), tokens(), []
    # One utterance at a time, without its padding.
    for row, real in enumerate(REAL):
        y = frames[row, real][None]
        x = m.embedding(words[row])[None] * C**0.5 + m.positional_encoding_decoder.pe[:, :5]
        for layer in m.layers:
            z = layer.norm1(x)
            x = x + _projected(layer.self_attn, z, z, CAUSAL[:5, :5])
            x = x + _projected(layer.multihead_attn, layer.norm2(x), y)
            x = x + layer.pos_ffn(layer.norm3(x))
        expected.append(m.seq_lin(m.norm(x)))
    return m(words, frames, REAL.sum(-1)), torch.cat(expected)


@proves("paddle3d_235")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.DetrTransformerDecoderLayer, C, H, 24)
    x, place, bev = tokens(), tokens(), tokens(B, 9, C)
    hidden = torch.zeros(T, T, dtype=torch.bool)
    hidden[:2, 2:], hidden[2:, :2] = True, True

    def seen(block: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
        a = block.attn
        return a.out_proj(attended(a.q_proj(q), a.k_proj(k), a.v_proj(v), keep))

    y = m.norms[0](x + seen(m.self_attn, x + place, x + place, x, torch.logical_not(hidden)))
    y = m.norms[1](y + seen(m.cross_attn, y + place, bev, bev))
    return m(x, bev, place, hidden), m.norms[2](y + m.ffn(y))


@proves("seq2seq_pytorch_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Seq2SeqAttention, 6, 7, 20, 30, 12, C)
    source, target = torch.randint(1, 20, (B, T)) * REAL, torch.randint(1, 30, (B, 5))
    expected = []
    # One sentence at a time, without its padding.
    for words, translation in zip(source, target, strict=True):
        states, (h, c) = m.encoder(m.src_embedding(words[words > 0])[None])
        h, c = (torch.cat([y[1], y[0]], -1) for y in (h, c))
        h, c = m.encoder2decoder(h).tanh(), m.encoder2decoder(c)
        context, d = m.ctx2ctx(states), m.decoder
        for word in translation:
            gates = d.input_weights(m.trg_embedding(word)[None]) + d.hidden_weights(h)
            i, f, g, o = gates.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            weights = (context @ d.attention_layer.linear_in(h)[..., None]).softmax(1)
            h = torch.cat([(weights * context).sum(1), h], 1)
            h = d.attention_layer.linear_out(h).tanh()
            expected.append(m.decoder2vocab(h))
    return m(source, target).flatten(0, 1), torch.cat(expected)
