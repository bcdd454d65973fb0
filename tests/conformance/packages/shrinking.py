"""Make the configurations of transformers tiny."""

from __future__ import annotations

from typing import Any

NAMES: dict[int, str] = {
    99: "vocab_size n_vocab num_embeddings text_vocab_size",
    71: "max_position_embeddings n_positions max_source_positions max_target_positions max_seq_len n_ctx",
    48: """intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_inner ffn_hidden_size mlp_dim
        moe_intermediate_size dim_feedforward shared_expert_intermediate_size""",
    32: """hidden_size d_model n_embd dim embed_dim hidden_dim encoder_hidden_size decoder_hidden_size model_dim d_embed
        emb_dim word_embed_proj_dim embedding_size projection_dim cross_attention_hidden_size image_size""",
    16: "q_lora_rank kv_lora_rank qk_head_dim num_mel_bins",
    8: """head_dim d_kv attention_head_size kv_channels d_head patch_size qk_rope_head_dim qk_nope_head_dim v_head_dim
        rotary_dim global_head_dim""",
    5: "sliding_window sliding_window_size swa_window_size attention_window_size local_attention_window",
    4: """num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads attention_heads
        num_encoder_attention_heads num_decoder_attention_heads encoder_num_attention_heads decoder_num_attention_heads
        num_experts num_local_experts n_routed_experts moe_num_experts""",
    2: """num_key_value_heads num_kv_heads n_head_kv encoder_num_key_value_heads decoder_num_key_value_heads
        num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers
        num_decoder_layers encoder_num_hidden_layers decoder_num_hidden_layers
        num_experts_per_tok moe_k top_k_experts""",
    1: "n_group topk_group first_k_dense_replace",
}
SIZES: dict[str, int] = {name: size for size, names in NAMES.items() for name in names.split()}
"""The sizes of tiny models, by the names that configurations give them."""


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
