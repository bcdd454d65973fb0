"""Convert one attention module's weights into another."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TypeVar

from torch import nn

from heedful.conversion.adapters import adapt
from heedful.conversion.adapters.adapter import AdaptedModule
from heedful.conversion.builders import build_module
from heedful.conversion.certificate import Certificate
from heedful.conversion.compatibility import check_compatible, differences
from heedful.conversion.projections import Projections, read_projections, write_projections
from heedful.conversion.verification import certify
from heedful.errors import ArgumentError

M = TypeVar("M", bound=nn.Module)


def convert(
    source: nn.Module, into: type[M] | M, *, context_length: int | None = None
) -> tuple[M, Certificate]:
    """Convert the weights of one attention module into another, and certify that both compute the same.

    The supported modules are the textbook's classes, any module with the same parameter names,
    `heedful.nn.MultiHeadAttention`, `torch.nn.MultiheadAttention`, and GPT-2's attention with c_attn and c_proj as in
    nanoGPT and transformers. The source does not change and shares no memory with the result. A missing bias is
    replaced by zeros, a missing output projection by the identity. A bias or output projection that the target lacks
    must have these values.

    Args:
        source: the module whose weights are read, all of one floating dtype on one device.
        into: a class, or a module whose parameters are filled. A new module of a class has the source's sizes, dropout,
            dtype, device, training mode and frozen parameters. A module keeps its own dropout, mode and
            `requires_grad`. GPT-2's modules are constructed from a config, so pass a module for these.
        context_length: the maximum number of tokens of a new module; by default, that of the source.

    Returns:
        The module and the certificate. The certificate also states how to call the module, because
        `nn.MultiheadAttention` is causal only if its call asks for it.

    Raises:
        ArgumentError: the target cannot compute what the source computes, for the reason given in the message; or its
            outputs differ, because one of the modules computes more than its weights determine. `into` does not change
            in this case.

    Examples:
        >>> import torch
        >>> from heedful.textbook import MultiHeadAttention
        >>> source = MultiHeadAttention(8, 8, context_length=6, num_heads=2)
        >>> module, certificate = convert(source, torch.nn.MultiheadAttention)
        >>> module.in_proj_weight.shape
        torch.Size([24, 8])
        >>> certificate.exact
        True
    """
    original = adapt(source, "source")
    projections = read_projections(source, original.weight_map)
    module = candidate_module(projections, into, context_length)
    converted = adapt(module, "into")
    unfilled = read_projections(module, converted.weight_map)
    check_context_length(context_length, unfilled)
    check_compatible(projections, unfilled)
    write_projections(projections, module, converted.weight_map)
    certificate = certify(original, converted, differences(projections, unfilled))
    check_exact(certificate)
    if isinstance(into, nn.Module):
        write_projections(projections, into, converted.weight_map)
        return into, certificate
    copy_training_state(original, converted)
    return module, certificate


def candidate_module(projections: Projections, into: type[M] | M, context_length: int | None) -> M:
    """Return a new module, or a copy of the given one so that a failure leaves that unchanged."""
    if not isinstance(into, type):
        return copy.deepcopy(into)
    if context_length is not None:
        settings = replace(projections.settings, context_length=context_length)
        projections = replace(projections, settings=settings)
    return build_module(into, projections)


def check_context_length(context_length: int | None, target: Projections) -> None:
    """Raise `ArgumentError` if `context_length` would have no effect."""
    if context_length not in (None, target.settings.context_length):
        raise ArgumentError(
            "context_length",
            expected="None, for a module that is already built or has no limit",
            received=repr(context_length),
            remedy=f"Omit it: {target.settings.module} has context_length={target.settings.context_length}.",
        )


def check_exact(certificate: Certificate) -> None:
    """Raise `ArgumentError` if the two modules compute different outputs."""
    if not certificate.exact:
        raise ArgumentError(
            "source",
            expected="a module that computes softmax(Q Kᵀ / √K) V, its projections, and nothing else",
            received=f"one whose weights give other outputs in the target:\n{certificate}\n",
            remedy="Compare the two forward methods. One of them may use another mask or scale, a position "
            "encoding, a normalization, a hook or a parametrization; or some weights are not finite.",
        )


def copy_training_state(source: AdaptedModule, target: AdaptedModule) -> None:
    """Give a new module the source's training mode, and freeze the parameters that were frozen there.

    A parameter with several origins is frozen only if all of them are. A parameter that the source lacks is frozen only
    if the whole source is.
    """
    target.module.train(source.module.training)
    trainable: dict[str, bool] = {}
    for field, slices in target.weight_map.slices.items():
        origins = source.weight_map.slices.get(field)
        if origins is None:
            parameters = list(source.module.parameters())
        else:
            parameters = [origin.stored(source.module) for origin in origins]
        is_trainable = any(parameter.requires_grad for parameter in parameters)
        for part in slices:
            trainable[part.parameter] = trainable.get(part.parameter, False) or is_trainable
    for name, flag in trainable.items():
        target.module.get_parameter(name).requires_grad_(flag)
