"""`torch.nn.MultiheadAttention`: one fused input projection, and no causality but what each call asks for."""

from torch import Tensor, nn

from heedful.conversion.anatomy import QKV, Anatomy, Place, Settings, hidden_from, output_places
from heedful.conversion.kind import Kind
from heedful.errors import ArgumentError


def is_torch(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def anatomy(module: nn.MultiheadAttention) -> Anatomy:
    refuse_options(module)
    parameters = dict.fromkeys(QKV, "in_proj_weight")
    if module.in_proj_bias is not None:
        parameters |= {f"{role}_bias": "in_proj_bias" for role in QKV}
    E = module.embed_dim
    thirds = {role: (i * E, (i + 1) * E) for i, role in enumerate(QKV)}
    places = {
        field: (Place(parameter, thirds[field.removesuffix("_bias")]),)
        for field, parameter in parameters.items()
    }
    settings = Settings(
        module=type(module).__name__,
        num_heads=module.num_heads,
        causal=None,
        dropout=module.dropout,
    )
    return Anatomy(settings, places | output_places(module))


def refuse_options(module: nn.MultiheadAttention) -> None:
    """Raise `ArgumentError` for what only `nn.MultiheadAttention` can do."""
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
                expected=f"{expected}: self-attention among the given tokens alone",
                received=f"{received} in {type(module).__name__}",
                remedy="No other kind of module can do that: build this one without the option.",
            )


def call(module: nn.MultiheadAttention, x: Tensor, causal: bool) -> Tensor:
    tokens = x if module.batch_first else x.transpose(0, 1)
    hidden = hidden_from(x.shape[1], x.device) if causal else None
    output, _ = module(tokens, tokens, tokens, attn_mask=hidden, need_weights=False)
    return output if module.batch_first else output.transpose(0, 1)


def usage(module: nn.MultiheadAttention, causal: bool) -> str:
    mask = ", attn_mask=torch.ones(T, T, dtype=torch.bool).triu(1)" if causal else ""
    layout = "" if module.batch_first else "  # x is (T, B, d_in)"
    return f"module(x, x, x, need_weights=False{mask})[0]{layout}"


MULTIHEAD = Kind("torch.nn.MultiheadAttention", is_torch, anatomy, call, usage)
