"""The adapter for `torch.nn.MultiheadAttention`, which has a fused input projection and is causal only on request."""

from __future__ import annotations

from torch import Tensor, nn

from heedful.conversion.adapters.adapter import Adapter, future_mask
from heedful.conversion.weight_map import (
    QKV,
    AttentionSettings,
    ParameterSlice,
    WeightMap,
    WeightSlices,
    output_slices,
)
from heedful.errors import ArgumentError


def matches(module: nn.Module) -> bool:
    """Check whether a module is a `torch.nn.MultiheadAttention`."""
    return isinstance(module, nn.MultiheadAttention)


def weight_map(module: nn.MultiheadAttention) -> WeightMap:
    """Return the module's settings and parameter slices."""
    check_options(module)
    E = module.embed_dim
    rows = {role: (index * E, (index + 1) * E) for index, role in enumerate(QKV)}
    slices: WeightSlices = {role: (ParameterSlice("in_proj_weight", rows[role]),) for role in QKV}
    if module.in_proj_bias is not None:
        slices |= {f"{role}_bias": (ParameterSlice("in_proj_bias", rows[role]),) for role in QKV}
    settings = AttentionSettings(
        module=type(module).__name__,
        num_heads=module.num_heads,
        causal=None,
        dropout=module.dropout,
    )
    return WeightMap(settings, slices | output_slices(module))


def check_options(module: nn.MultiheadAttention) -> None:
    """Raise `ArgumentError` for options that only `nn.MultiheadAttention` supports."""
    options = {
        "kdim": (module.embed_dim, module.kdim),
        "vdim": (module.embed_dim, module.vdim),
        "add_bias_kv": (False, module.bias_k is not None),
        "add_zero_attn": (False, module.add_zero_attn),
    }
    for option, (expected, received) in options.items():
        if received != expected:
            raise ArgumentError(
                option,
                expected=f"{expected}: self-attention among the input tokens alone",
                received=f"{received} in {type(module).__name__}",
                remedy="No other type of module supports this option: build this one without it.",
            )


def call(module: nn.MultiheadAttention, x: Tensor, causal: bool) -> Tensor:
    """Return the module's output for x (B, T, d_in)."""
    tokens = x if module.batch_first else x.transpose(0, 1)
    mask = future_mask(x.shape[1], x.device) if causal else None
    output, _ = module(tokens, tokens, tokens, attn_mask=mask, need_weights=False)
    return output if module.batch_first else output.transpose(0, 1)


def call_text(module: nn.MultiheadAttention, causal: bool) -> str:
    """Return the source of the call."""
    mask = ", attn_mask=torch.ones(T, T, dtype=torch.bool).triu(1)" if causal else ""
    layout = "" if module.batch_first else "  # x is (T, B, d_in)"
    return f"module(x, x, x, need_weights=False{mask})[0]{layout}"


ADAPTER: Adapter = Adapter("torch.nn.MultiheadAttention", matches, weight_map, call, call_text)
