"""Probe: a target that works with one number of tokens only is meant to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.failures import is_refusal
from heedful.conformance.calling.names import HEADS, KEY_HEADS
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Finding

EXACT_LENGTH: re.Pattern[str] = re.compile(
    r"(example|input|num|n)_?(len|length|tokens|nodes|patches|steps|frames|joints)"
)
"""The name of a parameter that takes a number of tokens which all sequences have."""


@probe("length-dependent")
def fixed_lengths(evidence: Evidence) -> Iterator[Finding]:
    """Run another number of tokens where one alone works, because of a mask or of the number of heads."""
    if evidence.subject.fixed_sizes is not None:
        yield from _uncut_mask(evidence)
        yield from _as_many_tokens_as_heads(evidence)


def _uncut_mask(evidence: Evidence) -> Iterator[Finding]:
    """Find a causal mask that is not cut to the tokens: sequences shorter than the mask are valid.

    They may not be where the constructor takes the length of each example, and no maximum.
    """
    B, T = evidence.inputs.sizes
    module = evidence.subject.module
    buffers = [] if module is None else list(module.buffers())
    tables = [
        it.reshape(T, T).bool() for it in buffers if it.shape[-2:] == (T, T) == it.squeeze().shape
    ]
    if not any(torch.equal(it, it.tril()) or torch.equal(it, it.triu()) for it in tables):
        return
    error = attempt(lambda: evidence.subject.run(evidence.inputs.tokens(0, T - 1)))
    if isinstance(error, Exception) and not is_refusal(error):
        accepted = inspect.signature(type(module)).parameters
        yield Finding(
            "length-dependent",
            "suspicious" if any(map(EXACT_LENGTH.fullmatch, accepted)) else "bug",
            f"With {T - 1} tokens the target raises {describe_exception(error)}; it works with {T} tokens, the size of "
            "its mask.",
            f"B = {B}, T = {T - 1}",
            raising_line(error),
        )


def _as_many_tokens_as_heads(evidence: Evidence) -> Iterator[Finding]:
    """Report a target that only works with as many tokens as it has heads: it takes one axis for the other."""
    module, (B, T) = evidence.subject.module, evidence.inputs.sizes
    if module is None or evidence.subject.convention.guessed:
        return
    numbers = {
        name
        for part in module.modules()
        for name, it in vars(part).items()
        if type(it) is int and it == T
    }
    tensors = (*module.parameters(), *module.buffers())
    if not numbers or not numbers <= {*HEADS, *KEY_HEADS} or any(T in it.shape for it in tensors):
        return
    error = attempt(lambda: evidence.subject.run(evidence.subject.draw(B, T + 1)))
    if isinstance(error, Exception) and not is_refusal(error):
        yield Finding(
            "length-dependent",
            "bug",
            f"With {T + 1} tokens the target raises {describe_exception(error)}; it works with {T} tokens, as many as "
            "it has heads.",
            f"B = {B}, T = {T + 1}",
            raising_line(error),
        )
