"""Where dropout acts: on the weights, in training, and nowhere in evaluation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    ancestors,
    steps_from_projection,
    steps_from_tokens,
    steps_to_next_projection,
)
from heedful.conformance.recording.differences import changed_entries, differing_entries, same_steps
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine, last_assignment
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

ENOUGH, MOST_RUNS = 800, 30  # weights that tell p to a few percent, and runs to get as many
SIGMAS = 5.0
NEAR = 1e-4


@probe("dropout-in-eval")
def evaluation(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs twice in eval mode with other random numbers: the outputs must be equal."""
    subject, inputs = evidence.subject, evidence.inputs
    outputs = [subject.fresh(seed=seed).run(inputs).detach() for seed in (1, 2)]
    if not differing_entries(*outputs).any():
        return
    one, other = (subject.fresh(seed=seed).record(inputs) for seed in (1, 2))
    drop = next(iter(_drops(one, other)), None)
    p = None if drop is None else _probability(drop)
    yield Finding(
        "dropout-in-eval",
        "bug",
        f"In eval mode two runs on the same tokens differ by {(outputs[0] - outputs[1]).abs().max():.3g}"
        + ("." if p is None else f": {p:.3g} of the entries are dropped."),
        f"B = {inputs.sizes[0]}, T = {inputs.sizes[1]}",
        None if drop is None else _declared(evidence, drop),
    )


def _declared(evidence: Evidence, drop: Step) -> SourceLine | None:
    """Where a step's dropout is said to act: of PyTorch's fused attention, the line that its argument comes from."""
    variable = re.search(r"\bdropout_p=([a-z_]\w*)\b(?!\.)", drop.source)
    assigned = variable and last_assignment(evidence.subject.callee, drop, variable.group(1))
    return assigned or SourceLine.of(drop)


