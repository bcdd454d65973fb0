"""convert(): one attention module's weights into another."""

import copy
from dataclasses import replace
from typing import TypeVar

from torch import nn

from heedful.conversion.anatomy import Projections, read, write
from heedful.conversion.builders import build
from heedful.conversion.certificate import Certificate, certify
from heedful.conversion.fit import check_fit, remarks
from heedful.conversion.kind import Subject
from heedful.conversion.kinds import examine
from heedful.errors import ArgumentError

M = TypeVar("M", bound=nn.Module)


def convert(
    source: nn.Module, into: type[M] | M, *, context_length: int | None = None
) -> tuple[M, Certificate]:
    """Carry the weights of one attention module into another, and certify that both compute the same.

    Takes and fills every kind: the textbook's classes and modules with the same names, `heedful.nn.MultiHeadAttention`,
    `torch.nn.MultiheadAttention`, and GPT-2's c_attn/c_proj as in nanoGPT and transformers. `source` is left as it was
    and shares no memory with the result. A missing bias becomes zeros, a missing output projection the identity; zeros
    and the identity may stay behind.

        module, certificate = convert(MultiHeadAttention(8, 8, context_length=6, num_heads=2), nn.MultiheadAttention)
        print(certificate)

    Args:
        source: the module whose weights are read, all of one floating dtype on one device.
        into: a class, of which a new module is built with the source's sizes, dropout, dtype, device, training
            mode and frozen parameters; or a module whose parameters are filled, while dropout, mode and
            `requires_grad` stay its own. GPT-2's modules are built from a config, so pass a module.
        context_length: the most tokens that a new module accepts; the source's own where not given.

    Returns:
        The module, and the `Certificate`, which also says how to call the module: `nn.MultiheadAttention` is causal
        only if its call asks for it.

    Raises:
        ArgumentError: the target cannot compute what the source computes (the text says why), or does not though it
            should, because one of them does more than its weights tell. `into` is then left as it was.
    """
    old = examine(source, "source")
    projections = read(source, old.anatomy)
    module = new_module(projections, into, context_length)
    new = examine(module, "into")
    unfilled = read(module, new.anatomy)
    check_context_length(context_length, unfilled)
    check_fit(projections, unfilled)
    write(projections, module, new.anatomy)
    certificate = certify(old, new, remarks(projections, unfilled))
    check_exact(certificate)
    if isinstance(into, nn.Module):
        write(projections, into, new.anatomy)
        return into, certificate
    follow_training(old, new)
    return module, certificate


def new_module(projections: Projections, into: type[M] | M, context_length: int | None) -> M:
    """A module to try the weights in: a new one, or a copy of the one to fill, which thus survives a failure."""
    if not isinstance(into, type):
        return copy.deepcopy(into)
    if context_length is not None:
        settings = replace(projections.settings, context_length=context_length)
        projections = replace(projections, settings=settings)
    return build(into, projections)


def check_context_length(context_length: int | None, target: Projections) -> None:
    """An option that has no effect would be a surprise later."""
    if context_length not in (None, target.settings.context_length):
        raise ArgumentError(
            "context_length",
            expected="None, for a module that is already built or has no limit",
            received=repr(context_length),
            remedy=f"Leave it out: {target.settings.module} has context_length={target.settings.context_length}.",
        )


def check_exact(certificate: Certificate) -> None:
    """Raise `ArgumentError` rather than hand out a module that computes something else."""
    if not certificate.exact:
        raise ArgumentError(
            "source",
            expected="a module that computes softmax(Q Kᵀ / √K) V, its projections, and nothing else",
            received=f"one whose weights give other outputs in the target:\n{certificate}\n",
            remedy="Look in both forwards for what the weights do not tell: another mask or scale, a position "
            "encoding, a normalisation, a hook, a parametrization; or for weights that are not finite.",
        )


def follow_training(source: Subject, target: Subject) -> None:
    """Give a new module the source's training mode, and freeze each parameter all of whose origins are frozen.

    A parameter that the source lacks is frozen only where all of the source is.
    """
    target.module.train(source.module.training)
    trainable: dict[str, bool] = {}
    for field, places in target.anatomy.places.items():
        origins = source.anatomy.places.get(field)
        stored = (
            source.module.parameters()
            if origins is None
            else [o.stored(source.module) for o in origins]
        )
        was_trainable = any(parameter.requires_grad for parameter in stored)
        for place in places:
            trainable[place.parameter] = trainable.get(place.parameter, False) or was_trainable
    for name, flag in trainable.items():
        target.module.get_parameter(name).requires_grad_(flag)
