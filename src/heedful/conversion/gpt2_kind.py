"""GPT-2's attention, as nanoGPT and transformers have it: c_attn makes queries, keys and values, c_proj mixes heads."""

import inspect

import torch
from torch import Tensor, nn

from heedful.conversion.anatomy import (
    QKV,
    Anatomy,
    Place,
    Places,
    Settings,
    hidden_from,
    layer_places,
)
from heedful.conversion.kind import Kind
from heedful.errors import ArgumentError


def is_gpt2(module: nn.Module) -> bool:
    layers = (getattr(module, name, None) for name in ("c_attn", "c_proj"))
    has_layers = all(isinstance(getattr(layer, "weight", None), Tensor) for layer in layers)
    return has_layers and any(hasattr(module, name) for name in ("num_heads", "n_head"))


def anatomy(module: nn.Module) -> Anatomy:
    refuse_options(module)
    fused = layer_places(module, "c_attn", "fused")
    mixing = layer_places(module, "c_proj", "output")
    context_dim = mixing["output"][0].view(module).shape[1]
    refuse_grouped_heads(fused["fused"][0].view(module).shape[0], context_dim)
    places: Places = {}
    for index, role in enumerate(QKV):
        third = (index * context_dim, (index + 1) * context_dim)
        for field, (whole,) in fused.items():
            part = Place(whole.parameter, third, whole.transposed)
            places[field.replace("fused", role)] = (part,)
    return Anatomy(settings_of(module), places | mixing)


def refuse_options(module: nn.Module) -> None:
    """Raise `ArgumentError` for what transformers' module can do and no other kind can."""
    options = {
        "is_cross_attention": (False, "Convert the self-attention beside it."),
        "scale_attn_weights": (True, "Multiply the queries' weights and biases by √K instead."),
        "scale_attn_by_inverse_layer_idx": (
            False,
            "Divide the queries' weights and biases by layer_idx + 1 instead.",
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


def refuse_grouped_heads(fused_dim: int, context_dim: int) -> None:
    """Raise `ArgumentError` unless each head has queries, keys and values of its own."""
    if fused_dim != 3 * context_dim:
        raise ArgumentError(
            "c_attn",
            expected=f"{3 * context_dim} features, three times the {context_dim} that c_proj takes",
            received=f"{fused_dim}: heads in groups that share keys and values",
            remedy="Repeat each key and value head for every query head of its group first.",
        )


def settings_of(module: nn.Module) -> Settings:
    attention, residual = (
        getattr(module, name, None) for name in ("attn_dropout", "resid_dropout")
    )
    return Settings(
        module=type(module).__name__,
        num_heads=getattr(module, "num_heads" if hasattr(module, "num_heads") else "n_head"),
        causal=getattr(module, "is_causal", True),
        dropout=attention.p if isinstance(attention, nn.Dropout) else 0.0,
        output_dropout=residual.p if isinstance(residual, nn.Dropout) else 0.0,
        context_length=context_length_of(module),
    )


def context_length_of(module: nn.Module) -> int | None:
    """The most tokens: the buffer `bias` is nanoGPT's mask; transformers keeps the number in the model's config."""
    mask = getattr(module, "bias", None)
    if isinstance(mask, Tensor):
        return mask.shape[-1]
    return getattr(getattr(module, "config", None), "max_position_embeddings", None)


def call(module: nn.Module, x: Tensor, causal: bool) -> Tensor:
    if causal and is_handed_its_mask(module):
        hidden = hidden_from(x.shape[1], x.device)
        mask = torch.zeros(hidden.shape).to(x).masked_fill(hidden, -torch.inf)
        output = module(x, attention_mask=mask[None, None])
    else:
        output = module(x)
    return output if isinstance(output, Tensor) else output[0]


def usage(module: nn.Module, causal: bool) -> str:
    if not is_handed_its_mask(module):
        return "module(x)"
    mask = ", attention_mask=torch.full((1, 1, T, T), -torch.inf).triu(1)" if causal else ""
    return f"module(x{mask})[0]"


def is_handed_its_mask(module: nn.Module) -> bool:
    """Whether the model around it hands it the causal mask, as in transformers; nanoGPT's has its own."""
    return "attention_mask" in inspect.signature(module.forward).parameters


FUSED = Kind("a GPT-2 attention with c_attn and c_proj", is_gpt2, anatomy, call, usage)
