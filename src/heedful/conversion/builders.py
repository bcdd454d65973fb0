"""How each class is constructed from the weights it is to hold."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from heedful.conversion.anatomy import Projections
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


def build(cls: type[M], projections: Projections) -> M:
    """A new module of a class, with the sizes, dtype and device of the weights; its own weights are arbitrary.

    Raises:
        ArgumentError: a class of unknown constructor, or arguments that the weights do not determine.
    """
    for known, arguments in ARGUMENTS.items():
        if issubclass(cls, known):
            # On the CPU, the only generator that constructing draws from is the one that is put back.
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                module = cls(**arguments(projections))
            return module.to(device=projections.query.device, dtype=projections.query.dtype)
    raise ArgumentError(
        "into",
        expected="one of the classes " + ", ".join(known.__name__ for known in ARGUMENTS),
        received=f"{cls.__name__}, whose constructor is not known",
        remedy="Build the module yourself and pass it instead of its class: its parameters are filled.",
    )


def for_parameters(p: Projections) -> dict[str, Any]:
    return {"d_in": p.d_in, "d_out": p.value_dim}


def for_linear(p: Projections) -> dict[str, Any]:
    return for_parameters(p) | {"qkv_bias": p.has_qkv_bias}


def for_causal(p: Projections) -> dict[str, Any]:
    if p.settings.context_length is None:
        raise ArgumentError(
            "context_length",
            expected="the most tokens that the new module is to accept",
            received=f"None, and {p.settings.module} has no limit to take over",
            remedy="Pass it: convert(source, into, context_length=1024).",
        )
    return for_linear(p) | {
        "context_length": p.settings.context_length,
        "dropout": p.settings.dropout,
    }


def for_wrapper(p: Projections) -> dict[str, Any]:
    return for_causal(p) | {"num_heads": p.settings.num_heads}


def for_split(p: Projections) -> dict[str, Any]:
    return for_wrapper(p) | {"d_out": p.context_dim}


def for_einsum(p: Projections) -> dict[str, Any]:
    return for_split(p) | {"key_dim": p.key_dim}


def for_shipped(p: Projections) -> dict[str, Any]:
    check_one_width("d_model", {"tokens": p.d_in, "outputs": p.output_dim})
    return {
        "d_model": p.d_in,
        "num_heads": p.settings.num_heads,
        "head_dim": p.value_dim,
        "dropout": p.settings.dropout,
        "bias": p.has_qkv_bias or p.output_bias is not None,
        "causal": p.settings.causal is not False,  # where each call decides, as the class does
    }


def for_torch(p: Projections) -> dict[str, Any]:
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
    """Raise `ArgumentError` unless one argument of a constructor can stand for all of the widths."""
    if len(set(widths.values())) > 1:
        raise ArgumentError(
            "into",
            expected=f"one width for {', '.join(widths)}: the class has only {argument} for them",
            received=", ".join(f"{width} features of {what}" for what, width in widths.items()),
            remedy="Convert into a class that tells d_in from d_out, such as the textbook's MultiHeadAttention.",
        )


ARGUMENTS: dict[type[nn.Module], Callable[[Projections], dict[str, Any]]] = {
    SelfAttentionV1: for_parameters,
    SelfAttentionV2: for_linear,
    CausalAttention: for_causal,
    MultiHeadAttentionWrapper: for_wrapper,
    MultiHeadAttention: for_split,
    EinsumMultiHeadAttention: for_einsum,
    ShippedAttention: for_shipped,
    nn.MultiheadAttention: for_torch,
}
