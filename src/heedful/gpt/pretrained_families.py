"""What transformers' GPT-2 and Llama kinds mean in our terms: each configuration, and each tensor's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.problem import DTYPES

FAMILIES = ("gpt2", "llama", "mistral", "qwen2")
GPT2_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
GPT2_NAMES = {
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
LLAMA_NAMES = {
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
NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # buffers in old files


def translate(
    fields: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[GPTConfig, dict[str, Tensor]]:
    """A transformers model's configuration and weights as ours; dropout, a matter of training, is 0.

    Raises:
        ArgumentError: it is of another kind, or does what our `GPT` does not.
    """
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise _unsupported("model_type", family, " or ".join(FAMILIES))
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES and not name.endswith(NO_WEIGHTS):
            raise _unsupported("dtype", tensor.dtype, f"floating-point weights, for {name}")
    tensors = {
        name.removeprefix("transformer.").removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if not name.endswith(NO_WEIGHTS)
    }
    try:
        config, tensors = (_gpt2 if family == "gpt2" else _llama)(fields, tensors)
    except KeyError as error:
        raise _unsupported(str(error.args[0]), "a configuration without it", "a number") from error
    if config.tied:
        tensors.pop("head.weight", None)  # transformers does not read it either
    return config, tensors


def _gpt2(fields: Mapping[str, Any], tensors: Mapping[str, Tensor]):
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
    named = {}
    for name, tensor in tensors.items():
        if name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")):
            tensor = tensor.T  # Conv1D has inputs by outputs
        name = _renamed(name, GPT2_NAMES)
        if "c_attn" in name:
            for role, part in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                named[name.replace("c_attn", f"W_{role}")] = part
        else:
            name = name.replace("attention.c_proj", "attention.out_proj")
            named[name.replace("mlp.c_proj", "mlp.down")] = tensor
    return config, named


def _llama(fields: Mapping[str, Any], tensors: Mapping[str, Tensor]):
    _refuse(fields, "hidden_act", "silu")
    _refuse(fields, "partial_rotary_factor", 1.0)
    named = {_renamed(name, LLAMA_NAMES): tensor for name, tensor in tensors.items()}
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
        bias=any(name.endswith("bias") for name in named),
    )
    if config.bias:
        _fill_in_biases(named)
    return config, named


def _renamed(name: str, names: Mapping[str, str]) -> str:
    return ".".join(names.get(part, part) for part in name.split("."))


def _rotary_base(fields: Mapping[str, Any]) -> float:
    """transformers 5 keeps all that rotary positions need in `rope_parameters`; before, it was in two places."""
    rotary = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind != "default":
        raise _unsupported("rope_type", kind, "default: angles that are not scaled")
    _refuse(rotary, "partial_rotary_factor", 1.0)
    return rotary.get("rope_theta", fields.get("rope_theta", 10_000.0))


def _window(fields: Mapping[str, Any]) -> int | None:
    _refuse(fields, "use_sliding_window", False)  # Qwen 2's, for some of its layers
    return None if "use_sliding_window" in fields else fields.get("sliding_window")


def _fill_in_biases(tensors: dict[str, Tensor]) -> None:
    """Ours has a bias in every linear layer or none; where a checkpoint has none, zeros are the same."""
    for name in [name for name in tensors if name.startswith("blocks") and "norm" not in name]:
        weight = tensors[name]
        if name.endswith("weight"):
            tensors.setdefault(name.removesuffix("weight") + "bias", weight.new_zeros(len(weight)))


def _refuse(fields: Mapping[str, Any], name: str, supported: object) -> None:
    """Raise unless the field is absent, unset or what we compute."""
    value = fields.get(name)
    if value is not None and value != supported:
        raise _unsupported(name, value, str(supported))


def _unsupported(name: str, received: object, expected: str) -> ArgumentError:
    return ArgumentError(
        name,
        expected=expected,
        received=repr(received),
        remedy="heedful's GPT computes nothing else; run the model by transformers, "
        'with set_attn_implementation("heedful").',
    )
