"""Probe: the number that hides scores fits into half precision."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.crashes import fresh_subject
from heedful.conformance.probes.padded_batch import padded_subject, real_tokens
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, parsed_file
from heedful.conformance.recording.target_source import own_text
from heedful.conformance.reporting.finding import Fact, Finding

# How PyTorch refuses a number that a dtype cannot hold.
OVERFLOW = "without overflow"
HALF: re.Pattern[str] = re.compile(
    r"half[- ]precision|mixed[- ]precision|\bfp16|float16|\.half\b|autocast", re.IGNORECASE
)


@probe("mask-fill-overflow")
def mask_fill_overflow(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run in float16, with every mask that there is an argument for. No fill may be too large for float16."""
    half, inputs = fresh_subject(evidence, torch.float16, train=False)
    padded = padded_subject(evidence)
    masks: list[dict[str, Tensor]] = [{}]
    if padded is not None:
        half = replace(half, padding=padded.padding)
        masks.append({"keep": real_tokens(evidence, "right")})
    if half.attention_mask is not None:
        T = inputs.sizes[1]
        masks.append({"attend": torch.ones(T, T, dtype=torch.bool).tril()})
    for mask in masks:
        error = attempt(lambda mask=mask: half.run(inputs, **mask))
        if not isinstance(error, RuntimeError) or OVERFLOW not in str(error):
            continue
        line = raising_line(error)
        meant = HALF.search(own_text(evidence.subject.callee) + _code_around(line))
        yield Finding(
            "mask-fill-overflow",
            "suspicious" if meant is None else "bug",
            f"With float16 tokens the target raises {describe_exception(error)}"
            + ("." if meant is None else f", and its code speaks of {meant.group()!r}."),
            "B = {}, T = {}, float16".format(*inputs.sizes),
            line,
        )
        return


def _code_around(line: SourceLine | None) -> str:
    """Return the code of a line's file, without its comments."""
    source = None if line is None else parsed_file(line.file)
    return "" if source is None else ast.unparse(source.tree)
