"""The conventional names of arguments, attributes and sizes in attention code, by role."""

from __future__ import annotations

import re
from collections.abc import Mapping

Names = tuple[str, ...]  # the most likely name first, wherever they are tried in turn

# Arguments of a call that take one row per token.
TOKEN_IDS: Names = ("input_ids", "tokens", "idx", "ids", "token_ids", "input")
TOKENS: Names = (*TOKEN_IDS, "x", "hidden_states", "inputs", "embeddings")
QUERIES: Names = ("query", "q", "queries", "Q", "xq")
KEYS: Names = ("key", "k", "keys", "K", "xk")
VALUES: Names = ("value", "v", "values", "V", "xv")
PACKED: Names = ("qkv",)  # all three beside one another
CONTEXTS: Names = ("context", "kv", "source", "x_kv")  # may be the tokens themselves

TRANSLATION: re.Pattern[str] = re.compile(r"(tgt|trg|target|dec|output)(_|$)|decoder")
"""The beginning of the name of an argument for the tokens of a translation, after those of its source."""
TRANSLATED: re.Pattern[str] = re.compile(r"(src|source)(_|$)")
"""The beginning of the name of an argument for the tokens that are translated."""

# Other arguments of a call.
MEMORIES: Names = ("memory", "encoder_hidden_states", "encoder_output", "enc_output", "enc_out")
# With targets, some models return the logits of every token instead of the last one's.
TARGET_IDS = "targets"
CAUSAL: Names = (  # also an attribute of a module
    *("is_causal", "causal", "use_causal_attn", "use_causal_mask", "use_causal"),
    "causal_attention",
)
START_POSITIONS: Names = (  # an int
    *("start_pos", "start", "offset", "position", "pos", "cache_pos"),
    *("past_length", "past_len", "past_seq_len", "cache_len", "cache_length"),
)
POSITION_IDS: Names = ("position_ids", "positions", "pos_ids")  # (B, T)
CACHE_SLOTS: Names = ("cache_position", "input_pos")  # (T,)
COMPLEX_ROTATIONS = "freqs_cis"
COSINES_AND_SINES = "position_embeddings"
COSINES: Names = ("freqs_cos", "cos")
SINES: Names = ("freqs_sin", "sin")
HALF_TABLES: Names = ("freqs_cos", "freqs_sin")  # hold each angle once, not twice
ROTARY_TABLES: Names = (
    *(COSINES_AND_SINES, COMPLEX_ROTATIONS, "rope", "rotary_pos_emb"),
    *(*COSINES, *SINES),
)

