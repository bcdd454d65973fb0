"""What a target raises, and on which of its lines."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from heedful.conformance.finding import Place

NOT_THE_TARGETS = (
    "torch",
    "heedful.conformance",
    "heedful.observation",
)  # they only carry out its lines


def attempt(run: Callable[[], Any]) -> Any:
    """What a run of a target gives: its result, or the exception that it raised."""
    try:
        return run()
    except TimeoutError:  # the probe's own time is up
        raise
    except Exception as error:  # noqa: BLE001 - whatever the target raises tells about the target
        return error


def where_raised(error: BaseException) -> Place | None:
    """The innermost line of a target's own code that an exception passed through."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not str(frame.f_globals.get("__name__", "")).startswith(NOT_THE_TARGETS):
            summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
            found = Place(summary.filename, line, (summary.line or "").strip())
    return found


def said(error: BaseException) -> str:
    """An exception's class and the first line of what it says."""
    return traceback.format_exception_only(error)[0].strip().partition("\n")[0]
