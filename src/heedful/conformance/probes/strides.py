"""Check that the memory layout of the tokens does not change results or gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import (
    TOLERANCES,
    changed_entries,
    differing_entries,
    same_steps,
)
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding

Results = dict[str, Tensor]


def _transposed(tokens: Tensor) -> Tensor:
    """Return equal tokens whose first two axes are swapped in memory."""
    return tokens.transpose(0, 1).contiguous().transpose(0, 1)


def _sliced(tokens: Tensor) -> Tensor:
    """Return equal tokens that are a slice of longer rows: there are gaps between rows, and an offset."""
    C = tokens.shape[-1]
    return torch.cat([tokens, tokens, tokens], dim=-1)[..., C : 2 * C]


def _features_first(tokens: Tensor) -> Tensor:
    """Return equal tokens whose last axis is the slowest in memory."""
    return tokens.movedim(-1, 0).contiguous().movedim(0, -1)


def _expanded(tokens: Tensor) -> Tensor:
    """Return the first sequence expanded to the whole batch, without memory of its own for the copies."""
    return tokens[:1].expand_as(tokens)


MEMORY_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "sliced from longer rows": _sliced,
    "transposed with features first": _features_first,
    "one sequence expanded to a batch": _expanded,
}


@probe("stride-dependent")
def strides(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Pass equal tokens in other memory layouts. Results and gradients must be equal."""
    for layout, arrange in MEMORY_LAYOUTS.items():
        strided = _rearrange(evidence.inputs, arrange)
        contiguous = _rearrange(
            strided, lambda tokens: tokens.clone(memory_format=torch.contiguous_format)
        )
        expected = attempt(lambda inputs=contiguous: _results(evidence.subject, inputs))
        if isinstance(expected, Exception):
            return  # other probes report it
        results = attempt(lambda inputs=strided: _results(evidence.subject, inputs))
        if isinstance(results, Exception):
            finding = _report_exception(evidence.subject, layout, strided, results)
        else:
            finding = _compare(evidence.subject, layout, (contiguous, strided), expected, results)
        if finding is not None:
            yield finding
            return


def _rearrange(inputs: Inputs, arrange: Callable[[Tensor], Tensor]) -> Inputs:
    """Rearrange every argument in memory. Arguments that share one tensor still share one afterwards."""
    arranged: dict[int, Tensor] = {}
    for tokens in inputs.arguments.values():
        arranged.setdefault(id(tokens), arrange(tokens))
    arguments = {name: arranged[id(tokens)] for name, tokens in inputs.arguments.items()}
    return replace(inputs, arguments=arguments)


def _results(subject: Subject, inputs: Inputs) -> Results:
    """Return the output and the gradients of parameters and tokens, each under a name for the report."""
    subject = subject.fresh()
    leaves = {} if subject.module is None else dict(subject.module.named_parameters())
    leaves = {name: parameter for name, parameter in leaves.items() if parameter.requires_grad}
    if not inputs.vocabulary:
        arguments = {
            name: tokens.detach().requires_grad_() for name, tokens in inputs.arguments.items()
        }
        leaves |= {f"argument {name}": tokens for name, tokens in arguments.items()}
        inputs = replace(inputs, arguments=arguments)
    output = subject.run(inputs)
    results = {"the output": output.detach()}
    if output.requires_grad:
        weights = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).reshape(output.shape)
        subject.backward((output * weights).sum())
        results |= {
            f"the gradient of {name}": leaf.grad
            for name, leaf in leaves.items()
            if leaf.grad is not None
        }
    return results


def _report_exception(subject: Subject, layout: str, inputs: Inputs, error: Exception) -> Finding:
    """Report an exception; it is a bug only if the target's own file raises it and not a library.

    Nobody has said that tokens may lie in memory unlike those of an example.
    """
    line = raising_line(error)
    is_own = line is not None and line.file == _source_file(subject)
    is_own = is_own and not subject.convention.from_example
    return Finding(
        "stride-dependent",
        "bug" if is_own else "suspicious",
        f"With tokens that are {layout} in memory the target raises {describe_exception(error)}",
        _case(inputs),
        line,
    )


def _compare(
    subject: Subject,
    layout: str,
    inputs: tuple[Inputs, Inputs],
    expected: Mapping[str, Tensor],
    results: Mapping[str, Tensor],
) -> Finding | None:
    """Compare the results of contiguous and strided tokens."""
    contiguous, strided = inputs
    largest = max(value.abs().max() for value in expected.values() if value.numel())
    for name, value in expected.items():
        distance = (value - results[name]).abs().max()
        # A gradient that is zero but for rounding, as that of a key's bias, also differs by rounding.
        exceeds_rounding = not distance <= TOLERANCES[value.dtype] * largest  # also if it is NaN
        if differing_entries(value, results[name]).any() and exceeds_rounding:
            return Finding(
                "stride-dependent",
                "bug",
                f"With equal tokens that are {layout} in memory {name} differs by {distance:.3g}.",
                _case(strided),
                _diverging_line(subject, contiguous, strided),
            )
    return None


def _case(inputs: Inputs) -> str:
    B, T = inputs.sizes
    strides = tuple(next(iter(inputs.arguments.values())).stride())
    return f"B = {B}, T = {T}, strides {strides}"


def _source_file(subject: Subject) -> str | None:
    """Return the file that the target is written in."""
    target = subject.function or type(subject.module)
    if inspect.isfunction(target) or inspect.isclass(target):
        return inspect.getsourcefile(target)
    return None


def _diverging_line(subject: Subject, contiguous: Inputs, strided: Inputs) -> SourceLine | None:
    """Return the line of the first step whose value differs between the two runs."""
    one, other = subject.fresh().record(contiguous), subject.fresh().record(strided)
    if not same_steps(one, other):
        return None
    for step in one.trace:
        changed = changed_entries(one, other, step)
        if changed is not None and changed.any() and not step.operation.startswith("empty"):
            return SourceLine.of(step)
    return None
