"""A tracer of the lines of a target that run, and of the arguments that it gets."""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.recording.coverage import Coverage, coverage_of
from heedful.conformance.recording.source import parsed_file

Remedy = Callable[[Sequence[str], Sequence[str]], str]
"""A function of the arguments and the attributes that decide about a branch; it returns how to make the branch run."""

TRACED_ALIKE = 2
"""The number of calls with the same kind of arguments that are traced: tracing doubles the time of a call."""


@dataclass(eq=False)
class LineTracer:
    """Notes the lines that run in the file of a function, and the arguments that the function gets.

    Attributes:
        forward: The function.
        ran: The numbers of the lines that ran.
        given: The arguments that got another value than their default.
    """

    forward: Callable[..., Any]
    ran: set[int] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    _left: dict[CodeType, set[int]] = field(default_factory=dict)
    _kinds: Counter[Any] = field(default_factory=Counter)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Trace the `watched` calls as long as the block lasts."""
        token = _WATCHING.set(self)
        try:
            yield
        finally:
            _WATCHING.reset(token)

    def is_new(self, kind: Any) -> bool:
        """Check whether few calls of a kind have been traced, and count this one."""
        self._kinds[kind] += 1
        return self._kinds[kind] <= TRACED_ALIKE

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace this thread as long as the block lasts."""
        code, defaults = self.forward.__code__, _defaults(self.forward)
        file = code.co_filename

        def on_call(frame: FrameType, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename != file:
                return None
            if frame.f_code is code:
                self._note_arguments(frame.f_locals, defaults)
            left = self._left.get(frame.f_code)
            if left is None:
                left = self._left[frame.f_code] = _lines_of(frame.f_code)
            return on_line if left else None

        def on_line(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                self.ran.add(frame.f_lineno)
                self._left[frame.f_code].discard(frame.f_lineno)
            return on_line

        sys.settrace(on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _note_arguments(self, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        for name in defaults.keys() - self.given:
            if values.get(name) is not defaults[name]:
                self.given.add(name)

    def coverage(self, remedy: Remedy) -> Coverage | None:
        """Return what ran so far; None if the source cannot be parsed or nothing ran."""
        file = self.forward.__code__.co_filename
        if parsed_file(file) is None or not self.ran:
            return None
        parameters = inspect.signature(self.forward).parameters
        return coverage_of(
            file,
            self.ran,
            tuple(name for name in _defaults(self.forward) if name not in self.given),
            lambda _, test: "" if test is None else remedy(*_deciding(test, parameters)),
        )


_WATCHING: ContextVar[LineTracer | None] = ContextVar("watching", default=None)


def watched(callee: Any, arguments: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Trace a call in the block, if a tracer is watching and its arguments are unlike those of earlier calls.

    A debugger or another tracer keeps its place.
    """
    tracer = _WATCHING.get()
    if tracer is None or sys.gettrace() is not None:
        return nullcontext()
    kinds = tuple((name, _kind(value)) for name, value in arguments.items())
    kind = (getattr(callee, "training", None), kinds)
    return tracer.tracing() if tracer.is_new(kind) else nullcontext()


def _kind(value: Any) -> Any:
    """Return what a branch is likely to ask about an argument: its shape and dtype, or its value."""
    if isinstance(value, Tensor):
        masked = value.dtype == torch.bool and not value.is_meta and int(value.sum())
        return tuple(value.shape), value.dtype, masked
    if isinstance(value, int | float | str) or value is None:
        return value
    return type(value)


def traceable(callee: Any) -> Callable[..., Any] | None:
    """Return the Python function that a call of a module or function runs; None if it has none."""
    function = inspect.unwrap(type(callee).forward) if hasattr(callee, "forward") else callee
    return function if inspect.isfunction(function) else None


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {name: it.default for name, it in parameters.items() if it.default is not it.empty}


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def _deciding(
    test: ast.expr, parameters: Mapping[str, inspect.Parameter]
) -> tuple[list[str], list[str]]:
    """Return the optional arguments and the attributes of `self` that a test reads."""
    nodes = list(ast.walk(test))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    attributes = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    ]
    optional = [
        it
        for it in names
        if it in parameters and parameters[it].default is not inspect.Parameter.empty
    ]
    return list(dict.fromkeys(optional)), list(dict.fromkeys(attributes))
