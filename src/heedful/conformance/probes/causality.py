"""Probe: no output of a causal target depends on a later token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import FAINT, SMALLEST_FILL, RecordedAttention
from heedful.conformance.evidence.chain import (
    CAPS,
)
from heedful.conformance.evidence.evidence import CHANGED, Evidence
from heedful.conformance.evidence.fills import FILLING_OPERATIONS, fill_line
from heedful.conformance.evidence.frames import Order, one_after_another, order_of_tokens
from heedful.conformance.evidence.fused import FUSED, MULTI_HEAD, fused_arguments
from heedful.conformance.evidence.lost_masks import (
    fill_of_nothing,
    line_leaving_before_masks,
    mask_of_all_queries,
)
from heedful.conformance.evidence.masking import (
    MaskDefect,
    building_step,
    mask_applying_line,
    mask_building_line,
    origin_of_mask,
    scores_after,
    unused_masking,
)
from heedful.conformance.evidence.triangular import is_triangular
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import lines_calling
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    ancestors,
)
from heedful.conformance.recording.definitions import attribute_definition, triangle_if_given
from heedful.conformance.recording.differences import (
    changed_entries,
    differing_entries,
    indices_with_any,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

INVERTED = "The mask is inverted: queries see later keys, and no earlier ones."


@probe(
    *("mask-unused", "mask-inverted", "future-leak", "mask-fill-too-small", "mask-fill-positive")
)
def causality(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change each token in turn, and check that no earlier output of a causal target changes."""
    if evidence.subject.convention.pooled:  # no row belongs to a token
        return
    influence = evidence.influence[0, :, 0]
    T = len(influence)
    should_be_causal = bool(evidence.expected.causal)
    order = order_of_tokens(evidence) if should_be_causal else one_after_another(T)
    leaks = influence & order.future
    yield Fact("causal", _described(influence, leaks))
    if not should_be_causal or not leaks.any():
        return
    defect = _diagnose(evidence, order)
    i, j = leaks.nonzero()[0].tolist()
    proof = (
        f"Changing token {j} changes output {i}, which comes before it. The target should be causal, because "
        f"{evidence.expected.why_causal}."
    )
    yield Finding(
        defect.name,
        "bug",
        f"{defect.explanation} {proof}".strip(),
        f"B = {evidence.inputs.sizes[0]}, T = {T}; {int(leaks.sum())} of {int(order.future.sum())} pairs leak",
        defect.place,
    )


def _described(influence: Tensor, leaks: Tensor) -> str:
    """Return whether later tokens have no influence, if any other token has some."""
    if leaks.any():
        return "no"
    return "yes" if influence.tril(-1).any() else "no output depends on another token"


def _diagnose(evidence: Evidence, order: Order) -> MaskDefect:
    """Find the mask that lets queries see later keys.

    Args:
        evidence: of a target with such a leak.
        order: The order of its tokens.
    """
    if order.by_frames:
        return _diagnose_frames(evidence, order)
    future = order.future
    attentions = [
        attention
        for attention in evidence.attentions
        if attention.applied_weights.shape[1:] == future.shape
    ]
    for attention in attentions:
        defect = _diagnose_mask(evidence, attention, future)
        if defect is not None:
            return defect
    for index in range(len(evidence.attentions)):
        defect = _diagnose_mask_of_blocks(evidence, index)
        if defect is not None:
            return defect
    if not attentions:
        return _diagnose_by_influence(evidence)
    # All masks are right, so the tokens are mixed by something else, after the last attention at the latest.
    leaking = _leaking_line(evidence) or SourceLine.of(attentions[-1].context_step)
    return MaskDefect("future-leak", "", leaking)


def _diagnose_frames(evidence: Evidence, order: Order) -> MaskDefect:
    """Find what lets frames see later ones: a mask between frames that hides the wrong ones, or a part without one."""
    future = torch.ones(order.steps, order.steps, dtype=torch.bool).triu(1)
    for attention in evidence.attentions:
        between_frames = attention.applied_weights.shape[1:] == future.shape
        if between_frames and not attention.visible.all():
            defect = _diagnose_mask(evidence, attention, future)
            if defect is not None:
                return defect
    explanation = "Frames see later ones."
    return MaskDefect("future-leak", explanation, _line_leaking_frames(evidence, order))


