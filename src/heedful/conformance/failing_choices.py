"""Find a text of a constructor, such as method="concat", with which a call fails that works with another text."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    raising_frame,
    raising_line,
)
from heedful.conformance.calling.subject import SIZES, find_subject
from heedful.conformance.calling.target import make_target
from heedful.conformance.recording.source import SourceLine, compared_around
from heedful.conformance.reporting.finding import Finding

OF_AXES: re.Pattern[str] = re.compile(
    r"Dimension out of range|\b[1-4]D tensors? expected|must be a [1-4]D|expected [1-4]-?D\b",
    re.IGNORECASE,
)
"""What PyTorch says of a tensor with another number of axes than an operation takes."""


def failing_choice(
    target: type, name: str, text: str, arguments: Mapping[str, Any]
) -> Finding | None:
    """Return the finding on a text with which no call can work; None if the text may need another call.

    A variable that has no value yet is such a case, and so are axes that a tensor does not have, on a line that runs
    with this text alone. A layer within may take other axes than those of the other texts.
    """
    subject = attempt(lambda: find_subject(target, arguments=arguments))
    other = attempt(lambda: make_target(instantiate(target, {**arguments, name: text})))
    if isinstance(subject, Exception) or isinstance(other, Exception):
        return None
    chosen = replace(subject, target=other, callee=other.copied(subject.dtype))
    inputs = chosen.draw(*(subject.fixed_sizes or SIZES))
    error = attempt(lambda: chosen.run(inputs))
    place = raising_line(error) if isinstance(error, Exception) else None
    if place is None or not _is_certain(error, place, text):
        return None
    proof = f"With {name}={text!r}, a call that works otherwise raises {describe_exception(error)}"
    return Finding("crashes", "bug", proof, f"{name}={text!r}", place)


def _is_certain(error: Exception, place: SourceLine, text: str) -> bool:
    """Check whether an exception shows that no call works with a text."""
    if isinstance(error, UnboundLocalError):
        return True
    innermost = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    of_axes = innermost is raising_frame(error) and OF_AXES.search(str(error)) is not None
    return of_axes and text in compared_around(place)
