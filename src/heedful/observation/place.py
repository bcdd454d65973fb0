"""Where in the reader's own source a torch call was made."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

import executing

# Code that carries out a line rather than being one: the reader's line is further out.
PLUMBING = frozenset({"torch", "einops"})
CALL_MACHINERY = frozenset({"_call_impl", "_wrapped_call_impl"})
OWN_PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class Place:
    """A point in a running program.

    Attributes:
        frame: the frame whose code is the reader's own.
        callee: the frame it called, on the way to torch; None if it called torch at once.
        node: the expression being evaluated; None where the source, or the one expression that
            a bytecode belongs to, cannot be told.
        statement: the statement around it, likewise.
    """

    frame: FrameType
    callee: FrameType | None
    node: ast.AST | None
    statement: ast.stmt | None

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def line(self) -> int:
        return self.frame.f_lineno

    @property
    def function(self) -> str:
        return self.frame.f_code.co_qualname

    @property
    def source(self) -> str:
        """The statement's text; of one with a body, its head."""
        if self.statement is None:
            return ""
        first, last = self.statement.lineno, self.statement.end_lineno or self.statement.lineno
        body = getattr(self.statement, "body", None)
        if body:
            last = max(first, body[0].lineno - 1)
        lines = linecache.getlines(self.file, self.frame.f_globals)
        return textwrap.dedent("".join(lines[first - 1 : last])).strip()

    def caller(self, home: CodeType) -> Place | None:
        """The place that a value returned from here goes to; None if that is not reader's code."""
        outer = self.frame.f_back
        if outer is None or outer.f_code is home or _package(outer) in PLUMBING or _is_own(outer):
            return None
        return _place(outer, callee=self.frame)


def find_place(frame: FrameType | None, home: CodeType) -> Place | None:
    """Walk up from a frame to the first one of a reader's own code, at most up to `home`.

    Where a torch module was recorded itself there is none, and its own source serves. None means
    that no source made the call, as in `record(torch.softmax, …)`.
    """
    callee, within_torch = None, None
    while frame is not None and frame.f_code is not home:
        if not _is_own(frame):
            if _package(frame) not in PLUMBING:
                return _place(frame, callee)
            if _is_torch_module(frame):
                within_torch = frame, callee
            callee = frame
        frame = frame.f_back
    return None if within_torch is None else _place(*within_torch)


def frames_outward(frame: FrameType | None, home: CodeType) -> Iterator[FrameType]:
    """A frame, its caller, and so on, up to `home` and without it."""
    while frame is not None and frame.f_code is not home:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType, callee: FrameType | None) -> Place:
    found = executing.Source.executing(frame)
    statements = found.statements or ()
    statement = next(iter(statements)) if len(statements) == 1 else None
    return Place(frame, callee, found.node, statement)


def _module_name(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "")


def _package(frame: FrameType) -> str:
    return _module_name(frame).partition(".")[0]


def _is_own(frame: FrameType) -> bool:
    return _module_name(frame).startswith(OWN_PACKAGE)


def _is_torch_module(frame: FrameType) -> bool:
    return (
        _module_name(frame).startswith("torch.nn.modules.")
        and frame.f_code.co_name not in CALL_MACHINERY
    )
