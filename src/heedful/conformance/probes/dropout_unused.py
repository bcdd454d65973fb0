"""Probe: a dropout that the target declares is applied in training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.modules.dropout import _DropoutNd as Dropout

from heedful.conformance.calling import names
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.dropout import dropout_steps
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import DEFAULTS, FUSED
from heedful.conformance.probes.dropout_in_training import dropped_tensor
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import same_steps
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine, tree_of
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

OF_WEIGHTS = "att"
"""A part of the names of dropouts that are meant for the weights: attn_drop, attention_dropout."""
OF_OUTPUTS: re.Pattern[str] = re.compile(r"^(proj|resid|out|ff)\w*drop")
"""The names of dropouts that are meant for what follows the attention."""

OFF_BY_CALLER: Mapping[str, bool] = {
    **dict.fromkeys(("deterministic", "inference"), True),
    **dict.fromkeys(("training", "train", "is_training"), False),
}
"""Flags of a call by which a caller turns dropout on, and the defaults with which it is off."""


@probe("dropout-unused")
def dropout_unused(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run in train mode, and check that each dropout layer or probability that is meant for the weights acts."""
    mistaken = next(_drops_by_another(evidence), None)
    if mistaken is not None:
        yield mistaken
        return
    first, idle = _training_run(evidence.subject.fresh(train=True, seed=1), evidence)
    second = evidence.in_training(2)
    attentions = find_attentions(first)
    if not attentions or not same_steps(first, second) or not first.output.isfinite().all():
        return
    dropped = {dropped_tensor(step, attentions, first) for step in dropout_steps(first, second)}
    if "weights" in dropped:
        idle = []
    elif dropped:
        idle = [name for name in idle if OF_WEIGHTS in name]
    elif any(_states_no_dropout(attention.context_step) for attention in attentions):
        layers = _layers(evidence.subject)
        idle = [name for name in idle if OF_WEIGHTS in name or name in layers]
    if not idle or _is_switched_off(evidence.subject):
        return
    attention = attentions[0]
    B, T = evidence.inputs.sizes
    yield Finding(
        "dropout-unused",
        "bug",
        f"The target declares the dropout {idle[0]}, but in training no weight is dropped: nothing applies it.",
        f"B = {B}, T = {T}",
        SourceLine.of(attention.softmax_step or attention.context_step),
    )


def _is_switched_off(subject: Subject) -> bool:
    """Check whether the dropout is not meant to act: an attribute such as `use_dropout` is False, or a call's flag is.

    The flag is its own, such as `deterministic=True` in the style of Flax.
    """
    flags = {name: it.default for name, it in subject.target.parameters.items()}
    if any(flags.get(name) is off for name, off in OFF_BY_CALLER.items()):
        return True
    parts = () if subject.module is None else subject.module.modules()
    return any(
        value is False and "drop" in name
        for part in parts
        if not is_from_torch(part)
        for name, value in vars(part).items()
    )


def _training_run(subject: Subject, evidence: Evidence) -> tuple[Observation, list[str]]:
    """Return a run in train mode, and the dropouts that may have had no part in it: layers by name, and numbers."""
    called: set[nn.Module] = set()
    layers = _layers(subject)
    for layer in layers.values():
        layer.register_forward_pre_hook(lambda layer, _: called.add(layer))
    run = subject.record(evidence.inputs)
    parts = () if subject.module is None else subject.module.modules()
    idle = [name for name, layer in layers.items() if layer not in called]
    return run, [*idle, *(name for part in parts for name in _probabilities(part))]


def _layers(subject: Subject) -> dict[str, Dropout]:
    """Return the layers of dropout, by name, that drop anything."""
    parts = () if subject.module is None else subject.module.named_modules()
    return {name: part for name, part in parts if isinstance(part, Dropout) and part.p > 0}


def _drops_by_another(evidence: Evidence) -> Iterator[Finding]:
    """Report calls of PyTorch's attention that drop weights with the probability that the output's dropout has.

    The target keeps one for the weights.
    """
    module = evidence.subject.module
    for step in evidence.baseline.trace:
        given = _stated_probability(step)
        if given is None or module is None or step.module is None:
            continue
        owner = module.get_submodule(step.module)
        kept = [it for it in (*vars(owner), *owner._modules) if "drop" in it]
        of_weights = [it for it in kept if OF_WEIGHTS in it]
        read = [it.attr for it in ast.walk(given) if isinstance(it, ast.Attribute)]
        other = next((it for it in read if OF_OUTPUTS.search(it)), None)
        if other is not None and of_weights and not {*of_weights} & {*read}:
            yield Finding(
                "dropout-unused",
                "bug",
                f"The weights are dropped with the probability {other}, which is meant for the output; "
                f"{of_weights[0]}, which is meant for the weights, has no effect.",
                "",
                SourceLine.of(step),
                f"Pass the probability of {of_weights[0]} in train mode.",
            )


def _states_no_dropout(step: Step) -> bool:
    """Check whether a call of PyTorch's attention says dropout_p=0.0: a number kept elsewhere is not meant for it."""
    probability = _stated_probability(step)
    return isinstance(probability, ast.Constant) and probability.value == 0


def _stated_probability(step: Step) -> ast.expr | None:
    """Return what a call of PyTorch's attention gives as the probability of dropout; None if it gives none."""
    for node in ast.walk(tree_of(step.source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(FUSED):
            given = dict(zip(DEFAULTS, node.args, strict=False))
            given |= {it.arg: it.value for it in node.keywords if it.arg is not None}
            return given.get("dropout_p")
    return None


def _probabilities(part: nn.Module) -> Iterator[str]:
    """Yield the names of a module's own attributes that are probabilities of dropout."""
    for name in () if is_from_torch(part) else names.DROPOUTS:
        value = getattr(part, name, None)
        if isinstance(value, float) and value > 0:
            yield name