def _line_leaking_frames(evidence: Evidence, order: Order) -> SourceLine | None:
    """Return the line at which rows of earlier frames first depend on the last one.

    Only tensors with one axis for the frames tell.
    """
    last = int((order.times == order.steps - 1).nonzero()[0])
    baseline, changed = evidence.baseline, evidence.after(0, last)
    for step in (it for it in baseline.trace if it.dtype.is_floating_point):
        differing = changed_entries(baseline, changed, step)
        axes = [axis for axis, size in enumerate(step.shape) if size == order.steps]
        if differing is None or len(axes) != 1:
            continue
        earlier = differing.narrow(axes[0], 0, order.steps - 1)
        if earlier.any():
            return _line_of_part(evidence, step)
    return None


def _line_of_part(evidence: Evidence, step: Step) -> SourceLine | None:
    """Return the line that calls the part which made a step; that of the step if it is an attention of PyTorch's."""
    module, part = evidence.subject.module, step.module
    is_attention = step.operation in (MULTI_HEAD, FUSED)
    calls = lines_calling(module, part) if module and part and not is_attention else []
    return next(iter(calls), None) or SourceLine.of(step)


def _leaking_line(evidence: Evidence) -> SourceLine | None:
    """Return the line at which rows of earlier tokens first depend on a later one.

    If that is no attention, return the line that calls the part, which knows no order. Only tensors with one axis for
    the tokens tell; those of queries and keys have two. A tensor without any is computed from all tokens.
    """
    baseline, changed = evidence.baseline, evidence.after(0, CHANGED)
    steps, T = baseline.trace.steps, evidence.inputs.sizes[1]
    before = evidence.subject.convention.rows_before
    used = ancestors(steps, steps[-1])
    for step in (it for it in steps if it.index in used and it.dtype.is_floating_point):
        differing = changed_entries(baseline, changed, step)
        axes = [axis for axis, size in enumerate(step.shape) if T <= size <= T + before]
        if differing is None or len(axes) > 1:
            continue
        count = CHANGED + step.shape[axes[0]] - T if axes else 0
        earlier = differing.narrow(axes[0], 0, count) if axes else differing
        if earlier.any():
            return _line_of_part(evidence, step)
    return None


def _diagnose_by_influence(evidence: Evidence) -> MaskDefect:
    """Diagnose a target in which no attention was recorded, by its outputs alone."""
    influence = evidence.influence[0, :, 0]
    call = next(
        (step for step in evidence.baseline.trace if step.operation == MULTI_HEAD),
        None,
    )
    if not influence[:-1].tril(-1).any():
        place = None if call is None else _triangle_of_additive_mask(evidence.baseline, call)
        fill = next(
            (it for it in evidence.baseline.trace if it.operation in FILLING_OPERATIONS), call
        )
        mask = None if call is None else call.keywords.get("attn_mask")
        place = place or (origin_of_mask(evidence, mask) if isinstance(mask, Source) else None)
        return MaskDefect("mask-inverted", INVERTED, place or SourceLine.of(fill))
    weak = None if call is None else _weak_additive_mask(evidence.baseline, call)
    leak = MaskDefect("future-leak", "", _leaking_line(evidence) or SourceLine.of(call))
    return weak or unused_masking(evidence.baseline) or fill_of_nothing(evidence.baseline) or leak


def _weak_additive_mask(observation: Observation, call: Step) -> MaskDefect | None:
    """Return the defect of a triangle of numbers that is added to the scores, as 1 in place of True, and hides none."""
    mask = call.keywords.get("attn_mask")
    value = value_of(observation, mask) if isinstance(mask, Source) else None
    if value is None or not isinstance(mask, Source) or not value.is_floating_point():
        return None
    if value.dim() < 2 or not is_triangular((value != 0).to(value.dtype)) or value.abs().max() > 1:
        return None
    positive = value.max() > 0
    made = None if mask.step is None else observation.trace[mask.step]
    return MaskDefect(
        "mask-fill-positive" if positive else "mask-fill-too-small",
        f"The mask is added to the scores, because it is not Boolean, and adds {value.max() or value.min():.3g}.",
        SourceLine.of(made),
    )


