"""Which keys each query sees: no later ones if the target is causal, its own, and as many as its window says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import FAINT, RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import is_triangular
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine, attribute_definition
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

MASKING = (
    "masked_fill",
    "masked_fill_",
    "where",
    "setitem",
    "add",
    "iadd",
    "add_",
    "mul",
    "imul",
)
UNMASKED = -1e5  # a finite fill below this no score outweighs; −65504, float16's least, is a convention of its own


@probe("mask-unused", "mask-inverted", "future-leak", "mask-fill-too-small")
def causality(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Changes each token in turn: no earlier output of a causal target may change."""
    influence = evidence.influence[0, :, 0]
    T = len(influence)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    leaks = influence & future
    yield Fact("causal", "no" if leaks.any() else "yes")
    if not evidence.expected.causal or not leaks.any():
        return
    i, j = (int(it) for it in leaks.nonzero()[0])
    name, what, place = _named(evidence, future)
    proof = (
        f"Changing token {j} changes output {i}, though that comes before it; the target should be causal: "
        f"{evidence.expected.why_causal}."
    )
    yield Finding(
        name,
        "bug",
        f"{what} {proof}".strip(),
        f"B = {evidence.inputs.sizes[0]}, T = {T}; {int(leaks.sum())} of {int(future.sum())} pairs leak",
        place,
    )


def _named(evidence: Evidence, future: Tensor) -> tuple[str, str, SourceLine | None]:
    """Which of the ways to see the future it is."""
    T = len(future)
    attentions = [
        attention
        for attention in evidence.attentions
        if attention.applied_weights.shape[1:] == future.shape
    ]
    for attention in attentions:
        seen = attention.visible.any(0)
        inner = slice(0, T - 1)  # the last query's row: nothing comes after it
        before = torch.ones_like(future).tril(-1)
        if evidence.expected.window is not None:
            before = before.triu(1 - evidence.expected.window)
        if (seen & future).any() and not (seen & before)[inner].any():
            flipped = not seen[inner].diagonal().any()
            return (
                "mask-inverted",
                "The mask keeps what it should hide: queries see later keys and no earlier ones.",
                _mask_place(evidence, attention, built=not flipped),
            )
        if seen[future].all():
            return _without_effect(evidence, attention)
        if (seen & future).any():
            most = int((seen & future).nonzero().diff(dim=1).max())
            return (
                "future-leak",
                f"The mask lets a query see {most} key{'s' if most > 1 else ''} too many.",
                _mask_place(evidence, attention, built=True),
            )
    if not attentions:
        return _by_influence(evidence, future)
    return (
        "future-leak",
        "",
        SourceLine.of(attentions[-1].context_step),
    )  # from there on tokens mix otherwise


def _by_influence(evidence: Evidence, future: Tensor) -> tuple[str, str, SourceLine | None]:
    """What influence alone can tell, of an attention whose inside was not seen."""
    influence, T = evidence.influence[0, :, 0], len(future)
    within = next(
        (it for it in evidence.baseline.trace if it.operation == "multi_head_attention_forward"),
        None,
    )
    place = SourceLine.of(within)
    if not influence[: T - 1].tril(-1).any():
        return (
            "mask-inverted",
            "The mask keeps what it should hide: queries see later keys and no earlier ones.",
            place,
        )
    return unused_masking(evidence.baseline) or ("future-leak", "", place)


def _without_effect(
    evidence: Evidence, attention: RecordedAttention
) -> tuple[str, str, SourceLine | None]:
    """The mask hides nothing: it is not used, too weak, or not there."""
    known = unused_masking(evidence.baseline) or _weak_fill(evidence, attention)
    if known is not None:
        return known
    if attention.fused:
        return (
            "future-leak",
            "PyTorch's attention is called without is_causal and without a mask.",
            SourceLine.of(attention.context_step),
        )
    made = _triangle(evidence)
    if made is not None:
        return "mask-unused", "A triangular mask is made, and hides nothing.", made
    return (
        "future-leak",
        "No mask is applied to the scores.",
        SourceLine.of(attention.softmax_step or attention.scores_step),
    )


