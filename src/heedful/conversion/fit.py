"""Whether one module's weights fit another: what is refused, each with its reason, and what is only remarked."""

from torch import Tensor

from heedful.conversion.anatomy import QKV, Projections, neutral
from heedful.errors import ArgumentError


def check_fit(source: Projections, target: Projections) -> None:
    """Raise `ArgumentError` unless the target can compute exactly what the source computes."""
    check_storage(source, target)
    check_causality(source, target)
    check_sizes(source, target)
    check_output(source, target)
    check_biases(source, target)


def check_storage(source: Projections, target: Projections) -> None:
    """One dtype and one device, with numbers in memory."""
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
            remedy="Bring them together first: module.to(dtype=…, device=…).",
        )
    if storages_of(target) != storages:
        raise ArgumentError(
            "into",
            expected=f"{storages[0]}, as the source",
            received=" and ".join(storages_of(target)),
            remedy="Bring one to the other first: module.to(dtype=…, device=…).",
        )


def storages_of(projections: Projections) -> list[str]:
    """Every dtype and device among the weights, in words."""
    weights = (field for field in vars(projections).values() if isinstance(field, Tensor))
    return sorted({f"{weight.dtype} on {weight.device}" for weight in weights})


def check_causality(source: Projections, target: Projections) -> None:
    """Both see the future or neither does, unless each call of one of them decides."""
    names = {True: "masks the future", False: "sees the future"}
    if {source.settings.causal, target.settings.causal} == {True, False}:
        raise ArgumentError(
            "into",
            expected=f"a module that {names[bool(source.settings.causal)]}, as {source.settings.module} does",
            received=f"{target.settings.module}, which {names[bool(target.settings.causal)]}",
            remedy="torch.nn.MultiheadAttention can be either: each call decides. "
            "A module with W_query … of its own counts as causal if it has a buffer `mask`.",
        )


def check_sizes(source: Projections, target: Projections) -> None:
    """As many heads, each of the same sizes: the scores' scale and each softmax depend on them."""
    sizes = {
        "num_heads": (source.settings.num_heads, target.settings.num_heads),
        "d_in": (source.d_in, target.d_in),
        "features of each head's queries and keys": (source.key_dim, target.key_dim),
        "features of each head's values": (source.value_dim, target.value_dim),
    }
    remedy = "Build the target with the source's sizes; a wrapper's d_out counts one head, others' all heads."
    if source.key_dim != source.value_dim:
        remedy = "Only EinsumMultiHeadAttention has values of another size than keys: pass key_dim."
    for name, (expected, received) in sizes.items():
        if expected != received:
            raise ArgumentError(
                "into",
                expected=f"{name} = {expected}, as in {source.settings.module}",
                received=f"{received} in {target.settings.module}",
                remedy=remedy,
            )


def check_output(source: Projections, target: Projections) -> None:
    """A target without output projection is like one with the identity; nothing else can do without."""
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
            remedy="Build the target with the source's width of outputs.",
        )


def check_biases(source: Projections, target: Projections) -> None:
    """A target without a bias is like one with zeros."""
    for field in (*(f"{role}_bias" for role in QKV), "output_bias"):
        if getattr(target, field) is None and not is_neutral(source, field):
            raise ArgumentError(
                "into",
                expected=f"a module with a {field}: that of {source.settings.module} is not zero",
                received=f"{target.settings.module}, which has none",
                remedy="Build the target with qkv_bias=True (torch: bias=True), or convert into a class with biases.",
            )


def is_neutral(projections: Projections, field: str) -> bool:
    """Whether the module computes the same without this field."""
    weights: Tensor | None = getattr(projections, field)
    if weights is None:
        return True
    nothing = neutral(projections, field)
    return weights.numel() == nothing.numel() and bool(
        (weights.flatten() == nothing.flatten()).all()
    )


def remarks(source: Projections, target: Projections) -> tuple[str, ...]:
    """What a reader of the certificate should know though outputs agree: where training or calling differs."""
    ours, theirs = source.settings, target.settings
    found = [
        f"{field} stays behind: it is neutral, and {theirs.module} has none."
        for field in ("output", *(f"{role}_bias" for role in QKV), "output_bias")
        if getattr(source, field) is not None and getattr(target, field) is None
    ]
    for what in ("dropout", "output_dropout", "context_length"):
        before, after = getattr(ours, what), getattr(theirs, what)
        if before != after:
            found.append(f"{what} is {before} in {ours.module} and {after} in {theirs.module}.")
    if ours.causal is None or theirs.causal is None:
        undecided = ours.module if ours.causal is None else theirs.module
        found.append(f"{undecided} is causal only where its call asks for it.")
    return tuple(found)
