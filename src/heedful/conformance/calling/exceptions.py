"""What a target raises, and on which of its lines."""

from __future__ import annotations

import dis
import traceback
from collections.abc import Callable
from typing import Any

from torch import Tensor

from heedful.conformance.recording.source import SourceLine

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


def raising_line(error: BaseException) -> SourceLine | None:
    """The innermost line of a target's own code that an exception passed through."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _carries_out(str(frame.f_globals.get("__name__", ""))):
            found = SourceLine.at(frame.f_code.co_filename, line)
    return found


def _carries_out(module: str) -> bool:
    """Whether a module's code only carries out a target's lines."""
    return any(module == it or module.startswith(f"{it}.") for it in NOT_THE_TARGETS)


def describe_exception(error: BaseException) -> str:
    """An exception's class and the first line of what it says."""
    return traceback.format_exception_only(error)[0].strip().partition("\n")[0].rstrip(".")


def global_tensor_read(error: BaseException) -> tuple[str, SourceLine] | None:
    """The first global tensor that the code which raised reads, and where: what came of it may be what did not fit."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _carries_out(str(frame.f_globals.get("__name__", ""))):
            continue
        for instruction in dis.get_instructions(frame.f_code):
            held = (
                frame.f_globals.get(instruction.argval)
                if instruction.opname == "LOAD_GLOBAL"
                else None
            )
            line = None if instruction.positions is None else instruction.positions.lineno
            if isinstance(held, Tensor) and held.numel() > 1 and line is not None:
                return instruction.argval, SourceLine.at(frame.f_code.co_filename, line)
    return None
