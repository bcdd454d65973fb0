"""Whether padding is padding: seen by nobody, on either side, and no harm to anyone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.mask_forms import LENGTHS, MaskArgument
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.probes.causality import UNMASKED, masking_step, outweighed, unused_masking
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

PADDED = (2, 3, 5)  # how many tokens of each sequence are padding


def _kept(evidence: Evidence, side: str) -> Tensor:
    """(B, T) Boolean, which tokens are real: all but `PADDED`, on one side."""
    _, T = evidence.inputs.sizes
    kept = torch.arange(T) < T - torch.tensor(PADDED)[:, None]
    return kept.flip(1) if side == "left" else kept


def _told(evidence: Evidence) -> Subject | None:
    """The subject, its padding argument taken at its word where it has one; None if it takes none."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    argument = subject.padding
    if argument is None or len(PADDED) != B or max(PADDED) >= T:
        return None
    if argument.declared is None or argument.declared == argument.true_keeps:
        return subject
    return replace(subject, padding=replace(argument, true_keeps=argument.declared))  # pyright: ignore[reportArgumentType]


def _sizes(evidence: Evidence) -> str:
    B, T = evidence.inputs.sizes
    return f"B = {B}, T = {T}, of them padding: {', '.join(map(str, PADDED))}"


def _has_effect(evidence: Evidence, subject: Subject) -> bool:
    """Whether hiding padding changes anything."""
    kept = _kept(evidence, "right")
    outputs = (
        subject.run(evidence.inputs, keep=it).detach() for it in (kept, torch.ones_like(kept))
    )
    return bool(evidence.differs(*outputs).any())


def _is_inverted(evidence: Evidence, subject: Subject) -> bool:
    """Whether real tokens see padding, and nothing else but themselves."""
    if "left" not in _sides(subject):
        return False
    kept, inputs = _kept(evidence, "left"), evidence.inputs
    output = subject.run(inputs, keep=kept).detach()
    b, T = 1, inputs.sizes[1]

    def reached(t: int) -> bool:
        changed = subject.run(inputs.changed(b, t), keep=kept).detach()
        rows = evidence.differs(output, changed)[b] & kept[b]
        rows[t] = False
        return bool(rows.any())

    return reached(0) and not any(reached(t) for t in range(PADDED[b], T - 1))


