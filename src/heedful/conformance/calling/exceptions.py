"""Exceptions that a target raises, and the lines of its code that raise them."""

from __future__ import annotations

import dis
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.isolation import unforked
from heedful.conformance.recording.assignments import assignment_before, variables_read
from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine

# They only run a target's lines, or judge its arguments.
RUNNERS = (
    *("torch", "heedful.conformance", "heedful.observation", "einops", "functools", "inspect"),
    *("jaxtyping", "beartype", "typeguard"),
)
UNEQUAL_SIZES: re.Pattern[str] = re.compile(
    r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)"
)
UNJOINED_SIZES: re.Pattern[str] = re.compile(r"Expected size (\d+) but got size (\d+)")
UNBOUND: re.Pattern[str] = re.compile(r"local variable '(\w+)'")
USUAL = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, AssertionError)
"""Exceptions whose description is their message behind the name of their class."""
MAX_DESCRIPTION = 1000  # characters of a message


class TargetExitError(Exception):
    """A target calls sys.exit(), or raises another exception that is no `Exception`, which is the cause."""


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise a `TargetExitError` where a target raises SystemExit or the like, which must not end the check.

    KeyboardInterrupt passes, because the user of the check may have pressed Ctrl-C, and so does GeneratorExit, which
    ends a block that a TimeoutError has left behind.
    """
    try:
        with unforked():
            yield
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise TargetExitError(type(error).__name__).with_traceback(error.__traceback__) from error


def attempt(run: Callable[[], Any]) -> Any:
    """Return the result of a run, or the exception that it raises; let a TimeoutError of the check itself pass."""
    try:
        return run()
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001 - every exception is evidence about the target
        return error


def raising_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of the target's own code that an exception passed through."""
    own = own_frames(error)
    if not own:
        return None
    frame, line = own[-1]
    file = frame.f_code.co_filename
    unbound = UNBOUND.search(str(error)) if isinstance(error, UnboundLocalError) else None
    if unbound is not None and unbound[1] not in variables_read(file, line):
        # CPython 3.11 tells the line before, because it runs a store and the load behind it as one instruction.
        later = (it for *_, it in frame.f_code.co_lines() if it is not None and it > line)
        line = min(later, default=line)
    return SourceLine.at(file, line)


def raising_frame(error: BaseException) -> FrameType | None:
    """Return the innermost frame of the target's own code that an exception passed through."""
    own = own_frames(error)
    return own[-1][0] if own else None


def own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of the target's own code that an exception passed through, the outermost first, and lines."""
    frames = traceback.walk_tb(error.__traceback__)
    return [(frame, line) for frame, line in frames if line and not _is_runner(frame.f_globals)]


def unequal_sizes(error: BaseException) -> tuple[int, int] | None:
    """Return the two sizes that an operation needs to be equal; None if the exception says nothing of the kind."""
    said = UNEQUAL_SIZES.search(describe_exception(error))
    return None if said is None else (int(said[1]), int(said[2]))


def unjoined_sizes(error: BaseException) -> tuple[int, int] | None:
    """Return the two sizes that a concatenation needs to be equal; None if the exception says nothing of the kind."""
    said = UNJOINED_SIZES.search(describe_exception(error))
    return None if said is None else (int(said[1]), int(said[2]))


def without_tensors(error: BaseException) -> BaseException:
    """Return an exception whose frames no longer hold their local variables, which may be large tensors.

    An AttributeError keeps them, because they tell whether an argument lacks the attribute, and so do errors of unequal
    sizes, because they tell which mask does not fit.
    """
    if not isinstance(error, AttributeError) and unequal_sizes(error) is None:
        traceback.clear_frames(error.__traceback__)
    return error


@dataclass(frozen=True)
class UnfitMask:
    """A mask that cannot be broadcast to the scores.

    Attributes:
        name: The variable that holds it.
        shape: Its shape where the code raises.
        sizes: The two sizes that should be equal.
        place: The line that gives it this shape, or else the one that raises.
    """

    name: str
    shape: tuple[int, ...]
    sizes: tuple[int, int]
    place: SourceLine


def unfit_mask(error: BaseException) -> UnfitMask | None:
    """Return the mask with which code raises an exception because it cannot be broadcast; None for other exceptions.

    It is a Boolean tensor, or one whose variable is named a mask, in the statement that raises.
    """
    sizes, own = unequal_sizes(error), own_frames(error)
    if sizes is None or not own:
        return None
    frame, line = own[-1]
    code = frame.f_code
    for name in variables_read(code.co_filename, line):
        tensor = frame.f_locals.get(name)
        if not isinstance(tensor, Tensor) or not (
            tensor.dtype == torch.bool or "mask" in name.lower()
        ):
            continue
        place = _assignment_of(tensor, own) or SourceLine.at(code.co_filename, line)
        return UnfitMask(name, tuple(tensor.shape), sizes, place)
    return None


def _assignment_of(tensor: Tensor, frames: list[tuple[FrameType, int]]) -> SourceLine | None:
    """Return the line of the innermost frame that assigns a tensor to a variable, before it calls the next frame."""
    for frame, line in reversed(frames):
        file, first = frame.f_code.co_filename, frame.f_code.co_firstlineno
        for name in (name for name, value in frame.f_locals.items() if value is tensor):
            made = assignment_before(file, line, name, first)
            if made is not None:
                return made
    return None


def describe_exception(error: BaseException) -> str:
    """Return the class of an exception and the first line of its message."""
    if isinstance(error, TargetExitError) and error.__cause__ is not None:
        error = error.__cause__
    if type(error) in USUAL and any(error.args) and all(isinstance(it, str) for it in error.args):
        text = (
            f"{type(error).__name__}: {error}"  # as below, but a search describes 100,000 of them
        )
    else:
        text = traceback.format_exception_only(error)[0]
    line = text.strip().partition("\n")[0].rstrip(".")
    return line if len(line) <= MAX_DESCRIPTION else f"{line[:MAX_DESCRIPTION]} …"


def described_with_line(error: BaseException) -> str:
    """Return the description of an exception, with the innermost line of the target's code if it passed through one."""
    place = raising_line(error)
    line = "" if place is None else f", at {location_of(place)}: {place.source}"
    return f"{describe_exception(error)}{line}"


def global_tensor_read(error: BaseException) -> tuple[str, SourceLine] | None:
    """Return the first global tensor that the raising code reads, and the line: its sizes may be what did not fit."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_runner(frame.f_globals):
            continue
        for instruction in dis.get_instructions(frame.f_code):
            line = None if instruction.positions is None else instruction.positions.lineno
            if instruction.opname != "LOAD_GLOBAL" or line is None:
                continue
            value = frame.f_globals.get(instruction.argval)
            if isinstance(value, Tensor) and value.numel() > 1:
                return instruction.argval, SourceLine.at(frame.f_code.co_filename, line)
    return None


def _is_runner(module: dict[str, Any]) -> bool:
    """Check whether the module of a frame only runs the lines of a target."""
    name = str(module.get("__name__", ""))
    return any(name == runner or name.startswith(f"{runner}.") for runner in RUNNERS)