def _triangle_of_additive_mask(observation: Observation, call: Step) -> SourceLine | None:
    """Return the line that builds the triangle of a mask that is added to the scores, and shows each token itself.

    Such a mask hides the wrong side. A Boolean one may be right, and mean the opposite of what the call takes.
    """
    mask = call.keywords.get("attn_mask")
    value = value_of(observation, mask) if isinstance(mask, Source) else None
    if value is None or not value.is_floating_point() or not isinstance(mask, Source):
        return None
    if value.dim() < 2 or not (value.diagonal(dim1=-2, dim2=-1) == 0).all():
        return None
    return SourceLine.of(building_step(observation, [mask]))


def _diagnose_mask(
    evidence: Evidence, attention: RecordedAttention, future: Tensor
) -> MaskDefect | None:
    """Find out what is wrong with an attention's mask; None if it hides all later keys."""
    # A query from which all keys are hidden, by a finite number, weighs them alike.
    blind = attention.logits.amax(-1, keepdim=True) < -SMALLEST_FILL
    visible = (attention.visible & ~blind).any(0)
    if not (visible & future).any():
        return None
    if not _sees_the_past(visible, evidence.expected.window):
        # If a query sees only strictly later keys, the mask was applied inverted; if it sees itself too, or the same
        # line applies another mask rightly, the wrong triangle was built.
        wrongly_built = visible[:-1].diagonal().any() or _applied_rightly(evidence, attention)
        place = (
            mask_building_line(evidence, attention)
            if wrongly_built
            else _line_of_fused_mask(evidence, attention) or mask_applying_line(attention)
        )
        return MaskDefect("mask-inverted", INVERTED, place)
    if visible[future].all():
        return _diagnose_ineffective_mask(evidence, attention, future)
    ahead = int((visible & future).nonzero().diff(dim=1).max())
    explanation = f"The mask lets a query see {ahead} token{'s' if ahead > 1 else ''} ahead."
    return MaskDefect("future-leak", explanation, mask_building_line(evidence, attention))