def unused_masking(observation: Observation) -> tuple[str, str, SourceLine | None] | None:
    """A step that applies or makes a mask, and whose result nothing uses, as what it is to be named."""
    masking = ("masked_fill", "where", "add", "mul", "triu", "tril", "sub", "and")
    for step in observation.trace:
        if step.unused and step.operation in masking:
            why = f"The result of {step.operation} is used by nothing."
            return "mask-unused", why, SourceLine.of(step)
    return None


def _weak_fill(
    evidence: Evidence, attention: RecordedAttention
) -> tuple[str, str, SourceLine | None] | None:
    """A mask that changes the scores, but not enough to hide anything."""
    softmax = attention.softmax_step
    steps = [it for it in attention.chain[1:] if softmax is None or it.index < softmax.index]
    future = torch.ones(attention.logits.shape[1:], dtype=torch.bool).triu(1)
    for step in steps:
        value = tensor_of(step)
        masks = (value_of(evidence.baseline, source) for source in step.inputs)
        found = any(it is not None and it.dim() >= 2 and is_triangular(it) for it in masks)
        if (
            value is not None
            and value.dim() >= 2
            and value.shape[-2] == len(future) <= value.shape[-1]
        ):
            ahead = value[..., : len(future)].reshape(-1, *future.shape)[:, future]
            found = found or bool((ahead == ahead.flatten()[0]).all())
        if found:
            why = f"The mask changes hidden scores by {step.operation}, which leaves them weight."
            return "mask-fill-too-small", why, SourceLine.of(step)
    return None


def _triangle(evidence: Evidence) -> SourceLine | None:
    for step in evidence.baseline.trace:
        value = tensor_of(step)
        if value is not None and is_triangular(value):
            return SourceLine.of(step)
    module = evidence.subject.module
    for name, buffer in () if module is None else module.named_buffers():
        if is_triangular(buffer):
            return attribute_definition(module, name)
    return None


def _mask_place(
    evidence: Evidence, attention: RecordedAttention, *, built: bool
) -> SourceLine | None:
    """Where the mask is made, if that is what is wrong with it; otherwise, where it is applied."""
    applied = masking_step(attention)
    if built and applied is not None:
        made = _made(evidence, applied, attention)
        if made is not None:
            return made
    return SourceLine.of(applied or attention.softmax_step or attention.context_step)


def _made(evidence: Evidence, applied: Step, attention: RecordedAttention) -> SourceLine | None:
    steps = evidence.baseline.trace.steps
    chain = {it.index for it in attention.chain}
    todo: list[Source] = [it for it in applied.inputs if it.step not in chain]
    while todo:
        source = todo.pop()
        if source.kind in ("buffer", "attribute"):
            return attribute_definition(evidence.subject.module, source.name)
        if source.step is not None:
            step = steps[source.step]
            if step.operation in ("triu", "tril", "triu_", "tril_", "ge", "gt", "le", "lt"):
                return SourceLine.of(step)
            todo += step.inputs
    return None


def masking_step(attention: RecordedAttention) -> Step | None:
    """The step at which hidden scores cease to be what they were; the fused step where that does it all."""
    if attention.fused:
        return attention.context_step
    L, Tq, Tk = attention.applied_weights.shape
    hidden = attention.weights < FAINT  # before dropout, which hides nothing
    hidden = hidden if hidden.any() else ~attention.visible
    for step in attention.chain[1:]:
        value = tensor_of(step)
        if (
            value is None
            or value.numel() != attention.applied_weights.numel()
            or value.shape[-2:] != (Tq, Tk)
        ):
            continue
        value = value.reshape(L, Tq, Tk)
        usual = value[~hidden].median() if (~hidden).any() else value.new_zeros(())
        if hidden.any() and ((value[hidden] < usual - 100) | (value[hidden] == 0)).all():
            return step
    return next((it for it in attention.chain if it.operation in MASKING), None)


