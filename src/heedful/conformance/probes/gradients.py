"""Check that gradients are the derivatives of the output."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.evidence.lost_masks import LOW
from heedful.conformance.probes.chosen_entries import ChosenEntries
from heedful.conformance.probes.crashes import fresh_subject
from heedful.conformance.probes.detached_maxima import DetachedMaxima
from heedful.conformance.probes.differentiation import DifferentiationPoint, random_like
from heedful.conformance.probes.gradient_lines import (
    custom_functions,
    detached_beside,
    find_gradient_line,
)
from heedful.conformance.probes.no_grad_blocks import HeldBlocks
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.straight_through import leaves_behind, straight_through_steps
from heedful.conformance.recording.dataflow import CHOICES
from heedful.conformance.recording.differences import coarsest_dtype
from heedful.conformance.recording.observation import value_of
from heedful.conformance.recording.source import SourceLine, names_in, nodes_of, parsed, parsed_file
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step


@dataclass(frozen=True)
class _Precision:
    """Step sizes and tolerances of central differences in one dtype.

    The error of a central difference is the square of the step plus the rounding error divided by the step.

    Attributes:
        step: the length of a step along a direction of norm 1.
        smaller_step: tried as well, in case a kink such as a ReLU's lies within the step.
        relative: the tolerance relative to the sum over all directions.
        absolute: the tolerance added to it.
    """

    step: float
    smaller_step: float
    relative: float
    absolute: float


PRECISIONS: dict[torch.dtype, _Precision] = {
    torch.float64: _Precision(step=1e-4, smaller_step=1e-6, relative=1e-5, absolute=1e-9),
    torch.float32: _Precision(step=1e-2, smaller_step=3e-3, relative=5e-3, absolute=2e-3),
    torch.float16: _Precision(step=1e-1, smaller_step=3e-2, relative=5e-2, absolute=2e-2),
    torch.bfloat16: _Precision(step=3e-1, smaller_step=1e-1, relative=1e-1, absolute=1e-1),
}


@probe("gradient-wrong")
def gradient(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare directional derivatives by autograd with central differences, in float64 where possible."""
    if _is_for_inference_alone(evidence.subject.target.forward):
        yield Fact("gradients", "none, by a decorator of the whole call")
        return
    point = DifferentiationPoint.of(evidence)
    names = [name for name, leaf in point.leaves.items() if leaf.requires_grad]
    loss = point.loss()
    derivatives = attempt(lambda: _derivatives_by_autograd(point, loss, names))
    if isinstance(derivatives, Exception) and _is_trained_otherwise(evidence):
        yield Fact("gradients", "in training mode alone")
        return
    if isinstance(derivatives, Exception):
        proof = f"The backward pass raises {describe_exception(derivatives)}"
        yield Finding("gradient-wrong", "bug", proof, "", find_gradient_line(evidence))
        return
    name = _find_wrong_leaf(evidence, derivatives)
    if name is None:
        return
    if _is_at_kink(evidence, name, derivatives[name]):
        return
    if _is_right_as_rounded(evidence, name, derivatives[name]):
        return
    if _is_at_jump(evidence, name):
        yield Fact("gradients", "not compared: the smallest steps change what is chosen by size")
        return
    steps = evidence.baseline.trace.steps
    straight_through = list(straight_through_steps(steps))
    rounded = leaves_behind(steps, straight_through)
    if name in rounded:
        yield Fact("gradients", "straight through a rounded copy, whose difference is detached")
        others = {it: value for it, value in derivatives.items() if it not in rounded}
        name = _find_wrong_leaf(evidence, others) if others else None
        if name is None:
            return
    by_difference = _derivative_by_difference(evidence, [name], _precision(evidence).step)
    if by_difference == 0 and any(it.operation in CHOICES for it in evidence.baseline.trace):
        yield Fact("gradients", "straight through a choice, which has no derivative of its own")
        return
    if _is_right_but_for_maxima(evidence, names):
        yield Fact("gradients", "a maximum that is subtracted is detached")
        return
    if _is_right_but_for_blocks(evidence, derivatives):
        yield Fact(
            "gradients", "a part is computed under torch.no_grad(), beside one that has them"
        )
        return
    if (kept := detached_beside(evidence)) is not None:
        yield Fact(
            "gradients", f"a copy without a gradient is used beside the tensor: {kept.source}"
        )
        return
    B, T = evidence.inputs.sizes
    masked = _call_with_hidden_row(evidence)
    if masked is not None:
        yield Finding(
            "mask-fill-too-small",
            "bug",
            "A finite number hides every key of a query in PyTorch's attention: the query reads all of them alike, and "
            f"the gradient of {name} is {derivatives[name]:.3g} in place of {by_difference:.3g}.",
            f"B = {B}, T = {T}",
            SourceLine.of(masked),
        )
        return
    yield Finding(
        "gradient-wrong",
        "bug",
        f"Moving {name} along a random direction changes the output by {by_difference:.3g} per unit; "
        f"its gradient says {derivatives[name]:.3g}.",
        f"{str(evidence.subject.dtype).removeprefix('torch.')}, B = {B}, T = {T}",
        find_gradient_line(evidence, meant=[it.line for it in straight_through]),
    )


