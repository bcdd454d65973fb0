"""Whether it matters how the tokens lie in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
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


def _transposed(tokens: Tensor) -> Tensor:
    """Its two first axes swapped in memory."""
    return tokens.transpose(0, 1).contiguous().transpose(0, 1)


def _sliced(tokens: Tensor) -> Tensor:
    """A piece of a longer row: its last axis has gaps between rows, and starts in the middle of the memory."""
    return torch.cat([tokens, tokens, tokens], dim=-1)[..., tokens.shape[-1] : 2 * tokens.shape[-1]]


def _backwards(tokens: Tensor) -> Tensor:
    """Its last axis is the slowest in memory."""
    return tokens.movedim(-1, 0).contiguous().movedim(0, -1)


def _expanded(tokens: Tensor) -> Tensor:
    """One sequence, shown as many: no memory of their own."""
    return tokens[:1].expand_as(tokens)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _transposed,
    "sliced from longer rows": _sliced,
    "transposed with features first": _backwards,
    "one sequence expanded to a batch": _expanded,
}


@probe("stride-dependent")
def strides(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Gives equal tokens that lie otherwise in memory: results and gradients must be equal."""
    for name, lay in LAYOUTS.items():
        strided = _with(evidence.inputs, lay)
        plain = _with(strided, lambda it: it.clone(memory_format=torch.contiguous_format))
        expected = attempt(lambda inputs=plain: _outcome(evidence.subject, inputs))
        if isinstance(expected, Exception):
            return  # other probes tell of it
        outcome = attempt(lambda inputs=strided: _outcome(evidence.subject, inputs))
        finding = _judged(evidence, name, plain, strided, expected, outcome)
        if finding is not None:
            yield finding
            return


def _judged(
    evidence: Evidence,
    name: str,
    plain: Inputs,
    strided: Inputs,
    expected: dict[str, Tensor],
    outcome: dict[str, Tensor] | Exception,
) -> Finding | None:
    strides = tuple(next(iter(strided.arguments.values())).stride())
    case = f"B = {plain.sizes[0]}, T = {plain.sizes[1]}, strides {strides}"
    if isinstance(outcome, Exception):
        proof = f"Tokens that lie {name} in memory make it raise {describe_exception(outcome)}"
        place = raising_line(outcome)
        own = place is not None and place.file == _file(evidence.subject)
        return Finding("stride-dependent", "bug" if own else "suspicious", proof, case, place)
    for what, value in expected.items():
        sizes = [it.abs().max() for it in expected.values() if it.numel()]
        apart = (value - outcome[what]).abs().max()
        # What is 0 but for rounding, as the gradient of a key's bias, differs by rounding, too.
        if differing_entries(value, outcome[what]).any() and apart > TOLERANCES[value.dtype] * max(
            sizes
        ):
            proof = (
                f"With equal tokens that lie {name} in memory {what} is another, by {apart:.3g}."
            )
            return Finding(
                "stride-dependent", "bug", proof, case, _parting(evidence.subject, plain, strided)
            )
    return None


def _file(subject: Subject) -> str | None:
    """Where the target is written: what the libraries that it is built on refuse is not its own bug."""
    written = subject.function or type(subject.module)
    return (
        inspect.getsourcefile(written)
        if inspect.isfunction(written) or inspect.isclass(written)
        else None
    )


def _with(inputs: Inputs, lay: Callable[[Tensor], Tensor]) -> Inputs:
    laid: dict[int, Tensor] = {}  # what is one tensor stays one
    for tensor in inputs.arguments.values():
        laid.setdefault(id(tensor), lay(tensor))
    return replace(inputs, arguments={name: laid[id(it)] for name, it in inputs.arguments.items()})


def _outcome(subject: Subject, inputs: Inputs) -> dict[str, Tensor]:
    """The output, and the gradients of parameters and tokens."""
    subject = subject.fresh()
    leaves = {} if subject.module is None else dict(subject.module.named_parameters())
    leaves = {name: it for name, it in leaves.items() if it.requires_grad}
    if not inputs.vocabulary:
        tokens = {f"argument {name}": it.detach() for name, it in inputs.arguments.items()}
        leaves |= {name: it.requires_grad_() for name, it in tokens.items()}
        inputs = replace(
            inputs, arguments=dict(zip(inputs.arguments, tokens.values(), strict=True))
        )
    output = subject.run(inputs)
    found = {"the output": output.detach()}
    if output.requires_grad:
        weights = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).reshape(output.shape)
        (output * weights).sum().backward()
        gradients = {name: it.grad for name, it in leaves.items() if it.grad is not None}
        found |= {f"the gradient of {name}": it for name, it in gradients.items()}
    return found


def _parting(subject: Subject, plain: Inputs, strided: Inputs) -> SourceLine | None:
    """The line at which two runs on equal tokens part."""
    one, other = subject.fresh().record(plain), subject.fresh().record(strided)
    if not same_steps(one, other):
        return None
    for step in one.trace:
        changed = changed_entries(one, other, step)
        if changed is not None and changed.any() and not step.operation.startswith("empty"):
            return SourceLine.of(step)
    return None