@probe("mask-unused")
def unused_mask(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Looks for a masking whose result nothing uses."""
    for step in evidence.baseline.trace:
        if step.unused and step.operation in ("masked_fill", "where", "masked_scatter"):
            yield Finding(
                "mask-unused",
                "bug",
                f"The result of {step.operation} is used by nothing, so that the mask has no effect.",
                f"step {step.index} of the recording",
                SourceLine.of(step),
                f"{step.operation} returns a new tensor: use that"
                + ("." if step.operation == "where" else f", or call {step.operation}_ instead."),
            )
            return


@probe("mask-fill-too-small")
def fill(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Lengthens queries and keys until scores outweigh a finite fill: hidden keys must stay hidden."""
    yield from outweighed(
        evidence.baseline,
        evidence.subject.record,
        lambda attention, hidden: SourceLine.of(masking_step(attention)),
    )


def outweighed(
    observation: Observation,
    record: Callable[[Inputs], Observation],
    applied_where: Callable[[RecordedAttention, Tensor], SourceLine | None],
) -> Iterator[Finding]:
    """What hidden keys' scores are set to, if longer tokens make scores that outweigh it.

    Args:
        observation: a run in which keys are hidden.
        record: runs the same on other tokens.
        applied_where: the line of a attention's mask, given which keys it hides, (L, Tq, Tk).
    """
    if observation.inputs.vocabulary:
        return
    for attention in find_attentions(observation):
        hidden = (attention.weights < FAINT) & attention.logits.isfinite()
        if not hidden.any() or (level := attention.logits[hidden].max().item()) < UNMASKED:
            continue
        size = attention.logits[attention.visible].abs().max().clamp_min(1e-6).item()
        factor = (16 * abs(level) / size) ** 0.5
        for loud in find_attentions(record(observation.inputs.scaled(factor))):
            if loud.visible.shape != hidden.shape or not (loud.visible & hidden).any():
                continue
            l, i, j = (int(it) for it in (loud.visible & hidden).nonzero()[0])
            yield Finding(
                "mask-fill-too-small",
                "bug",
                f"Hidden scores are set to about {level:.3g}, not to −∞: with products up to "
                f"{loud.scores.abs().max():.3g}, query {i} gives {loud.applied_weights[l, i, j]:.3g} "
                f"of its weight to key {j}, which is hidden.",
                f"tokens × {factor:.0f}",
                applied_where(attention, hidden),
            )
            return


@probe("self-hidden")
def diagonal(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Looks whether any query sees its own key."""
    for attention in evidence.attentions:
        _, Tq, Tk = attention.applied_weights.shape
        if Tq != Tk or Tq < 3 or attention.visible.all():
            continue
        own = attention.visible.diagonal(dim1=1, dim2=2)
        others = attention.visible[:, 1:].any(-1)
        if not own[:, 1:].any() and others.all() and not _is_inverted(attention):
            yield Finding(
                "self-hidden",
                "bug",
                "No query sees its own key: the diagonal is hidden, too"
                + (
                    ", and the first query sees nothing at all."
                    if not attention.visible[0, 0].any()
                    else "."
                ),
                f"T = {Tq}",
                _mask_place(evidence, attention, built=True),
            )
            return


def _is_inverted(attention: RecordedAttention) -> bool:
    return not attention.visible.any(0)[:-1].tril(-1).any()


@probe("window-off-by-one", "window-missing")
def window(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Counts the keys that a late query sees: its window's, its own included."""
    expected = evidence.expected.window
    for attention in evidence.attentions:
        _, Tq, Tk = attention.applied_weights.shape
        width = int(attention.visible.any(0)[-1].sum())
        if Tq != Tk or (width == Tk and expected is None):
            continue
        if width < Tk:
            yield Fact("window", f"{width} keys, its own included")
        if expected is None or expected >= Tk or not evidence.expected.causal or width == expected:
            return
        near = abs(width - expected) == 1
        yield Finding(
            "window-off-by-one" if near else "window-missing",
            "bug",
            f"The last query sees {width} keys; its window is {expected}, its own included.",
            f"T = {Tk}",
            _mask_place(evidence, attention, built=True),
        )
        return
