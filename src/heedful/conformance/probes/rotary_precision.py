"""Check that rotary angles are computed in float32 or better, even in a model cast to bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.rotations import is_near
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding, Level
from heedful.observation import Step

FAR = 300  # tokens: bfloat16 rounds whole numbers above 256
MIN_ERROR = 1e-3  # rad
HALF_A_POSITION = (
    0.5  # rad, by which the fastest angle grows from one position to the next but a half
)
HALF_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class _Angles:
    """The angles that a cosine is taken of.

    Attributes:
        value: (T, number of angles), in radians.
        steps: the steps that compute them, in order; the last one returns them.
    """

    value: Tensor
    steps: list[Step]

    @property
    def rounding_steps(self) -> list[Step]:
        """The steps that compute with positions in half precision."""
        T = len(self.value)
        return [step for step in self.steps if step.dtype in HALF_PRECISION and T in step.shape]


@dataclass(frozen=True, eq=False)
class _AngleError:
    """The largest error of the angles of a target that was cast to bfloat16.

    Attributes:
        step: the first step that rounds positions, or else the one that returns the angles.
        rounds_positions: whether any step rounds positions.
        size: the largest error, in radians.
        position: the position that has it.
        counts_tokens: whether positions are those of the tokens. Rows, columns and frames of patches stay small enough
            for half precision.
    """

    step: Step
    rounds_positions: bool
    size: float
    position: int
    counts_tokens: bool


@probe("rotary-precision")
def precision(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Cast the target to bfloat16, as models are often run. Angles must still be computed in float32 or better."""
    subject, (_, T) = evidence.subject, evidence.inputs.sizes
    cosines = (_cosine_step(evidence.baseline, attention) for attention in evidence.attentions)
    cosine = next((step for step in cosines if step is not None), None)
    if cosine is None or subject.module is None or subject.fixed_sizes is not None:
        return
    cast = subject.fresh(dtype=torch.bfloat16)
    error = _angle_error(subject, cast, cosine, T)
    if error is None:
        return
    if error.rounds_positions:
        T = min(subject.max_length or FAR, FAR)
        error = _angle_error(subject, cast, cosine, T) or error
        if error.size > (MIN_ERROR if error.counts_tokens else HALF_A_POSITION):
            yield _report(error, T, "bug", f"are computed in {error.step.dtype}")
    elif error.size > MIN_ERROR and not _is_cast_by_transformers(subject.module):
        yield _report(
            error, T, "suspicious", "are computed from frequencies that the cast has rounded"
        )


def _cosine_step(observation: Observation, attention: RecordedAttention) -> Step | None:
    """Return the step that computes the cosine by which the queries are rotated."""
    if attention.query_source.step is None:
        return None
    steps = observation.trace.steps
    behind = sorted(ancestors(steps, steps[attention.query_source.step]))
    cosines = (steps[i] for i in behind if steps[i].operation in ("cos", "cos_", "polar"))
    return next(cosines, None)


def _angle_error(subject: Subject, cast: Subject, cosine: Step, T: int) -> _AngleError | None:
    """Return the error over T tokens; None if one of the two does not run, or takes other steps."""
    exact, rounded = (_record_angles(it, cosine, T) for it in (subject, cast))
    if exact is None or rounded is None or exact.value.shape != rounded.value.shape:
        return None
    positions = torch.arange(T, dtype=torch.float64)[:, None]
    multiples = positions * rounded.value[1]
    # A target that rounds positions even before the cast is no reference.
    expected = multiples if exact.rounding_steps else exact.value
    errors = (rounded.value - expected).abs().amax(1)
    position = int(errors.argmax())
    step = (rounded.rounding_steps or rounded.steps[-1:])[0]
    turned = exact.value - exact.value[:1]
    counts_tokens = bool(exact.rounding_steps) or is_near(turned, positions * turned[1])
    size = errors[position].item()
    return _AngleError(step, bool(rounded.rounding_steps), size, position, counts_tokens)


def _record_angles(subject: Subject, cosine: Step, T: int) -> _Angles | None:
    """Return the angles that the same cosine is taken of in a run on T tokens."""
    observation = attempt(lambda: subject.record(subject.draw(1, T)))
    if isinstance(observation, Exception):
        return None
    trace = observation.trace
    same = (it for it in trace if (it.line, it.operation) == (cosine.line, cosine.operation))
    step = next(same, None)
    index = None if step is None else step.inputs[-1].step
    value = None if index is None else tensor_of(trace[index])
    if index is None or value is None or T not in value.shape:
        return None
    rows = value.double().movedim(value.shape.index(T), 0).reshape(T, -1)
    return _Angles(rows, [trace[i] for i in sorted(ancestors(trace.steps, trace[index]))])


def _report(error: _AngleError, T: int, level: Level, reason: str) -> Finding:
    remedy = "Keep the frequencies in float32, whatever the module is cast to."
    return Finding(
        "rotary-precision",
        level,
        f"In bfloat16 the angles {reason}: at position {error.position} they are off by {error.size:.3g} rad.",
        f"T = {T}, after .bfloat16()",
        SourceLine.of(error.step),
        "" if error.rounds_positions else remedy,
    )


def _is_cast_by_transformers(module: nn.Module) -> bool:
    """Return True for transformers' modules: from_pretrained casts these, and it keeps the frequencies."""
    return any(is_from_transformers(part) for part in module.modules())