# Masks.
MEMORY_MASKS: Names = (
    *("memory_key_padding_mask", "memory_mask", "encoder_attention_mask", "cross_attention_mask"),
)
PADDING_MASKS: Names = (
    *("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "padding_mask"),
    *("pad_mask", "attention_mask", "key_mask", "x_mask", "input_mask", "token_mask"),
    *("valid_mask", "src_mask", "mask", "masks", "attn_mask", "context_mask", "kv_mask"),
    *MEMORY_MASKS,
)
ATTENTION_MASKS: Names = (
    *("attn_mask", "src_mask", "tgt_mask", "attention_mask", "mask", "causal_mask"),
)
ADDED_MASKS: Names = ("attn_bias", "attention_bias")  # numbers that are added to the scores
MASKS: Names = (*PADDING_MASKS, *ATTENTION_MASKS)
VALID_LENGTHS: Names = ("lengths", "lens", "seq_lens", "valid_lens", "valid_len", "valid_lengths")
# Whether True, or 1, means by convention that a token is visible: transformers' mask, and those of torch.nn.
TRUE_KEEPS: Mapping[str, bool] = {
    "attention_mask": True,
    "key_padding_mask": False,
    "src_key_padding_mask": False,
    "tgt_key_padding_mask": False,
}

# Caches.
CACHES: Names = (
    *("past_key_values", "past_key_value", "past_kv", "layer_past", "kv_cache", "cache", "past"),
    *("caches", "kv_caches", "past_kvs", "prev_kv", "cached_kv", "layer_cache"),
    *("past_key_value_state", "past_key_value_states", "past_kv_state", "past_kv_states"),
)
CACHE_PAIRS: tuple[tuple[str, str], ...] = (
    *(("k_cache", "v_cache"), ("cache_k", "cache_v"), ("key_cache", "value_cache")),
    *(("past_k", "past_v"), ("past_key", "past_value"), ("kcache", "vcache")),
)
CACHE_SWITCH: re.Pattern[str] = re.compile(r"^(use|with|enable|is)_.*cach(e|ing)$|^kv_caching$")

# Arguments of a call whose role their name tells.
OF_KNOWN_ROLES: Names = (
    *(
        *TOKENS,
        *QUERIES,
        *KEYS,
        *VALUES,
        *CONTEXTS,
        *MEMORIES,
        TARGET_IDS,
        *CAUSAL,
        *START_POSITIONS,
    ),
    *(
        *POSITION_IDS,
        *CACHE_SLOTS,
        *ROTARY_TABLES,
        *PADDING_MASKS,
        *ATTENTION_MASKS,
        *VALID_LENGTHS,
    ),
    *(*CACHES, *(name for pair in CACHE_PAIRS for name in pair), "use_cache"),
)

# Fields of a result.
OUTPUTS: Names = ("logits", "last_hidden_state")
RETURNED_CACHE = "past_key_values"

# Sizes and settings: arguments of constructors, fields of configurations, attributes of modules.
MODEL_WIDTHS: Names = (
    *("embed_dim", "d_model", "n_embd", "hidden_size", "dim", "embedding_dim", "emb_dim"),
    *("hidden_dim", "model_dim", "d_emb", "features", "channels", "kdim", "vdim", "C", "n_embed"),
    *("emb_size", "embed_size", "embedding_size", "feature_dim", "num_hiddens", "hidden", "n_feat"),
    *("query_dim", "context_dim", "input_size", "key_size", "value_size", "query_size", "n_state"),
    *("chan", "in_planes", "planes", "inplanes", "emb", "units", "num_units", "att_size"),
)
INPUT_WIDTHS: Names = ("d_in", "din", "dim_in", "in_dim", "input_dim", "in_features", "in_ch")
OUTPUT_WIDTHS: Names = (
    *("d_out", "dout", "dim_out", "out_dim", "output_dim", "out_features", "out_ch"),
)
# The widths that heads divide come first: an input's need not be a multiple of their number.
WIDTHS: Names = (*OUTPUT_WIDTHS, *MODEL_WIDTHS, *INPUT_WIDTHS)
HEADS: Names = (
    *("num_heads", "n_head", "n_heads", "heads", "nhead", "num_attention_heads", "nheads", "h"),
    *("num_q_heads", "n_q_heads", "head_count", "num_head", "head_num", "heads_num", "attn_heads"),
    *("number_of_heads", "num_attn_heads", "nb_heads", "H"),
)
KEY_HEADS: Names = (
    *("num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads", "kv_heads"),
    *("num_kv_groups", "n_kv_groups", "num_groups", "n_groups"),
    *("num_heads_kv", "n_heads_kv", "kv_num_heads", "heads_kv"),
)
OF_KEY_HEADS: re.Pattern[str] = re.compile(
    r"^(?!.*(dim|size))((.*(kv|key).*head)|(.*head.*(kv|key))|(.*(query|kv)_group)|(n|num)_kv$)"
)
NO_MASKS: re.Pattern[str] = re.compile(
    r"(feature|feat|embedding|embed|emb)s?$|^(prev|previous|last|past)_"
)
"""The names of arguments that hold vectors, or results of an earlier step, and are no masks."""
HEAD_SIZES: Names = ("head_dim", "dim_head", "d_head", "head_size", "d_k", "d_v", "d_kv")
MAX_LENGTHS: Names = (
    *("context_length", "block_size", "max_len", "max_seq_len", "max_seq_length", "max_length"),
    *("seq_len", "n_positions", "n_ctx", "max_position_embeddings", "context_size", "max_context"),
    *("max_T", "ctx_len", "sequence_length", "max_context_length", "max_block_size"),
    *("n_agents", "num_agents"),  # each is a token
)
WINDOWS: Names = ("window", "window_size", "sliding_window", "local_window", "attention_window")
LATENTS: Names = (
    *("num_latents", "n_latents", "num_latent", "num_inds", "num_slots"),
    *("num_landmarks", "n_landmarks", "landmarks"),
)
SOFT_CAPS: Names = (
    *("softcap", "soft_cap", "logit_softcap", "attn_softcap", "attn_logit_softcapping"),
    *("attention_logit_softcapping", "attn_logits_soft_cap", "logits_softcap"),
    *("attn_logit_softcap", "logits_soft_cap", "logit_soft_cap", "softcap_value", "score_softcap"),
)
# Of multi-head latent attention: the features of a head that turn, and the others.
ROTARY_SIZES: Names = ("qk_rope_head_dim", "rope_head_dim", "qk_rope_dim", "rope_head_size")
STEADY_SIZES: Names = ("qk_nope_head_dim", "nope_head_dim", "qk_nope_dim", "nope_head_size")
ROTARY_PARTS: Names = (
    *("rotary_pct", "rotary_percent", "rotary_percentage", "rope_pct", "partial_rotary_factor"),
)
IMAGE_SIDES: Names = (
    *("input_resolution", "resolution", "img_size", "image_size", "fmap_size", "feat_size"),
)
PATCHES: Names = ("patch_size",)
KERNELS: Names = ("kernel_size",)
SHIFTS: Names = ("shift_size",)
SMALL_SIDES: Names = ("window", "kernel", "patch")  # words in names of sizes within an image
DROPOUTS: Names = (
    *("dropout", "dropout_p", "attn_dropout", "attn_pdrop", "resid_pdrop", "dropout_rate"),
    *("attention_dropout", "drop", "p_dropout", "attn_drop", "proj_drop", "resid_dropout"),
    *("drop_rate", "pdrop", "p"),
)
MLP_WIDTHS: Names = (
    *("d_ff", "ffn_dim", "intermediate_size", "dim_feedforward", "d_mlp", "mlp_dim"),
)
VOCABULARY_SIZES: Names = ("vocab_size", "n_vocab", "vocabulary", "num_embeddings")
LAYERS: Names = (
    *("num_layers", "n_layer", "n_layers", "depth", "num_hidden_layers", "layers"),
    *("num_blocks", "n_blocks", "nb_layers"),
)
MAX_BATCHES: Names = ("max_batch_size", "max_batch", "batch_size", "cache_batch_size")
LAYER_INDICES: Names = ("layer_idx", "layer_id")
ROTARY_BASES: Names = ("rope_theta", "rope_base", "theta")
BIASES: Names = ("qkv_bias", "bias", "use_bias")
BATCH_FIRST: Names = ("batch_first",)
TOKEN_AXIS: Names = ("axis",)
PIXEL_AXES: Names = ("spatial_dims", "ndim", "n_dims")  # how many axes a feature map has
DEVICES: Names = ("device", "DEVICE", "dev")
DTYPES: Names = ("dtype",)
CONFIGURATIONS: Names = ("config", "cfg", "args", "params", "c", "hparams", "model_args")
OF_CONFIGURATIONS: Names = ("_config", "_cfg", "_conf", "_hparams", "_args")  # how a name may end
CONFIGURATIONS_OF: Names = ("config_", "cfg_")  # how a name may begin

# The conventional name that an unknown name means if it contains the word; the first word that fits counts.
WORDS: Mapping[str, str] = {
    "idx": "layer_idx",
    "timestep": "context_length", "time_step": "context_length", "step_dim": "context_length",
    "num_nodes": "context_length", "n_nodes": "context_length", "vertices": "context_length",
    "patches": "context_length",
    "drop": "dropout", "window": "window", "vocab": "vocab_size", "voc_size": "vocab_size", "item": "vocab_size",
    "layer": "num_layers", "bias": "bias",
    "seq": "context_length", "ctx": "context_length", "len": "context_length", "kv_head": "num_kv_heads",
    "dim_head": "head_dim", "size_head": "head_dim", "head_dim": "head_dim", "head_size": "head_dim",
    "head": "num_heads",
    "d_token": "d_model", "embed": "d_model", "emb": "d_model", "model": "d_model", "hidden": "d_model",
    "dim": "d_model", "channel": "d_model", "feature": "d_model", "width": "d_model", "cond": "d_model",
    "plane": "d_model", "feat": "d_model",
    "max_pos": "context_length", "n_positions": "context_length", "num_positions": "context_length",
    "num_tokens": "context_length", "max_t": "context_length",
    "theta": "rope_theta", "kernel_size": "kernel_size",
}  # fmt: skip
# Words in the names of settings that are on or off, and of small numbers that are added to a divisor.
FLAG_WORDS: Names = ("use_", "is_", "has_", "with_", "enable", "causal", "flash", "norm")
EPSILON_WORDS: Names = ("eps", "epsilon")  # whole words: "num_timesteps" is no small number

# Local variables, in lower case, into which code unpacks the shape of its tokens, by axis.
AXES: Mapping[str, Names] = {
    "B": ("b", "bs", "bsz", "nb", "batch", "batch_size", "batchsize", "n_batch", "num_batches"),
    "T": (
        *("t", "n", "l", "s", "tq", "seq", "seq_len", "seqlen", "seq_length", "sequence_length"),
        *(
            "length",
            "tgt_len",
            "src_len",
            "q_len",
            "qlen",
            "klen",
            "tokens",
            "num_tokens",
            "n_tokens",
            "time",
        ),
        *("sq", "sk", "steps", "time_steps", "timesteps", "n_steps", "num_steps"),
        *("frames", "n_frames", "num_frames", "slen", "src_length", "tgt_length"),
    ),
    "H": (*HEADS, "nh", "hq", "np", "ng"),
}
# The same for the features of feature maps.
CHANNELS: Names = ("c", "ch", "chan", "channel", "channels", "d", "dim", "embed_dim", "features")
