"""The adapter for GPT-2's attention in nanoGPT and transformers.

`c_attn` computes queries, keys and values; `c_proj` is the output projection.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from heedful.conversion.adapters.adapter import Adapter, future_mask
from heedful.conversion.weight_map import (
    QKV,
    AttentionSettings,
    ParameterSlice,
    WeightMap,
    WeightSlices,
    layer_slices,
)
from heedful.errors import ArgumentError


def matches(module: nn.Module) -> bool:
    """Check whether a module has the layers `c_attn` and `c_proj` and a number of heads."""
    layers = (getattr(module, name, None) for name in ("c_attn", "c_proj"))
    has_layers = all(isinstance(getattr(layer, "weight", None), Tensor) for layer in layers)
    return has_layers and any(hasattr(module, name) for name in ("num_heads", "n_head"))


def weight_map(module: nn.Module) -> WeightMap:
    """Return the module's settings and parameter slices."""
    check_options(module)
    fused_slices = layer_slices(module, "c_attn", "fused")
    projection_slices = layer_slices(module, "c_proj", "output")
    context_dim = projection_slices["output"][0].view(module).shape[1]
    check_ungrouped(fused_slices["fused"][0].view(module).shape[0], context_dim)
    slices: WeightSlices = {}
    for index, role in enumerate(QKV):
        rows = (index * context_dim, (index + 1) * context_dim)
        for field, (fused,) in fused_slices.items():
            part = ParameterSlice(fused.parameter, rows, fused.transposed)
            slices[field.replace("fused", role)] = (part,)
    return WeightMap(settings_of(module), slices | projection_slices)


def check_options(module: nn.Module) -> None:
    """Raise `ArgumentError` for options that only transformers' module supports."""
    options = {
        "is_cross_attention": (False, "Convert the self-attention beside it."),
        "scale_attn_weights": (
            True,
            "Multiply the weights and biases of the queries by √K instead.",
        ),
        "scale_attn_by_inverse_layer_idx": (
            False,
            "Divide the weights and biases of the queries by layer_idx + 1 instead.",
        ),
    }
    for option, (expected, remedy) in options.items():
        received = getattr(module, option, expected)
        if received != expected:
            raise ArgumentError(
                option,
                expected=f"{expected}: self-attention with scores divided by √K",
                received=f"{received} in {type(module).__name__}",
                remedy=remedy,
            )


def check_ungrouped(fused_dim: int, context_dim: int) -> None:
    """Raise `ArgumentError` unless each head has its own queries, keys and values."""
    if fused_dim != 3 * context_dim:
        raise ArgumentError(
            "c_attn",
            expected=f"{3 * context_dim} features, three times the {context_dim} that c_proj takes",
            received=f"{fused_dim}: heads in groups that share keys and values",
            remedy="Repeat each key and value head for every query head of its group first.",
        )


def settings_of(module: nn.Module) -> AttentionSettings:
    """Return the module's settings."""
    attention, residual = (
        getattr(module, name, None) for name in ("attn_dropout", "resid_dropout")
    )
    return AttentionSettings(
        module=type(module).__name__,
        num_heads=getattr(module, "num_heads" if hasattr(module, "num_heads") else "n_head"),
        causal=getattr(module, "is_causal", True),
        dropout=attention.p if isinstance(attention, nn.Dropout) else 0.0,
        output_dropout=residual.p if isinstance(residual, nn.Dropout) else 0.0,
        context_length=context_length_of(module),
    )


def context_length_of(module: nn.Module) -> int | None:
    """Return the maximum number of tokens, or None if it is unknown.

    nanoGPT has a causal mask in the buffer `bias`; transformers has the number in the model's config.
    """
    mask = getattr(module, "bias", None)
    if isinstance(mask, Tensor):
        return mask.shape[-1]
    return getattr(getattr(module, "config", None), "max_position_embeddings", None)


def call(module: nn.Module, x: Tensor, causal: bool) -> Tensor:
    """Return the module's output for x (B, T, d_in)."""
    if causal and takes_mask(module):
        hidden = future_mask(x.shape[1], x.device)
        mask = torch.zeros(hidden.shape).to(x).masked_fill(hidden, -torch.inf)
        output = module(x, attention_mask=mask[None, None])
    else:
        output = module(x)
    return output if isinstance(output, Tensor) else output[0]


def call_text(module: nn.Module, causal: bool) -> str:
    """Return the source of the call."""
    if not takes_mask(module):
        return "module(x)"
    mask = ", attention_mask=torch.full((1, 1, T, T), -torch.inf).triu(1)" if causal else ""
    return f"module(x{mask})[0]"


def takes_mask(module: nn.Module) -> bool:
    """Check whether the causal mask is an argument, as in transformers, rather than the module's own, as in nanoGPT."""
    return "attention_mask" in inspect.signature(module.forward).parameters


ADAPTER: Adapter = Adapter(
    "a GPT-2 attention with c_attn and c_proj", matches, weight_map, call, call_text
)
