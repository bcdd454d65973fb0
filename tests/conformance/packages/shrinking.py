"""Make the configurations of transformers tiny."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "encoder_hidden_size",
         "word_embed_proj_dim", "embedding_size", "d_embed", "emb_dim", "hidden_sizes_", "decoder_hidden_size",
         "projection_dim", "model_dim", "input_dim_", "output_dim_", "cross_attention_hidden_size"), 32),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads",
         "attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads", "encoder_num_attention_heads",
         "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "encoder_num_key_value_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "kv_channels", "d_head"), 8),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "d_inner", "ffn_hidden_size",
         "moe_intermediate_size", "mlp_dim", "dim_feedforward", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
         "num_decoder_layers", "encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("vocab_size", "n_vocab", "num_embeddings", "text_vocab_size"), 99),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions", "max_seq_len", "n_ctx"), 71),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "top_k_experts"), 2),
    "image_size": 32, "patch_size": 8, "sliding_window": 5, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16, "n_group": 1, "topk_group": 1, "num_mel_bins": 16,
    "rotary_dim": 8, "global_head_dim": 8, "first_k_dense_replace": 1,
}  # fmt: skip
"""The sizes of tiny models, by the names that configurations give them."""

ZERO = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "image_token_id",
    "sep_token_id",
)


def shrink(config: Any, overrides: dict[str, Any] | None = None) -> None:
    """Make a configuration of transformers tiny, with those that it holds, in place."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type"):
            shrink(value)
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            setattr(config, name, SIZES[name] if value >= SIZES[name] or "kv" in name else value)
        elif name == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            layers = [*kinds, *kinds][: max(2, len(kinds))]
            config.layer_types = layers
        elif name.endswith("token_id") and isinstance(value, int):
            setattr(config, name, min(value, 3))
        elif name == "rope_parameters" and isinstance(value, dict):
            _shrink_rope(value)
        elif (
            name in ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
            and not value
        ):
            setattr(config, name, 0.25)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        for name in ("num_hidden_layers", "n_layer", "num_layers"):
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, len(kinds))
    if getattr(config, "kv_lora_rank", None) and hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = config.num_attention_heads  # latent attention has no groups
    for name, value in (overrides or {}).items():
        setattr(config, name, value)


def _shrink_rope(parameters: dict[str, Any]) -> None:
    """Divide a head of size 8 into the sections of a multimodal rotary embedding."""
    for value in parameters.values():
        if isinstance(value, dict):
            _shrink_rope(value)
    if "mrope_section" in parameters:
        parameters["mrope_section"] = [2, 1, 1]
