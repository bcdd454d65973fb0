"""Small models with random weights, one of each family with a different attention."""

import pytest

transformers = pytest.importorskip(
    "transformers",
    reason="transformers is missing; install it with: pip install -e '.[transformers]'",
)

VOCABULARY = 99
WINDOW = 7
LOCAL = 8  # a window that extends by half of this to both sides
_NAMED = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
_SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
_GROUPED = {**_NAMED, **_SIZES, "num_key_value_heads": 2}


def gpt2(**changes):
    """Return a model with trained positions and one query head per key head."""
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0)
    sizes = {"n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 128}
    config = transformers.GPT2Config(**{**_NAMED, **sizes, **dropouts, **changes})
    return transformers.GPT2LMHeadModel(config)


def llama(**changes):
    """Return a model with rotary positions and three query heads per key head."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**_GROUPED, **changes}))


def mistral():
    """Return a model with a sliding window in every layer."""
    config = transformers.MistralConfig(**_GROUPED, head_dim=8, sliding_window=WINDOW)
    return transformers.MistralForCausalLM(config)


def gemma2():
    """Return a model with an effective soft-cap and windows in every other layer."""
    capped = {"attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 1, "initializer_range": 0.2}
    config = transformers.Gemma2Config(**_GROUPED, **capped, head_dim=8, sliding_window=WINDOW)
    return transformers.Gemma2ForCausalLM(config)


def gpt_oss():
    """Return a model with sink logits, windows in every other layer, and experts."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.2}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    config = transformers.GptOssConfig(
        **_GROUPED, **experts, **rope, head_dim=8, sliding_window=WINDOW
    )
    return transformers.GptOssForCausalLM(config)


def llama4():
    """Return a model with chunks in one layer and full causal attention in the other."""
    chunks = {"attention_chunk_size": 8, "no_rope_layers": [1, 0], "moe_layers": []}
    config = transformers.Llama4TextConfig(
        **_GROUPED, **chunks, head_dim=8, intermediate_size_mlp=64
    )
    return transformers.Llama4ForCausalLM(config)


def bert(**changes):
    """Return an encoder."""
    config = transformers.BertConfig(**_NAMED, **_SIZES, **changes)
    return transformers.BertForMaskedLM(config)


def modernbert():
    """Return an encoder with a bidirectional window in one of two layers."""
    config = transformers.ModernBertConfig(
        **_NAMED, **_SIZES, local_attention=LOCAL, global_attn_every_n_layers=2
    )
    return transformers.ModernBertForMaskedLM(config)


def t5():
    """Return an encoder and decoder with trained position biases and no scale."""
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        **sizes,
        pad_token_id=0,
        eos_token_id=None,
        decoder_start_token_id=0,
        relative_attention_max_distance=16,
        relative_attention_num_buckets=8,
    )
    return transformers.T5ForConditionalGeneration(config)


def bart(**changes):
    """Return an encoder and a decoder with cross-attention."""
    layers = {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 128}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 48}
    sizes = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.0}
    tokens = {"decoder_start_token_id": 0, "forced_eos_token_id": None}
    config = transformers.BartConfig(**{**_NAMED, **layers, **heads, **sizes, **tokens, **changes})
    return transformers.BartForConditionalGeneration(config)


def vit():
    """Return an encoder of image patches."""
    config = transformers.ViTConfig(**_SIZES, image_size=32, patch_size=4)
    return transformers.ViTForImageClassification(config)


DECODERS = (gpt2, llama, mistral, gemma2, gpt_oss, llama4)
ENCODERS = (bert, modernbert)
BOTH = (t5, bart)
