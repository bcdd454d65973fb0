"""Construct a new module of each class from the weights that it will hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from heedful.conversion.projections import Projections
from heedful.errors import ArgumentError
from heedful.nn import MultiHeadAttention as ShippedAttention
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
)

M = TypeVar("M", bound=nn.Module)


def build_module(cls: type[M], projections: Projections) -> M:
    """Return a new module of a class, with the sizes, dtype and device of the weights, but not yet their values.

    Raises:
        ArgumentError: the constructor of the class is unknown, or the weights do not determine its arguments.
    """
    for known, arguments in ARGUMENTS.items():
        if issubclass(cls, known):
            # On the CPU, the constructor draws only from the generator whose state is restored.
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                module = cls(**arguments(projections))
            return module.to(device=projections.query.device, dtype=projections.query.dtype)
    raise ArgumentError(
        "into",
        expected="one of the classes " + ", ".join(known.__name__ for known in ARGUMENTS),
        received=f"{cls.__name__}, whose constructor is not known",
        remedy="Build the module yourself and pass it instead of its class; its parameters are then filled.",
    )


def self_attention_v1_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `SelfAttentionV1`."""
    return {"d_in": p.d_in, "d_out": p.value_dim}


def self_attention_v2_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `SelfAttentionV2`."""
    return self_attention_v1_arguments(p) | {"qkv_bias": p.has_qkv_bias}


def causal_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `CausalAttention`."""
    if p.settings.context_length is None:
        raise ArgumentError(
            "context_length",
            expected="the maximum number of tokens of the new module",
            received=f"None, and {p.settings.module} has no limit to copy",
            remedy="Pass it: convert(source, into, context_length=1024).",
        )
    return self_attention_v2_arguments(p) | {
        "context_length": p.settings.context_length,
        "dropout": p.settings.dropout,
    }


def wrapper_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `MultiHeadAttentionWrapper`."""
    return causal_arguments(p) | {"num_heads": p.settings.num_heads}


def multi_head_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of the textbook's `MultiHeadAttention`."""
    return wrapper_arguments(p) | {"d_out": p.context_dim}


def einsum_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `EinsumMultiHeadAttention`."""
    return multi_head_arguments(p) | {"key_dim": p.key_dim}


def shipped_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `heedful.nn.MultiHeadAttention`."""
    check_one_width("d_model", {"tokens": p.d_in, "outputs": p.output_dim})
    return {
        "d_model": p.d_in,
        "num_heads": p.settings.num_heads,
        "head_dim": p.value_dim,
        "dropout": p.settings.dropout,
        "bias": p.has_qkv_bias or p.output_bias is not None,
        "causal": p.settings.causal is not False,  # the default of the class if each call decides
    }


def torch_arguments(p: Projections) -> dict[str, Any]:
    """Return the constructor arguments of `torch.nn.MultiheadAttention`."""
    widths = {"tokens": p.d_in, "all heads' contexts": p.context_dim, "outputs": p.output_dim}
    check_one_width("embed_dim", widths)
    return {
        "embed_dim": p.d_in,
        "num_heads": p.settings.num_heads,
        "dropout": p.settings.dropout,
        "bias": p.has_qkv_bias or p.output_bias is not None,
        "batch_first": True,
    }


def check_one_width(argument: str, widths: dict[str, int]) -> None:
    """Raise `ArgumentError` unless all widths are equal, because the constructor has one argument for them."""
    if len(set(widths.values())) > 1:
        raise ArgumentError(
            "into",
            expected=f"one width for {', '.join(widths)}: the class has only {argument} for them",
            received=", ".join(f"{width} features of {name}" for name, width in widths.items()),
            remedy="Convert into a class that distinguishes d_in from d_out, such as the textbook's "
            "MultiHeadAttention.",
        )


ARGUMENTS: dict[type[nn.Module], Callable[[Projections], dict[str, Any]]] = {
    SelfAttentionV1: self_attention_v1_arguments,
    SelfAttentionV2: self_attention_v2_arguments,
    CausalAttention: causal_arguments,
    MultiHeadAttentionWrapper: wrapper_arguments,
    MultiHeadAttention: multi_head_arguments,
    EinsumMultiHeadAttention: einsum_arguments,
    ShippedAttention: shipped_arguments,
    nn.MultiheadAttention: torch_arguments,
}