def _applied_rightly(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether the line that applies a mask also applies one of padding, in whose absence all keys are seen."""
    line = mask_applying_line(attention)
    others = (it for it in evidence.attentions if it is not attention and it.visible.all())
    return line is not None and any(mask_applying_line(it) == line for it in others)


def _diagnose_mask_of_blocks(evidence: Evidence, index: int) -> MaskDefect | None:
    """Find out what is wrong with a mask of keys that are made from several tokens each; None if it hides later ones.

    Such a key may be seen from the last one of its tokens on.
    """
    attention, T = evidence.attentions[index], evidence.inputs.sizes[1]
    last = _last_tokens(evidence, index)
    if last is None or attention.applied_weights.shape[1] != T or len(last) >= T:
        return None
    visible, later = attention.visible.any(0), last > torch.arange(T)[:, None]
    if not (visible & later).any():
        return None
    inverted = not (visible & ~later).any()
    explanation = "The mask lets a query see keys that are made from later tokens."
    return MaskDefect(
        "mask-inverted" if inverted else "future-leak",
        INVERTED if inverted else explanation,
        mask_building_line(evidence, attention),
    )


def _last_tokens(evidence: Evidence, index: int) -> Tensor | None:
    """Return the last token that each key (Tk,) of an attention depends on; None if that is unknown."""
    key = evidence.attentions[index].key
    last = torch.full(key.shape[1:2], -1)
    for t in range(evidence.inputs.sizes[1]):
        changed = evidence.attentions_after(0, t)
        if index >= len(changed) or changed[index].key.shape != key.shape:
            return None
        last[indices_with_any(differing_entries(key, changed[index].key), 1)] = t
    return last


def _line_of_fused_mask(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that makes the mask of a call of PyTorch's attention, if the same function makes it."""
    if not attention.fused:
        return None
    mask, call = fused_arguments(attention.context_step)["attn_mask"], attention.context_step
    if not isinstance(mask, Source) or mask.step is None:
        return None
    made = evidence.baseline.trace[mask.step]
    return SourceLine.of(made) if made.function == call.function else None


def _sees_the_past(visible: Tensor, window: int | None) -> bool:
    """Check whether any query but the last, which has no later keys, sees an earlier key within the window."""
    past = torch.ones_like(visible).tril(-1)
    if window is not None:
        past = past.triu(1 - window)
    return bool((visible & past)[:-1].any())


def _diagnose_ineffective_mask(
    evidence: Evidence, attention: RecordedAttention, future: Tensor
) -> MaskDefect:
    """Find out why nothing is hidden: the mask is unused, too weak or missing."""
    defect = unused_masking(evidence.baseline) or _diagnose_weak_fill(evidence, attention, future)
    if defect is not None:
        return defect
    if attention.fused:
        explanation = "PyTorch's attention is called without is_causal and without a mask."
        return MaskDefect("future-leak", explanation, SourceLine.of(attention.context_step))
    triangle = _triangle_line(evidence)
    if triangle is not None:
        return MaskDefect("mask-unused", "A triangular mask is built, but hides nothing.", triangle)
    meant = _given_mask_alone(evidence) or mask_of_all_queries(evidence.baseline, attention)
    if meant is not None:
        return meant
    left = line_leaving_before_masks(evidence.subject, evidence.inputs)
    place = left or SourceLine.of(attention.softmax_step or attention.scores_step)
    return MaskDefect("future-leak", "No mask is applied to the scores.", place)


def _given_mask_alone(evidence: Evidence) -> MaskDefect | None:
    """Return the defect of a causal mask that is only built if another mask is given."""
    target = evidence.subject.target
    optional = [name for name in target.parameters if name not in target.required]
    found = triangle_if_given(target.callee, optional)
    if found is None:
        return None
    argument, place = found
    explanation = f"The causal mask is only built if {argument} is given."
    return MaskDefect("future-leak", explanation, place)


def _diagnose_weak_fill(
    evidence: Evidence, attention: RecordedAttention, future: Tensor
) -> MaskDefect | None:
    """Find a step before the softmax that masks later keys, but leaves them some weight."""
    softmax = attention.softmax_step
    revealing = _revealing_step(attention, future) or _capping_step(attention, future)
    if revealing is not None:
        explanation = (
            f"The mask hides later keys, but {revealing.operation} gives them weight again."
        )
        return MaskDefect("future-leak", explanation, SourceLine.of(revealing))
    for step in attention.chain[1:]:
        if softmax is not None and step.index >= softmax.index:
            continue
        if _takes_triangle(evidence.baseline, step) or _equalises(step, future):
            explanation = (
                f"The mask is applied by {step.operation}, but hidden keys keep some weight."
            )
            return MaskDefect("mask-fill-too-small", explanation, fill_line(evidence, step))
    return None


def _revealing_step(attention: RecordedAttention, future: Tensor) -> Step | None:
    """Return the first step that gives later keys weight again, after a softmax has left them none."""
    hidden = False
    for step in attention.chain[1:]:
        values = scores_after(step, attention)
        if values is None:
            continue
        none_left = not (values[:, future].abs() > FAINT).any()
        if hidden and not none_left:
            return step
        hidden |= none_left and step.operation in SOFTMAXES
    return None


def _capping_step(attention: RecordedAttention, future: Tensor) -> Step | None:
    """Return the soft cap that gives later keys weight again, after a mask has made their scores too low for any."""
    hidden = False
    for step in attention.chain[1:]:
        if step is attention.softmax_step:
            return None
        if hidden and step.operation in CAPS:
            return step
        scores = scores_after(step, attention)
        if scores is None:
            continue
        hidden = bool((scores[:, future] < -SMALLEST_FILL).all())
    return None


def _takes_triangle(observation: Observation, step: Step) -> bool:
    """Check whether one of a step's inputs is a triangular matrix."""
    inputs = (value_of(observation, source) for source in step.inputs)
    return any(
        tensor is not None and tensor.dim() >= 2 and is_triangular(tensor) for tensor in inputs
    )


def _equalises(step: Step, future: Tensor) -> bool:
    """Check whether a step sets the scores of all later keys to one number."""
    scores, T = tensor_of(step), len(future)
    if scores is None or scores.dim() < 2 or not scores.shape[-2] == T <= scores.shape[-1]:
        return False
    later = scores[..., :T].reshape(-1, T, T)[:, future]
    return bool((later == later.flatten()[0]).all())


def _triangle_line(evidence: Evidence) -> SourceLine | None:
    """Return the source line of the first triangular matrix that is built in a call or held as a buffer."""
    for step in evidence.baseline.trace:
        value = tensor_of(step)
        if value is not None and is_triangular(value):
            return SourceLine.of(step)
    module = evidence.subject.module
    for name, buffer in () if module is None else module.named_buffers():
        if is_triangular(buffer):
            return attribute_definition(module, name)
    return None
