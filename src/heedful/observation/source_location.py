"""The location in user code at which a torch call was made."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType

import executing

# Frames of these packages carry out a user's line; the line itself is in a frame further out.
LIBRARIES: frozenset[str] = frozenset({"torch", "einops"})
# So do these modules of heedful, unlike its layers and models, whose lines are meant to be read.
OWN_LIBRARIES: frozenset[str] = frozenset(
    f"heedful.{name}"
    for name in (
        "functional",
        "integrations",
        "intervals",
        "kernels",
        "lazy",
        "masks",
        "problem",
        "summaries",
    )
)
# These compute with the positions of queries and keys alone, unless a mask holds a tensor.
POSITION_MODULES: tuple[str, ...] = ("heedful.intervals", "heedful.masks")
MODULE_CALL_FUNCTIONS: frozenset[str] = frozenset({"_call_impl", "_wrapped_call_impl"})
OWN_PACKAGE: str = __name__.rpartition(".")[0]


@dataclass(frozen=True, eq=False)
class SourceLocation:
    """An expression that a running program is evaluating.

    Attributes:
        frame: the frame that runs the user's code.
        callee: the frame that `frame` called on the way to torch; None if it called torch directly.
        node: the expression being evaluated; None if the source is unavailable or the bytecode does not map to a
            single expression.
        statement: the statement that contains the expression, or None for the same reasons.
        parsed: the parsed file.
    """

    frame: FrameType
    callee: FrameType | None
    node: ast.AST | None
    statement: ast.stmt | None
    parsed: executing.Source

    @property
    def file(self) -> str:
        """The path of the source file."""
        return self.frame.f_code.co_filename

    @property
    def line(self) -> int:
        """The line number, counted from 1."""
        return self.frame.f_lineno

    @property
    def function(self) -> str:
        """The qualified name of the function."""
        return self.frame.f_code.co_qualname

    @property
    def source(self) -> str:
        """The text of the statement, or only its header if the statement has a body."""
        if self.statement is None:
            return ""
        return _text(self.parsed, self.statement)

    def caller(self, boundary: CodeType) -> SourceLocation | None:
        """Return the location that receives this function's return value, or None if that is not user code."""
        outer = self.frame.f_back
        if outer is None or outer.f_code is boundary:
            return None
        if _carries_out(outer) or _is_own(outer):
            return None
        return _locate(outer, callee=self.frame)


def find_location(frame: FrameType | None, boundary: CodeType) -> SourceLocation | None:
    """Return the location of the innermost frame of user code.

    If a torch module was itself recorded, there is no user code, and the module's own source is used instead.

    Args:
        frame: the innermost frame to look at.
        boundary: the code at which the search outward stops, such as that of `record`.

    Returns:
        The location, or None if no source made the call, as in ``record(torch.softmax, …)``.
    """
    callee, torch_module = None, None
    while frame is not None and frame.f_code is not boundary:
        if not _is_own(frame):
            if not _carries_out(frame):
                return _locate(frame, callee)
            if _is_torch_module(frame):
                torch_module = frame, callee
            callee = frame
        frame = frame.f_back
    return None if torch_module is None else _locate(*torch_module)


def is_position_arithmetic(frame: FrameType | None) -> bool:
    """Check whether a frame, or the one that called torch's code, computes with positions as heedful's masks do."""
    while frame is not None and _module_name(frame).startswith("torch."):
        frame = frame.f_back
    return frame is not None and _module_name(frame).startswith(POSITION_MODULES)


def frames_outward(frame: FrameType | None, boundary: CodeType) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on, and stop before the boundary."""
    while frame is not None and frame.f_code is not boundary:
        yield frame
        frame = frame.f_back


def _locate(frame: FrameType, callee: FrameType | None) -> SourceLocation:
    executed = executing.Source.executing(frame)
    statements = executed.statements or ()
    statement = next(iter(statements)) if len(statements) == 1 else None
    return SourceLocation(frame, callee, executed.node, statement, executed.source)


@lru_cache(maxsize=4096)
def _text(source: executing.Source, statement: ast.stmt) -> str:
    """Return the text of a statement, or only of its header if it has a body."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    body = getattr(statement, "body", None)
    if body:
        last = max(first, body[0].lineno - 1)
    return textwrap.dedent("\n".join(source.lines[first - 1 : last])).strip()


def _module_name(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "")


def _carries_out(frame: FrameType) -> bool:
    """Check whether a frame belongs to a library that carries out a line of its caller."""
    return _is_library(_module_name(frame))


@lru_cache(maxsize=4096)
def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES or ".".join(module.split(".")[:2]) in OWN_LIBRARIES


def _is_own(frame: FrameType) -> bool:
    return _module_name(frame).startswith(OWN_PACKAGE)


def _is_torch_module(frame: FrameType) -> bool:
    return (
        _module_name(frame).startswith("torch.nn.modules.")
        and frame.f_code.co_name not in MODULE_CALL_FUNCTIONS
    )