def _is_for_inference_alone(forward: Callable[..., object]) -> bool:
    """Check whether a decorator turns the gradients of a whole call off, as for the generation of text."""
    source = parsed(forward)
    return source is not None and any(
        isinstance(it, ast.FunctionDef)
        and any({"no_grad", "inference_mode"} & names_in([one]) for one in it.decorator_list)
        for it in source.tree.body
    )


def _is_trained_otherwise(evidence: Evidence) -> bool:
    """Check whether a target's own code asks for its mode, and has gradients in training."""
    asks = any(
        isinstance(node, ast.If) and "training" in names_in([node.test])
        for node in nodes_of(evidence.subject.target.forward)
    )
    if not asks:
        return False
    subject, inputs = fresh_subject(evidence, evidence.subject.dtype, train=True)
    return not isinstance(attempt(lambda: subject.run(inputs).sum().backward()), Exception)


def _is_right_as_rounded(evidence: Evidence, name: str, derivative: float) -> bool:
    """Check whether a derivative is as right as the dtype allows in which the target computes some of its steps.

    Scores to which a mask has added a very low number, in all keys of a query, keep the digits of float32.
    """
    dtype = coarsest_dtype(evidence.baseline)
    if dtype == torch.float64 and any(map(_has_row_of_fills, evidence.attentions)):
        dtype = torch.float32
    if dtype == torch.float64:
        return False
    precision = PRECISIONS[dtype]
    by_difference = _derivative_by_difference(evidence, [name], precision.step)
    return _is_close(derivative, by_difference, abs(derivative), precision)


def _has_row_of_fills(attention: RecordedAttention) -> bool:
    """Check whether a finite number hides every key of a query."""
    largest = attention.logits.amax(-1)
    return bool((largest.isfinite() & (largest < LOW)).any())


def _is_right_but_for_maxima(evidence: Evidence, names: Sequence[str]) -> bool:
    """Check whether all gradients agree once the maxima that the target detaches have theirs."""
    point = DifferentiationPoint.of(evidence)
    with (maxima := DetachedMaxima()):
        loss = point.loss()
    return (
        maxima.found
        and _find_wrong_leaf(evidence, _derivatives_by_autograd(point, loss, names)) is None
    )


def _call_with_hidden_row(evidence: Evidence) -> Step | None:
    """Return the fused call whose mask adds a very low number to all scores of a query."""
    for step in evidence.baseline.trace:
        mask = fused_arguments(step)["attn_mask"] if step.operation == FUSED else None
        value = value_of(evidence.baseline, mask) if isinstance(mask, Source) else None
        if value is not None and value.is_floating_point() and (value < LOW).all(-1).any():
            return step
    return None


def _has_backward(evidence: Evidence) -> bool:
    """Check whether a backward pass in the target's file calls a function that contains a block without gradients."""
    source = parsed_file(evidence.subject.target.forward.__code__.co_filename)
    statements = () if source is None else source.statements()
    functions = [it for it in statements if isinstance(it, ast.FunctionDef)]
    blocks = {it.name for it in functions if "with torch.no_grad()" in ast.unparse(it)}
    backward = [node for it in functions if it.name == "backward" for node in ast.walk(it)]
    return any(isinstance(it, ast.Name) and it.id in blocks for it in backward)


def _is_right_but_for_blocks(evidence: Evidence, derivatives: Mapping[str, float]) -> bool:
    """Check whether all gradients agree as long as the blocks without gradients keep their values.

    A block is not meant if it keeps a parameter or the tokens from any gradient, since nothing trains what it computes.
    Neither is one that a backward pass runs, which code outside of it may have left out.
    """
    cut_off = {name: derivative for name, derivative in derivatives.items() if derivative == 0}
    point = DifferentiationPoint.of(evidence)
    with (blocks := HeldBlocks()):
        loss = point.loss()
    if not blocks.values or any(custom_functions(loss.grad_fn)) or _has_backward(evidence):
        return False
    if cut_off and _find_wrong_leaf(evidence, cut_off) is not None:
        return False
    names, precision = [*derivatives], _precision(evidence)
    by_difference = _derivative_by_difference(evidence, names, precision.step, blocks)
    size = sum(abs(derivative) for derivative in derivatives.values())
    return _is_close(sum(derivatives.values()), by_difference, size, precision)


