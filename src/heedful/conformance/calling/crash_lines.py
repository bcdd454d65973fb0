"""Find the line to edit when sizes do not fit: often an earlier one than the line that raises."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from types import FrameType

from torch import Tensor, nn

from heedful.conformance.calling.exceptions import (
    own_frames,
    raising_frame,
    raising_line,
    unequal_sizes,
)
from heedful.conformance.recording.assignments import assignment_before, variables_read
from heedful.conformance.recording.source import SourceLine, parsed_file

HEIGHT: re.Pattern[str] = re.compile(r"h|hh|height|h_\w+|\w+_h|img_height", re.IGNORECASE)
WIDTH: re.Pattern[str] = re.compile(r"w|ww|width|w_\w+|\w+_w|img_width", re.IGNORECASE)
WIDTH_FIRST: re.Pattern[str] = re.compile(r"\bw(idth)?\s*[,x×]\s*h(eight)?\b", re.IGNORECASE)
TURNING: re.Pattern[str] = re.compile(r"(\w+) = \1\.(transpose|permute|contiguous|mT|movedim)\b")


def causing_line(error: BaseException) -> SourceLine | None:
    """Return the line that gives a tensor the sizes with which an operation raises; None if it cannot be told."""
    frame, raised = raising_frame(error), raising_line(error)
    if frame is None or raised is None or unequal_sizes(error) is None:
        return None
    return (
        _swapped_unpacking(frame, raised)
        or _assignment_of_unknown_size(frame, raised)
        or _assignment_in_caller(error)
    )


def _swapped_unpacking(frame: FrameType, raised: SourceLine) -> SourceLine | None:
    """Return the line that unpacks a shape as width and height, though feature maps are (…, height, width)."""
    source = parsed_file(raised.file)
    docstring = frame.f_code.co_consts[0]
    said = f"{inspect.getdoc(frame.f_locals.get('self'))} {docstring}"
    if source is None or WIDTH_FIRST.search(said):
        return None
    for statement in source.statements():
        if not frame.f_code.co_firstlineno <= statement.lineno <= raised.line:
            continue
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id=first), ast.Name(id=last)])]):
                is_shape = re.search(r"\.(shape|size\(\))", ast.unparse(statement.value))
                sizes = frame.f_locals.get(first), frame.f_locals.get(last)
                swapped = WIDTH.fullmatch(first) and HEIGHT.fullmatch(last)
                if is_shape and swapped and sizes[0] != sizes[1]:
                    return source.line_of(statement)
    return None


def _assignment_of_unknown_size(frame: FrameType, raised: SourceLine) -> SourceLine | None:
    """Return the line that assigns the only tensor, of those combined, with a size that the code does not know.

    The code knows numbers in its variables and in attributes of its module.
    """
    known = set(_numbers(frame))
    read = {name: frame.f_locals.get(name) for name in variables_read(raised.file, raised.line)}
    tensors = {name: it for name, it in read.items() if isinstance(it, Tensor)}
    unknown = [name for name, it in tensors.items() if not known.issuperset(it.shape)]
    if len(tensors) < 2 or len(unknown) != 1:
        return None
    line = raised
    while True:
        first = frame.f_code.co_firstlineno
        made = assignment_before(line.file, line.line, unknown[0], first)
        if made is None or not TURNING.match(made.source):
            return made
        line = made


def _assignment_in_caller(error: BaseException) -> SourceLine | None:
    """Return the line of the innermost caller that assigns a tensor of a size that its code does not know.

    The size is one of the two that should be equal. The raising code was given the tensor, so it is not at fault.
    """
    sizes = set(unequal_sizes(error) or ())
    for frame, line in reversed(own_frames(error)[:-1]):
        file, first = frame.f_code.co_filename, frame.f_code.co_firstlineno
        unknown = sizes.difference(_numbers(frame))
        for name in variables_read(file, line) if len(unknown) == 1 else ():
            tensor = frame.f_locals.get(name)
            if isinstance(tensor, Tensor) and not unknown.isdisjoint(tensor.shape):
                return assignment_before(file, line, name, first)
    return None


def _numbers(frame: FrameType) -> Iterator[int]:
    """Yield the integers in the variables of a frame and in its module, and the sizes of arguments."""
    yield 1
    module = frame.f_locals.get("self")
    attributes = vars(module).values() if isinstance(module, nn.Module) else ()
    yield from (it for it in (*frame.f_locals.values(), *attributes) if type(it) is int)
    count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
    given = (frame.f_locals.get(name) for name in frame.f_code.co_varnames[:count])
    for value in given:
        yield from value.shape if isinstance(value, Tensor) else ()
