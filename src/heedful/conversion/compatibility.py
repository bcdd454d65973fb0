"""Check whether the weights of one module fit another, and list the differences that do not prevent a conversion."""

from __future__ import annotations

from torch import Tensor

from heedful.conversion.projections import Projections, is_neutral
from heedful.conversion.weight_map import QKV
from heedful.errors import ArgumentError


def check_compatible(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` unless the target can compute exactly what the source computes."""
    check_storage(source, target)
    check_causality(source, target)
    check_sizes(source, target)
    check_output(source, target)
    check_biases(source, target)


def check_storage(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` unless all weights have the same dtype and device, and are in memory."""
    if source.query.is_meta:
        raise ArgumentError(
            "source",
            expected="weights in memory",
            received=f"a {source.settings.module} on the meta device, which has none",
            remedy="Load its weights first: module.to_empty(device=…), then load_state_dict.",
        )
    storages = storages_of(source)
    if len(storages) > 1:
        raise ArgumentError(
            "source",
            expected="weights of one dtype on one device",
            received=f"{' and '.join(storages)} in {source.settings.module}",
            remedy="Convert them first: module.to(dtype=…, device=…).",
        )
    if storages_of(target) != storages:
        raise ArgumentError(
            "into",
            expected=f"{storages[0]}, as the source",
            received=" and ".join(storages_of(target)),
            remedy="Convert one of the modules first: module.to(dtype=…, device=…).",
        )


def storages_of(projections: Projections) -> list[str]:
    """Return the distinct dtypes and devices of the weights, as text."""
    weights = (field for field in vars(projections).values() if isinstance(field, Tensor))
    return sorted({f"{weight.dtype} on {weight.device}" for weight in weights})


def check_causality(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` if only one of the modules masks the future, unless its calls decide that."""
    descriptions = {True: "masks the future", False: "sees the future"}
    if {source.settings.causal, target.settings.causal} == {True, False}:
        required = descriptions[bool(source.settings.causal)]
        actual = descriptions[bool(target.settings.causal)]
        raise ArgumentError(
            "into",
            expected=f"a module that {required}, as {source.settings.module} does",
            received=f"{target.settings.module}, which {actual}",
            remedy="torch.nn.MultiheadAttention can do both, because each call decides. "
            "Any other module with W_query, W_key and W_value counts as causal if it has a buffer `mask`.",
        )


def check_sizes(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` unless heads agree in number and size, which determine the scale and each softmax."""
    sizes = {
        "num_heads": (source.settings.num_heads, target.settings.num_heads),
        "d_in": (source.d_in, target.d_in),
        "features of each head's queries and keys": (source.key_dim, target.key_dim),
        "features of each head's values": (source.value_dim, target.value_dim),
    }
    remedy = (
        "Build the target with the source's sizes. Note that a wrapper's d_out counts one head, "
        "while that of the other classes counts all heads."
    )
    if source.key_dim != source.value_dim:
        remedy = (
            "Only EinsumMultiHeadAttention supports values of another size than keys: pass key_dim."
        )
    for name, (expected, received) in sizes.items():
        if expected != received:
            raise ArgumentError(
                "into",
                expected=f"{name} = {expected}, as in {source.settings.module}",
                received=f"{received} in {target.settings.module}",
                remedy=remedy,
            )


def check_output(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` unless the outputs fit. A missing output projection is equivalent to the identity."""
    if target.output is None and not is_neutral(source, "output"):
        raise ArgumentError(
            "into",
            expected=f"a module with an output projection: that of {source.settings.module} is not the identity",
            received=f"{target.settings.module}, which has none",
            remedy="Convert into MultiHeadAttention or torch.nn.MultiheadAttention.",
        )
    if source.output_dim != target.output_dim:
        raise ArgumentError(
            "into",
            expected=f"outputs of {source.output_dim} features, as of {source.settings.module}",
            received=f"{target.output_dim} features from {target.settings.module}",
            remedy="Build the target with the source's output width.",
        )


def check_biases(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` unless the target has every bias of the source. A missing bias is equivalent to zeros."""
    for field in (*(f"{role}_bias" for role in QKV), "output_bias"):
        if getattr(target, field) is None and not is_neutral(source, field):
            raise ArgumentError(
                "into",
                expected=f"a module with a {field}: that of {source.settings.module} is not zero",
                received=f"{target.settings.module}, which has none",
                remedy="Build the target with qkv_bias=True (in torch, bias=True), or convert into a class with "
                "biases.",
            )


def differences(source: Projections, target: Projections) -> tuple[str, ...]:
    """Return sentences about what differs between two modules although their outputs in eval mode agree."""
    original, converted = source.settings, target.settings
    sentences = [
        f"{field} is not converted: it has no effect, and {converted.module} has none."
        for field in ("output", *(f"{role}_bias" for role in QKV), "output_bias")
        if getattr(source, field) is not None and getattr(target, field) is None
    ]
    for name in ("dropout", "output_dropout", "context_length"):
        before, after = getattr(original, name), getattr(converted, name)
        if before != after:
            sentences.append(
                f"{name} is {before} in {original.module} and {after} in {converted.module}."
            )
    if original.causal is None or converted.causal is None:
        undecided = original.module if original.causal is None else converted.module
        sentences.append(f"{undecided} is causal only if its call asks for it.")
    return tuple(sentences)