def _precision(evidence: Evidence) -> _Precision:
    return PRECISIONS[evidence.subject.dtype]


def _derivatives_by_autograd(
    point: DifferentiationPoint, loss: Tensor, names: Sequence[str]
) -> dict[str, float]:
    """Return the derivative of the loss along the direction of each leaf, by a backward pass."""
    if not loss.requires_grad:
        return dict.fromkeys(names, 0.0)
    point.subject.backward(loss)
    leaves = {name: point.leaves[name] for name in names}
    return {
        name: 0.0 if leaf.grad is None else (leaf.grad * _direction(leaf, name)).sum().item()
        for name, leaf in leaves.items()
    }


def _derivative_by_difference(
    evidence: Evidence,
    names: Sequence[str],
    step: float,
    blocks: AbstractContextManager[object] | None = None,
) -> float:
    """Return the derivative of the loss along the directions of some leaves together, by two runs.

    Args:
        evidence: The runs.
        names: The names of the leaves.
        step: The length of a step.
        blocks: What holds values in both runs, if anything does.
    """
    after, before = (_loss_at(evidence, names, it, blocks) for it in (step, -step))
    return (after - before) / (2 * step)


def _loss_at(
    evidence: Evidence,
    names: Sequence[str],
    distance: float,
    blocks: AbstractContextManager[object] | None = None,
) -> float:
    """Return the loss at a distance along the directions of some leaves."""
    point = DifferentiationPoint.of(evidence)
    with torch.no_grad():
        for name in names:
            point.leaves[name].add_(_direction(point.leaves[name], name), alpha=distance)
    with blocks or nullcontext():
        return point.loss().item()


def _is_at_kink(evidence: Evidence, name: str, derivative: float) -> bool:
    """Check whether a derivative lies between those on either side: a kink such as a ReLU's lies within the steps."""
    step = _precision(evidence).smaller_step
    before, here, after = (_loss_at(evidence, [name], it) for it in (-step, 0.0, step))
    sides = ((here - before) / step, (after - here) / step)
    return min(sides) <= derivative <= max(sides)


def _is_at_jump(evidence: Evidence, name: str) -> bool:
    """Check whether the target chooses other entries by their size on either side of a point."""
    step, sides = _precision(evidence).smaller_step, (ChosenEntries(), ChosenEntries())
    for distance, chosen in zip((-step, step), sides, strict=True):
        _loss_at(evidence, [name], distance, chosen)
    return sides[0].differ_from(sides[1])


def _direction(leaf: Tensor, name: str) -> Tensor:
    numbers = random_like(leaf, name)
    return numbers / numbers.norm()


def _find_wrong_leaf(evidence: Evidence, derivatives: Mapping[str, float]) -> str | None:
    """Return the leaf whose gradient is furthest from the central difference; None if all agree.

    All leaves are compared at once first, because nearly all targets pass.
    """
    names, precision = list(derivatives), _precision(evidence)
    total = sum(derivatives.values())
    size = sum(abs(derivative) for derivative in derivatives.values())
    by_difference = _derivative_by_difference(evidence, names, precision.step)
    if _is_close(total, by_difference, size, precision):
        return None

    def error(name: str, step: float) -> float:
        return abs(derivatives[name] - _derivative_by_difference(evidence, [name], step))

    def is_wrong(name: str, step: float) -> bool:
        by_autograd = derivatives[name]
        by_difference = _derivative_by_difference(evidence, [name], step)
        return not _is_close(by_autograd, by_difference, abs(by_autograd), precision)

    steps = (precision.step, precision.smaller_step)
    wrong = [name for name in names if all(is_wrong(name, step) for step in steps)]
    return max(wrong, key=lambda name: error(name, precision.step), default=None)


def _is_close(a: float, b: float, size: float, precision: _Precision) -> bool:
    """Compare a derivative by autograd with a central difference.

    A difference that is not finite proves nothing and counts as close; a derivative by autograd that is not finite
    does not.
    """
    if not math.isfinite(b):
        return True
    tolerance = precision.relative * max(size, abs(b)) + precision.absolute
    return abs(a - b) <= tolerance
