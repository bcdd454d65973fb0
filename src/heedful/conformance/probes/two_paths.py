"""Probe: fused attention, and the code that a class has in its place, compute the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor, nn

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import MaskArgument
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine, names_in, nodes_of
from heedful.conformance.recording.target_source import methods_of
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding

SWITCH: re.Pattern[str] = re.compile(
    r"flash|fused|sdpa?(_|$)|xformers|(mem(ory)?|attn|attention)_?eff|naive|torch_?2"
)
"""What is in the names of flags that choose between two ways to compute the same attention."""

ROUNDING = 1e-3
"""The largest difference relative to the largest output. One of the ways may compute in a coarser dtype."""

FEW = 2
"""The number of queries where there are fewer than keys."""


@dataclass(frozen=True)
class _Call:
    """A call on which both ways are compared.

    Attributes:
        name: The finding if they differ there, and in no call before.
        words: The call in words.
        run: Record the call of a subject.
        rows: The entries of its output that are compared.
        mask: The mask that it gives; None if it gives none.
    """

    name: str
    words: str
    run: Callable[[Subject], Observation]
    rows: tuple[slice | list[int], ...] = ()
    mask: MaskArgument | None = None


@probe("weights-wrong", "mask-unused", "causal-alignment")
def two_paths(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Switch between fused attention and the code in its place. Both must return the same for the same arguments."""
    subject = evidence.subject
    for path, name in () if subject.module is None else _switches(subject.module):
        other = _switched(subject, path, name)
        for call in _calls(evidence):
            pairs = zip(*(_in_each_dtype(it, call.mask) for it in (subject, other)), strict=True)
            compared = [it for pair in pairs if (it := _compared(call, pair)) is not None]
            distance, place = min(compared, key=lambda it: it[0], default=(0.0, None))
            if distance > ROUNDING:
                yield Finding(
                    call.name,
                    "bug",
                    f"{name} chooses between fused attention and other code for the same, but {call.words} their "
                    f"outputs differ by {distance:.2g} of the largest one.",
                    f"{ANY_CALL} with {name}={getattr(_part(other, path), name)!r}",
                    place,
                    f"Give fused attention the scale, the mask and the causality of the code without {name}.",
                )
                return


def _in_each_dtype(subject: Subject, mask: MaskArgument | None) -> list[Subject]:
    """Return a subject that gives a mask as a Boolean one, and one that gives numbers to add to the scores."""
    if mask is None:
        return [subject]
    of = "padding" if mask is subject.padding else "attention_mask"
    dtypes = (torch.bool, subject.dtype)
    return [replace(subject, **{of: replace(mask, dtype=dtype)}) for dtype in dtypes]


def _compared(call: _Call, pair: tuple[Subject, Subject]) -> tuple[float, SourceLine] | None:
    """Return by how much the outputs of a pair differ, and the line that calls fused attention.

    Return None if one of them does not take the call, if both or none call fused attention, or if one is random.
    """
    own, other = (attempt(lambda it=it: call.run(it)) for it in pair)
    if isinstance(own, Exception) or isinstance(other, Exception):
        return None
    fused = [line for it in (own, other) if (line := _fused_line(it)) is not None]
    if len(fused) != 1 or _is_noisy(call, pair):
        return None
    return _distance(own.output[call.rows], other.output[call.rows]), fused[0]


def _switches(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the path of each part that has a flag for fused attention, and the name of the flag."""
    for path, part in module.named_modules():
        methods = [it for it in methods_of(part) if it.__name__ != "__init__"]
        tests = [it.test for method in methods for it in nodes_of(method) if _is_condition(it)]
        read = names_in(tests)
        for name, value in vars(part).items():
            chooses = isinstance(value, bool) and name in read and SWITCH.search(name.lower())
            if chooses and not _is_built_in(part, name):
                yield path, name


def _is_condition(node: ast.AST) -> TypeGuard[ast.If | ast.IfExp | ast.Assert]:
    return isinstance(node, ast.If | ast.IfExp | ast.Assert)


def _is_built_in(part: nn.Module, name: str) -> bool:
    """Check whether a constructor makes other attributes with a flag, or refuses it beside another that is on."""
    for node in nodes_of(type(part).__init__):
        if not _is_condition(node) or name not in names_in([node.test]):
            continue
        if isinstance(node, ast.IfExp) or any(isinstance(it, ast.Assign) for it in ast.walk(node)):
            return True
        if any(getattr(part, other, None) is True for other in names_in([node.test]) - {name}):
            return True
    return False


def _part(subject: Subject, path: str) -> nn.Module:
    assert subject.module is not None
    return subject.module.get_submodule(path)


def _switched(subject: Subject, path: str, name: str) -> Subject:
    """Return a copy of a subject with a flag the other way round."""
    other = subject.fresh()
    part = _part(other, path)
    setattr(part, name, not getattr(part, name))
    return other


def _calls(evidence: Evidence) -> Iterator[_Call]:
    """Yield the calls on which both ways are compared, simple ones first."""
    subject, inputs, (B, T) = evidence.subject, evidence.inputs, evidence.inputs.sizes
    yield _Call("weights-wrong", "without a mask", lambda it: it.record(inputs))
    if T < FEW + 1:
        return
    if subject.padding is not None and not subject.convention.pooled:
        keep = torch.ones(B, T, dtype=torch.bool)
        keep[:, 1] = False
        rows = (slice(None), [t for t in range(T) if t != 1])
        words = f"with padding in {subject.padding.name}"
        mask = subject.padding
        yield _Call("mask-unused", words, lambda it: it.record(inputs, keep=keep), rows, mask)
    if subject.attention_mask is not None:
        past = torch.ones(T, T, dtype=torch.bool).tril()
        words = f"with a causal {subject.attention_mask.name}"
        mask = subject.attention_mask
        yield _Call("mask-unused", words, lambda it: it.record(inputs, attend=past), (), mask)
    if len(inputs.arguments) > 1 and subject.fixed_sizes is None:
        query, *_ = inputs.arguments
        last = inputs.tokens(T - FEW, T).arguments[query]
        few = replace(inputs, arguments={**inputs.arguments, query: last})
        words = f"for the last {FEW} of {T} queries"
        yield _Call("causal-alignment", words, lambda it: it.record(few))


def _fused_line(run: Observation) -> SourceLine | None:
    """Return the line that calls fused attention."""
    return next((SourceLine.of(it) for it in run.trace.steps if it.operation == FUSED), None)


def _is_noisy(call: _Call, subjects: tuple[Subject, Subject]) -> bool:
    """Check whether another seed changes an output."""
    for subject in subjects:
        first, second = (call.run(replace(subject, seed=seed)).output for seed in (1, 2))
        if _distance(first[call.rows], second[call.rows]) > 0:
            return True
    return False


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest entry."""
    if a.shape != b.shape or not (a.isfinite().all() and b.isfinite().all()):
        return 0.0  # other findings tell
    return ((a - b).abs().max() / a.abs().max().clamp(min=1e-12)).item()
