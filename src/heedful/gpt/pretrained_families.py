"""The model families of transformers that a `GPT` covers: their configurations and the names of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.problem import DTYPES

FAMILIES: tuple[str, ...] = ("gpt2", "llama", "mistral", "qwen2")
GPT2_ACTIVATIONS: dict[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
GPT2_NAMES: dict[str, str] = {
    "h": "blocks",
    "wte": "token_embedding",
    "wpe": "position_embedding",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
    "ln_f": "norm",
    "attn": "attention",
    "c_fc": "up",
    "lm_head": "head",
}
LLAMA_NAMES: dict[str, str] = {
    "layers": "blocks",
    "embed_tokens": "token_embedding",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn": "attention",
    "q_proj": "W_query",
    "k_proj": "W_key",
    "v_proj": "W_value",
    "o_proj": "out_proj",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "lm_head": "head",
}
# Suffixes of buffers, which older files contain beside the weights.
BUFFERS: tuple[str, ...] = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def translate(
    fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[GPTConfig, dict[str, Tensor]]:
    """Translate a transformers model into the configuration and the weights of a `GPT`.

    Args:
        fields: the transformers configuration.
        tensors: the weights by their names in transformers.

    Returns:
        The configuration, without dropout, and the weights by their names in `GPT`.

    Raises:
        ArgumentError: the model is of another family, or computes something that `GPT` does not.
    """
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise _unsupported("model_type", family, " or ".join(FAMILIES))
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES and not name.endswith(BUFFERS):
            raise _unsupported("dtype", tensor.dtype, f"floating-point weights, for {name}")
    tensors = {
        name.removeprefix("transformer.").removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if not name.endswith(BUFFERS)
    }
    try:
        config, tensors = (_gpt2 if family == "gpt2" else _llama)(fields, tensors)
    except KeyError as error:
        raise _unsupported(str(error.args[0]), "a configuration without it", "a number") from error
    if config.tied:
        tensors.pop("head.weight", None)  # transformers ignores it as well
    return config, tensors


def _gpt2(
    fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[GPTConfig, dict[str, Tensor]]:
    activation = fields.get("activation_function", "gelu_new")
    if activation not in GPT2_ACTIVATIONS:
        raise _unsupported("activation_function", activation, " or ".join(GPT2_ACTIVATIONS))
    _refuse(fields, "scale_attn_weights", True)
    _refuse(fields, "scale_attn_by_inverse_layer_idx", False)
    _refuse(fields, "add_cross_attention", False)
    config = GPTConfig.gpt2(
        vocab_size=fields["vocab_size"],
        context_length=fields["n_positions"],
        d_model=fields["n_embd"],
        num_layers=fields["n_layer"],
        num_heads=fields["n_head"],
        d_mlp=fields.get("n_inner") or 0,
        norm_eps=fields["layer_norm_epsilon"],
        activation=GPT2_ACTIVATIONS[activation],
        tied=fields.get("tie_word_embeddings", True),
        dropout=0.0,
    )
    renamed = {}
    for name, tensor in tensors.items():
        if name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")):
            tensor = tensor.T  # Conv1D stores (inputs, outputs), nn.Linear (outputs, inputs)
        name = _rename(name, GPT2_NAMES)
        if "c_attn" in name:
            for role, part in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[name.replace("c_attn", f"W_{role}")] = part
        else:
            name = name.replace("attention.c_proj", "attention.out_proj")
            renamed[name.replace("mlp.c_proj", "mlp.down")] = tensor
    return config, renamed


def _llama(
    fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[GPTConfig, dict[str, Tensor]]:
    _refuse(fields, "hidden_act", "silu")
    _refuse(fields, "partial_rotary_factor", 1.0)
    renamed = {_rename(name, LLAMA_NAMES): tensor for name, tensor in tensors.items()}
    config = GPTConfig.llama(
        vocab_size=fields["vocab_size"],
        context_length=fields["max_position_embeddings"],
        d_model=fields["hidden_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=fields.get("num_key_value_heads") or 0,
        head_dim=fields.get("head_dim") or 0,
        d_mlp=fields["intermediate_size"],
        rotary_base=_rotary_base(fields),
        norm_eps=fields["rms_norm_eps"],
        tied=fields.get("tie_word_embeddings", False),
        window=_window(fields),
        bias=any(name.endswith("bias") for name in renamed),
    )
    if config.bias:
        _add_missing_biases(renamed)
    return config, renamed


def _rename(name: str, names: Mapping[str, str]) -> str:
    return ".".join(names.get(part, part) for part in name.split("."))


def _rotary_base(fields: Mapping[str, Any]) -> float:
    """Return the base of the angles; transformers 5 keeps it in `rope_parameters`, earlier versions elsewhere."""
    rotary = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    rope_type = rotary.get("rope_type", rotary.get("type", "default"))
    if rope_type != "default":
        raise _unsupported("rope_type", rope_type, "default: unscaled angles")
    _refuse(rotary, "partial_rotary_factor", 1.0)
    return rotary.get("rope_theta", fields.get("rope_theta", 10_000.0))


def _window(fields: Mapping[str, Any]) -> int | None:
    _refuse(fields, "use_sliding_window", False)  # Qwen 2 has a window in some of its layers only
    return None if "use_sliding_window" in fields else fields.get("sliding_window")


def _add_missing_biases(tensors: dict[str, Tensor]) -> None:
    """Add biases of zero, because a `GPT` has a bias in each of its linear layers or in none."""
    for name in [name for name in tensors if name.startswith("blocks") and "norm" not in name]:
        weight = tensors[name]
        if name.endswith("weight"):
            tensors.setdefault(name.removesuffix("weight") + "bias", weight.new_zeros(len(weight)))


def _refuse(fields: Mapping[str, Any], name: str, supported: object) -> None:
    """Raise `ArgumentError` unless the field is absent, unset or has the supported value."""
    value = fields.get(name)
    if value is not None and value != supported:
        raise _unsupported(name, value, str(supported))


def _unsupported(name: str, received: object, expected: str) -> ArgumentError:
    return ArgumentError(
        name,
        expected=expected,
        received=repr(received),
        remedy="GPT supports nothing else; run the model in transformers "
        'with set_attn_implementation("heedful").',
    )
