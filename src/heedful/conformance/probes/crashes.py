"""Whether the target runs at all: in training and backwards, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Fact, Finding


@probe("crashes")
def running(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs in eval and in train mode, in float64 and in float32."""
    for dtype in (evidence.subject.dtype, torch.float32):
        for train in (False, True):
            error = attempt(lambda dtype=dtype, train=train: _run(evidence, dtype, train))
            if isinstance(error, Exception):
                yield Finding(
                    "undefined-or-global-name" if isinstance(error, NameError) else "crashes",
                    "bug",
                    f"In {'train' if train else 'eval'} mode with {str(dtype).removeprefix('torch.')} tokens it raises "
                    f"{describe_exception(error)}",
                    f"B = {evidence.inputs.sizes[0]}, T = {evidence.inputs.sizes[1]}",
                    raising_line(error),
                )
                return


def _run(evidence: Evidence, dtype: torch.dtype, train: bool) -> None:
    inputs = evidence.inputs
    if not inputs.vocabulary:
        inputs = replace(
            inputs, arguments={name: it.to(dtype) for name, it in inputs.arguments.items()}
        )
    evidence.subject.fresh(dtype=dtype, train=train).run(inputs)
