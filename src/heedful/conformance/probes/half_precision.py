"""Probe: a target runs in bfloat16, as models are often run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.crashes import fresh_subject
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.target_source import own_text
from heedful.conformance.reporting.finding import Fact, Finding

UNEQUAL: re.Pattern[str] = re.compile(
    r"(same|different) d?types?\b|expected scalar type|dtypes? (do not )?match", re.IGNORECASE
)
"""What an exception says if an operation is given tensors of two dtypes."""

COARSE = ("BFloat16", "bfloat16")

FOR_HALF: re.Pattern[str] = re.compile(
    r"\bb?fp?16|b?float16|\.half\(|half[- ]precision|softmax\([^\n]*float32"
)
"""What code contains that is written for half precision. A softmax in float32 has no other reason."""

AUTOCAST = "autocast"
"""The context in which PyTorch itself makes dtypes equal."""


@probe("crashes")
def half_precision(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Cast a copy to bfloat16, and run it. No operation may be given a tensor that is still, or again, in float32."""
    convention = evidence.subject.convention
    fixed = any(_is_of_dtype(it) for it in convention.constants.values())
    if convention.from_example or convention.guessed or fixed:
        return  # an argument that keeps its dtype is to blame
    cast, inputs = fresh_subject(evidence, torch.bfloat16, train=False)
    error = attempt(lambda: cast.run(inputs))
    if not isinstance(error, RuntimeError) or not UNEQUAL.search(str(error)):
        return
    if not any(word in str(error) for word in COARSE) or raising_line(error) is None:
        return
    code = own_text(evidence.subject.callee)
    meant = None if AUTOCAST in code else FOR_HALF.search(code)
    if meant is None:
        yield Fact("bfloat16", "does not run, because tensors of float32 meet those of the tokens")
        return
    yield Finding(
        "crashes",
        "bug",
        f"With bfloat16 tokens and parameters the target raises {describe_exception(error)}; its code, which has "
        f"{meant.group()!r}, is meant for several dtypes.",
        "B = {}, T = {}, bfloat16".format(*inputs.sizes),
        raising_line(error),
        "Give each tensor that a call makes the dtype of the tokens, as in weights.to(value.dtype).",
    )


def _is_of_dtype(constant: object) -> bool:
    """Check whether an argument of a call is a tensor of numbers, or may hold some."""
    if isinstance(constant, Tensor):
        return constant.is_floating_point()
    return not isinstance(constant, bool | int | float | str | None)
