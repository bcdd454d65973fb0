"""The options of a check in the words of the user: arguments of `check()`, or options of `heedful check`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

COMMAND_LINE: Mapping[str, str] = {
    "example": "--example",
    "module": "--module",
    "arguments": "--with",
    "num_heads": "--heads",
    "window": "--window",
    "causal": "--causal/--bidirectional",
    "target": "TARGET",
}

_IN_COMMAND: ContextVar[bool] = ContextVar("in_command", default=False)


@contextmanager
def in_command() -> Iterator[None]:
    """Name options as the command line does, as long as the block lasts."""
    token = _IN_COMMAND.set(True)
    try:
        yield
    finally:
        _IN_COMMAND.reset(token)


def option(name: str) -> str:
    """Return the name of an option: "num_heads" in Python, "--heads" on the command line."""
    return COMMAND_LINE[name] if _IN_COMMAND.get() else name


def option_with(name: str, value: str) -> str:
    """Return an option with its value as one would write it.

    >>> option_with("num_heads", "4")
    'num_heads=4'
    """
    return f"{COMMAND_LINE[name]} {value}" if _IN_COMMAND.get() else f"{name}={value}"


def example_with(*names: str) -> str:
    """Return an example that gives some arguments by name, as one would write it.

    >>> example_with("mask")
    'example=Example(…, mask=…)'
    """
    listed = ", ".join(f"{name}=…" for name in names) or "…"
    more = f"…, {listed}" if names else listed
    return f"--example '{more}'" if _IN_COMMAND.get() else f"example=Example({more})"


def constructor_with(name: str) -> str:
    """Return how to give an argument of the constructor.

    >>> constructor_with("bias")
    "arguments={'bias': …}"
    """
    return f"--with {name}=VALUE" if _IN_COMMAND.get() else f"arguments={{{name!r}: …}}"


def literal(text: str) -> Any:
    """Return the Python literal that the value of an option stands for, or else the text itself.

    >>> literal("3"), literal("relu")
    (3, 'relu')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