@probe("mask-unused", "mask-inverted")
def padding_argument(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Hides tokens by the padding argument: something must change, and as the argument's name promises."""
    subject = _told(evidence)
    if subject is None or subject.padding is None:
        return
    argument = subject.padding
    keeps = "True keeps" if argument.true_keeps else "True hides"
    if argument.dtype.is_floating_point:
        keeps = "added to the scores"
    yield Fact("padding mask", f"{argument.name} {argument.form}, {keeps}")
    observation = subject.record(evidence.inputs, keep=_kept(evidence, "right"))
    if not _has_effect(evidence, subject):
        _, why, place = unused_masking(observation) or ("", "", _given_no_mask(observation))
        yield Finding(
            "mask-unused",
            "bug",
            f"{why} With padding hidden by {argument.name} the output is the same.".strip(),
            _sizes(evidence),
            place,
        )
    elif argument.declared is not None and _is_inverted(evidence, subject):
        wanted = "1 keeps a token" if argument.declared else "True hides a token"
        yield Finding(
            "mask-inverted",
            "bug",
            f"By convention {wanted} in {argument.name}; here real tokens see the padding alone.",
            _sizes(evidence),
            _taken_where(observation, argument),
        )


@probe(
    "padding-leak",
    "mask-broadcast",
    "left-padding-positions",
    "mask-fill-too-small",
    "mask-after-softmax",
)
def padding(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs a padded batch, and each sequence alone: real tokens must come out the same, on either side of padding."""
    subject = _told(evidence)
    if subject is None or not _has_effect(evidence, subject) or _is_inverted(evidence, subject):
        return
    for side in _sides(subject):
        kept = _kept(evidence, side)
        padded = subject.record(evidence.inputs, keep=kept)
        harm = _leak(evidence, subject, padded, kept) or _unlike_alone(evidence, padded, kept)
        if harm is None:
            continue
        b, proof, seen = harm
        name, why, place = _cause(evidence, subject, padded, kept, b)
        if name == "padding-leak" and side == "left" and not seen:
            name, place = (
                "left-padding-positions",
                _counted_where(subject, evidence.inputs.entry(b), kept[b]),
            )
            why = "Positions are counted from the padding on."
        unsure = name == "left-padding-positions" and not evidence.is_causal
        proof = f"{why} {proof}".strip()
        yield Finding(name, "suspicious" if unsure else "bug", proof, _sizes(evidence), place)
        return


def _sides(subject: Subject) -> tuple[str, ...]:
    """Where padding may be: lengths say that the real tokens come first."""
    assert subject.padding is not None
    return ("right",) if subject.padding.form == LENGTHS else ("right", "left")


def _given_no_mask(observation: Observation) -> SourceLine | None:
    """Where PyTorch's attention is called without one."""
    fused = (it for it in observation.trace if it.operation == FUSED)
    return SourceLine.of(
        next((it for it in fused if fused_arguments(it)["attn_mask"] is None), None)
    )


def _counted_where(subject: Subject, inputs: Inputs, kept: Tensor) -> SourceLine | None:
    """Where what depends on positions is made: the real tokens, run alone, part from those behind padding."""
    start = int(kept.nonzero()[0])
    padded = subject.record(inputs, keep=kept[None])
    alone = PartialRun(subject.record(inputs.tokens(start, len(kept))), padded, start)
    apart = [it for it in alone.part.trace if alone.differs(it)]
    return alone.place(alone.origin(apart[-1])) if apart else None


Harm = tuple[
    int, str, bool
]  # to which sequence, what shows it, whether it comes from what stands in padded places


def _unlike_alone(evidence: Evidence, padded: Observation, kept: Tensor) -> Harm | None:
    """The first sequence that padding changes; its real tokens alone are the measure."""
    for b in range(len(kept)):
        real = kept[b].nonzero().flatten()
        start, stop = int(real[0]), int(real[-1]) + 1
        alone = evidence.subject.run(evidence.inputs.entry(b).tokens(start, stop)).detach()[0]
        beside = padded.output[b, start:stop]
        if alone.shape == beside.shape and differing_entries(alone, beside).any():
            side = "left" if start else "right"
            apart = (alone - beside).abs().max()
            proof = (
                f"With {PADDED[b]} tokens of padding on its {side}, sequence {b} comes out otherwise than alone, by "
                f"{apart:.3g}."
            )
            return b, proof, False
    return None


def _leak(evidence: Evidence, subject: Subject, padded: Observation, kept: Tensor) -> Harm | None:
    """A padded token that changes a real one's output."""
    for b in range(1, len(kept)):
        t = int((~kept[b]).nonzero()[0])
        changed = subject.run(evidence.inputs.changed(b, t), keep=kept).detach()
        rows = evidence.differs(padded.output, changed)[b] & kept[b]
        if rows.any():
            i = int(rows.nonzero()[0])
            proof = f"Changing token {t} of sequence {b}, which is padding, changes output {i}, which is not."
            return b, proof, True
    return None


def _cause(
    evidence: Evidence, subject: Subject, padded: Observation, kept: Tensor, b: int
) -> tuple[str, str, SourceLine | None]:
    assert subject.padding is not None
    taken = _taken_where(padded, subject.padding)
    unpadded = find_attentions(subject.record(evidence.inputs, keep=torch.ones_like(kept)))
    attentions = find_attentions(padded)
    for index, (attention, without) in enumerate(zip(attentions, unpadded, strict=False)):
        same = index < len(evidence.attentions) and len(
            evidence.attentions[index].applied_weights
        ) == len(attention.applied_weights)
        rows = evidence.rows_of_entries(index) if same else None
        if rows is None or attention.applied_weights.shape[1] != kept.shape[1]:
            continue
        why = _weak(attention, without, rows[b], kept[b])
        if why:
            hidden = torch.zeros_like(attention.visible)
            hidden[rows[b]] = kept[b][:, None] & ~kept[b] & (without.weights[rows[b]] > 0)
            return "mask-fill-too-small", why, _lowered_where(padded, attention, hidden)
        late = _after_softmax(attention, rows[b], kept[b])
        if late is not None:
            why = "Padded keys get their share of the softmax, and only then a weight of 0."
            return "mask-after-softmax", why, SourceLine.of(late)
        why = _misdirected(attention, without, rows, kept, b)
        if why:
            return "mask-broadcast", why, taken
    return unused_masking(padded) or ("padding-leak", "", taken)


def _weak(
    attention: RecordedAttention, without: RecordedAttention, rows: Tensor, kept: Tensor
) -> str:
    """Whether padded keys' scores are set to one number, or lowered by one, and still have weight."""
    logits, before, weights = (
        it[rows][:, kept] for it in (attention.logits, without.logits, attention.weights)
    )
    padded = logits[:, :, ~kept]
    if not (weights[:, :, ~kept] > 0).any():
        return ""
    if (padded == padded.flatten()[0]).all() and padded.flatten()[0] > UNMASKED:
        return f"The scores of padded keys are set to {padded.flatten()[0]:.3g}, not to −∞."
    change = logits - before
    lowered = change[:, :, kept].mean() - change[:, :, ~kept].mean()
    even = max(change[:, :, it].std().item() for it in (kept, ~kept)) < 1e-6
    return (
        f"The scores of padded keys are lowered by {lowered:.3g} alone."
        if even and 1e-3 < lowered < torch.inf
        else ""
    )


def _lowered_where(
    padded: Observation, attention: RecordedAttention, hidden: Tensor
) -> SourceLine | None:
    """The first step at which hidden scores are what they stay; of the fused attention, what made its mask."""
    if attention.fused:
        mask = fused_arguments(attention.context_step)["attn_mask"]
        made = mask.step if isinstance(mask, Source) else None
        return SourceLine.of(attention.context_step if made is None else padded.trace[made])
    final = attention.logits[hidden]
    for step in attention.chain:
        value = tensor_of(step)
        if value is None or value.numel() != hidden.numel():
            continue
        scores = value.reshape(hidden.shape)[hidden]
        if (scores == scores[0]).all() or torch.equal(scores, final):
            return SourceLine.of(step)
    return None


def _after_softmax(attention: RecordedAttention, rows: Tensor, kept: Tensor) -> Step | None:
    """The step that sets padded keys' weights to 0, if the softmax gave them some."""
    L, Tq, Tk = attention.applied_weights.shape
    weights, used = (
        it[rows][:, kept][:, :, ~kept] for it in (attention.weights, attention.applied_weights)
    )
    if attention.softmax_step is None or used.any() or not weights.any():
        return None
    for step in attention.chain:
        value = tensor_of(step)
        if (
            value is None
            or value.numel() != attention.applied_weights.numel()
            or step.index <= attention.softmax_step.index
        ):
            continue
        if not value.reshape(L, Tq, Tk)[rows][:, kept][:, :, ~kept].any():
            return step
    return None


def _misdirected(
    attention: RecordedAttention,
    without: RecordedAttention,
    rows: list[Tensor],
    kept: Tensor,
    b: int,
) -> str:
    """Whether what the padding hides is another's: rows for columns, or another entry's padding."""
    seen = ~_hidden(without)[rows[b]]
    own = _hidden(attention)[rows[b]] & seen
    unhidden = seen[:, kept[b]][:, :, ~kept[b]].any() and not own[:, kept[b]].any()
    if unhidden and own[:, ~kept[b]].any():
        return "The mask hides queries that are padding, and no keys: it is broadcast along the wrong dimension."
    real, own = seen[:, kept[b]], own[:, kept[b]]
    for hidden, visible in zip(own, real, strict=True):
        if not hidden.any() or torch.equal(hidden, visible & ~kept[b]):
            continue
        for other in range(len(kept)):
            if torch.equal(hidden, visible & ~kept[other]):
                return f"Sequence {b} is masked by the padding of sequence {other}."
    return ""


def _hidden(attention: RecordedAttention) -> Tensor:
    """(L, Tq, Tk) Boolean: whose score a mask has replaced, be it that the whole row is."""
    usual = attention.scores.abs().max() * 2 + 100
    return (attention.logits < -usual) | attention.logits.isnan()


def _masked_where(attentions: list[RecordedAttention]) -> SourceLine | None:
    """Where a mask is applied."""
    step = next(
        (found for attention in attentions if (found := masking_step(attention)) is not None), None
    )
    return SourceLine.of(step)


def _taken_where(observation: Observation, argument: MaskArgument) -> SourceLine | None:
    """The first line that makes of the argument what meets the scores; else the first one that takes it."""
    steps = observation.trace.steps
    taken = [
        it.index
        for it in steps
        if any(source.kind == "input" and source.name == argument.name for source in it.inputs)
    ]
    for attention in find_attentions(observation):
        chain = {it.index for it in attention.chain}
        beside = [it for step in attention.chain[1:] for it in step.inputs]
        if attention.fused:
            beside = [
                it
                for it in [fused_arguments(attention.context_step)["attn_mask"]]
                if isinstance(it, Source)
            ]
        made = [it.step for it in beside if it.step is not None and it.step not in chain]
        behind = {index for it in made for index in ancestors(steps, steps[it])}
        met = sorted(behind & set(taken)) + sorted(chain & set(taken))
        if met:
            return SourceLine.of(steps[met[0]])
    return SourceLine.of(steps[taken[0]]) if taken else None


@probe("mask-fill-too-small")
def padding_fill(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Lengthens queries and keys until scores outweigh what padded keys' are set to: they must stay hidden."""
    subject = _told(evidence)
    if subject is None:
        return
    kept = _kept(evidence, "right")
    padded = subject.record(evidence.inputs, keep=kept)
    yield from outweighed(
        padded,
        lambda inputs: subject.record(inputs, keep=kept),
        lambda attention, hidden: _lowered_where(padded, attention, hidden),
    )


@probe("nan-on-masked-rows")
def masked_rows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Lets queries see nothing at all: on the left of a causal text, or in a sequence of padding alone."""
    subject = _told(evidence)
    if subject is None or _is_inverted(evidence, subject):
        return
    causal = evidence.is_causal
    if causal and "left" not in _sides(subject):
        return
    kept = _kept(evidence, "left")
    if not causal:
        kept = torch.ones_like(kept)
        kept[-1] = False
    output = subject.run(evidence.inputs, keep=kept)
    real = output[kept]
    gradients = _gradients(evidence, real.square().sum())
    rows = output.detach().isnan().flatten(2).any(-1)
    if not rows.any() and not any(it.isnan().any() for it in gradients):
        return
    observation = subject.record(evidence.inputs, keep=kept)
    where = "output" if rows.any() else "gradient of a loss on real tokens alone"
    yield Finding(
        "nan-on-masked-rows",
        "bug" if causal else "suspicious",
        f"Queries that see no key make NaN in the {where}"
        + (", and a layer further on in every row." if causal else "."),
        "padding on the left" if causal else "one sequence all padding",
        _hidden_where(observation),
    )


def _gradients(evidence: Evidence, loss: Tensor) -> list[Tensor]:
    module = evidence.subject.module
    parameters = [] if module is None else [it for it in module.parameters() if it.requires_grad]
    if not parameters or not loss.requires_grad:
        return []
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [it for it in found if it is not None]


def _hidden_where(observation: Observation) -> SourceLine | None:
    """The step that leaves a whole row of scores at −∞, or the first with NaN."""
    for attention in find_attentions(observation):
        for step in attention.chain:
            value = tensor_of(step)
            if value is not None and (value == -torch.inf).all(-1).any():
                return SourceLine.of(step)
    values = ((it, tensor_of(it)) for it in observation.trace)
    return SourceLine.of(
        next((it for it, value in values if value is not None and value.isnan().any()), None)
    )