@probe("dropout-misplaced", "dropout-rescale")
def dropout(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Records runs in train mode with other random numbers: they must part at the weights, and a row still sum to 1."""
    subject, inputs = evidence.subject, evidence.inputs
    one, other = (subject.fresh(train=True, seed=seed).record(inputs) for seed in (1, 2))
    drops = _drops(one, other)
    attentions = find_attentions(one)
    acting = [_Acting(drop, _where(drop, attentions, one)) for drop in drops]
    said = dict.fromkeys(f"on the {it.where}{_said_probability(it.drop)}" for it in acting)
    if said or same_steps(one, other):
        yield Fact("dropout", "; ".join(said) or "none")
    misplaced = _misplaced(acting)
    if misplaced is not None:
        drop, where = misplaced.drop, misplaced.where
        yield Finding(
            "dropout-misplaced",
            "suspicious" if where == "values" else "bug",
            f"In training {_share(one, drop)} of the {where} are set to 0{CONSEQUENCES[where]}",
            f"B = {one.inputs.sizes[0]}, T = {one.inputs.sizes[1]}",
            SourceLine.of(drop),
        )
    misscaled = _misscaled(evidence, attentions, drops)
    if misscaled is not None:
        yield misscaled


CONSEQUENCES = {
    "scores": ", before the softmax: such a key is not dropped, its weight is that of a score of 0.",
    "queries": ", before the scores are made: no weight is dropped, all scores change.",
    "keys": ", before the scores are made: no weight is dropped, all scores change.",
    "values": ", and no weight is dropped.",
    "context": ": single features of what was attended to, where whole weights should be dropped.",
}


@dataclass(frozen=True)
class _Acting:
    """A step that drops, and what: "weights", "scores", …"""

    drop: Step
    where: str


def _misplaced(acting: list[_Acting]) -> _Acting | None:
    """What drops at a place where it should not; features only where no weights are dropped."""
    wrong = [it for it in acting if it.where == "scores"]
    if not any(it.where == "weights" for it in acting):
        wrong += [it for it in acting if it.where in CONSEQUENCES]
    return next(iter(wrong), None)


def _where(drop: Step, attentions: list[RecordedAttention], observation: Observation) -> str:
    """What a step drops, in the field's terms."""
    for attention in attentions:
        if drop in attention.chain:
            softmax = attention.softmax_step
            before = softmax is not None and drop.index < softmax.index
            return "scores" if before else "weights"
        for role in ("query", "key", "value"):
            if drop in steps_from_projection(observation, getattr(attention, f"{role}_source"))[1:]:
                return {"query": "queries", "key": "keys", "value": "values"}[role]
        rearranged = {
            step.index for step in steps_to_next_projection(observation, attention.context_step)
        }
        if any(it.step in rearranged for it in drop.inputs):
            return "context"
    if drop.operation == "multi_head_attention_forward":
        return "weights"
    behind = ancestors(observation.trace.steps, drop)
    attended = any(attention.context_step.index in behind for attention in attentions)
    return "output" if attended or not attentions else "tokens"


def _misscaled(
    evidence: Evidence, attentions: list[RecordedAttention], drops: list[Step]
) -> Finding | None:
    """Divides weights after dropout by those before: what is kept must grow by 1 / (1 − p)."""
    runs = [attentions]
    for position, attention in enumerate(attentions):
        dropped = [it for it in drops if it in attention.chain and not attention.fused]
        if (
            not dropped
            or attention.softmax_step is None
            or dropped[0].index < attention.softmax_step.index
        ):
            continue
        p = _probability(dropped[0]) if len(dropped) == 1 else None
        while p is None and len(runs) * attention.visible.sum() < ENOUGH and len(runs) < MOST_RUNS:
            again = evidence.subject.fresh(train=True, seed=2 + len(runs))
            runs.append(find_attentions(again.record(evidence.inputs)))
        ratios = torch.cat([_ratios(run[position]) for run in runs])
        finding = _wrong_factor(attention, dropped, ratios, p)
        if finding is not None:
            return finding
    return None


def _ratios(attention: RecordedAttention) -> Tensor:
    """By what each weight was multiplied."""
    seen = attention.weights > 0
    return attention.applied_weights[seen] / attention.weights[seen]


def _wrong_factor(
    attention: RecordedAttention, dropped: list[Step], ratios: Tensor, p: float | None
) -> Finding | None:
    kept = ratios[ratios != 0]
    n, share = len(ratios), len(kept) / max(len(ratios), 1)
    if not len(kept) or not torch.allclose(kept, kept[:1].expand_as(kept), rtol=1e-4):
        return None  # rows were made to sum to 1 again
    factor = kept[0].item()
    keep = share if p is None else 1 - p
    uncertainty = (
        NEAR if p is not None else NEAR + SIGMAS * (share * (1 - share) / n) ** 0.5 / share
    )
    if keep == 0 or abs(factor * keep - 1) <= uncertainty:
        return None
    return Finding(
        "dropout-rescale",
        "bug",
        f"In training {share:.3g} of the weights are kept and multiplied by {factor:.3g}, so that a row's "
        f"expected sum is {factor * keep:.3g}; multiplied by 1 / (1 − p) = {1 / keep:.3g} it would be 1.",
        f"{n} weights",
        SourceLine.of(_last_scaling(attention, dropped[-1])),
    )


def _last_scaling(attention: RecordedAttention, drop: Step) -> Step:
    """The last multiplication from a dropout on: what is wrong with the factor is wrong there."""
    after = [
        it for it in attention.chain if it.index > drop.index and it is not attention.context_step
    ]
    scalings = [
        it
        for it in after
        if it.operation.strip("_") in ("mul", "imul", "div", "truediv", "itruediv")
    ]
    return scalings[-1] if scalings else drop


def _drops(one: Observation, other: Observation) -> list[Step]:
    """The steps at which chance enters what is made of the tokens, in order."""
    if not same_steps(one, other):
        return []
    steps = one.trace.steps
    alive, parted, found = steps_from_tokens(steps), set(), []
    for step in steps:
        changed = changed_entries(one, other, step)
        if (
            changed is None
            or not changed.any()
            or step.operation.startswith(("empty", "new_empty"))
        ):
            continue
        before = {it.step for it in step.inputs} & parted
        if step.index in alive:
            parted.add(step.index)
            if not before or _drops_by_itself(step, one) or _drops_weights(step, one, other):
                found.append(step)
    return found


def _drops_weights(step: Step, one: Observation, other: Observation) -> bool:
    """Whether a step sets other positive numbers to 0 in one run than in another: dropout written by hand."""
    dropped = []
    for run in (one, other):
        value = tensor_of(run.trace[step.index])
        given = next(
            (it for source in step.inputs if (it := value_of(run, source)) is not None), None
        )
        if value is None or given is None or given.shape != value.shape or (given < 0).any():
            return False
        dropped.append((value == 0) & (given > 0))
    return not torch.equal(*dropped)


def _drops_by_itself(step: Step, observation: Observation) -> bool:
    if not _probability(step):
        return False
    given = value_of(observation, step.inputs[0])
    value = tensor_of(step)
    return (
        given is None
        or value is None
        or given.shape != value.shape
        or bool(differing_entries(given, value).any())
    )


def _probability(step: Step) -> float | None:
    """With which an entry is dropped, where torch does it."""
    match step.operation:
        case "dropout" | "dropout_" | "feature_dropout" | "alpha_dropout" | "native_dropout":
            given = dict(zip(("input", "p"), step.arguments, strict=False)) | dict(step.keywords)
            p = given.get("p", 0.5)
        case "multi_head_attention_forward":
            p = step.keywords.get(
                "dropout_p", step.arguments[10] if len(step.arguments) > 10 else 0.0
            )
        case operation if operation == FUSED:
            p = fused_arguments(step)["dropout_p"]
        case _:
            return None
    return p if isinstance(p, float | int) else None


def _said_probability(step: Step) -> str:
    p = _probability(step)
    return "" if p is None else f", p = {p:.3g}"


def _share(observation: Observation, drop: Step) -> str:
    """How many entries a step sets to 0."""
    value = tensor_of(drop)
    zeros: Tensor | None = None if value is None else value == 0
    return "some" if zeros is None else f"{int(zeros.sum())} of {zeros.numel()}"
