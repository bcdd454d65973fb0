"""The values that a command line names: of the constructor, and of an example's arguments."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from heedful.conformance.calling.capture import Capture, captured_from_test
from heedful.conformance.calling.examples import Example
from heedful.conformance.calling.isolation import seeded
from heedful.conformance.calling.loading import loaded, names_beside
from heedful.conformance.calling.options import literal
from heedful.errors import ArgumentError


def evaluated_values(texts: Mapping[str, str], target: str) -> dict[str, Any]:
    """Return the arguments of a constructor by name, each of which is a Python literal, an expression, or else text.

    An expression is a call or an attribute of torch, of Python or of a name of the target's file, such as
    "Config(width=8)" or "nn.GELU". It is code of the user's own.

    Args:
        texts: The arguments as they are written.
        target: The target that has been loaded.

    Raises:
        ArgumentError: A call cannot be evaluated.
    """
    names = {"torch": torch, **names_beside(target)} if texts else {}
    return {name: _evaluated(name, text, names) for name, text in texts.items()}


def _evaluated(name: str, text: str, names: dict[str, Any]) -> Any:
    value = literal(text)
    if not isinstance(value, str) or not _is_expression(text, names):
        return value
    try:
        with seeded():
            return eval(text, names)
    except Exception as error:
        raise ArgumentError(
            f"--with {name}",
            expected="a Python literal, an expression, or a text",
            received=f"{text!r}, which raises {type(error).__name__}: {error}",
            remedy="It may use torch and the names of the target's file. A text has quotation marks of its own.",
        ) from error


def _is_expression(text: str, names: Mapping[str, Any]) -> bool:
    """Check whether a text is a call or an attribute that begins with one of some names, or with one of Python's."""
    try:
        node: ast.AST = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    if not isinstance(node, ast.Call | ast.Attribute):
        return False
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and (node.id in names or hasattr(builtins, node.id))


def evaluated_example(text: str, target: str) -> Example:
    """Return the arguments that an expression stands for, such as "torch.randn(2, 9, 32), mask=torch.ones(9, 9)".

    The text is code of the user's own. It may use torch and every name of the target's file.

    Args:
        text: Arguments as one would write them in a call.
        target: The target that has been loaded.

    Raises:
        ArgumentError: The text cannot be evaluated.
    """
    names = {"torch": torch, **names_beside(target), "_example": Example}
    try:
        with seeded():
            return eval(f"_example({text}\n)", names)
    except Exception as error:
        raise ArgumentError(
            "--example",
            expected="the arguments of a call in Python, such as 'torch.randn(2, 9, 32), mask=None'",
            received=f"{text!r}, which raises {type(error).__name__}: {error}",
            remedy="It may use torch and the names of the target's file.",
        ) from error


def captured_from_named_test(test: str, definition: Any) -> Capture:
    """Run a test that a command line names, and return the first call of the target in it.

    Args:
        test: "path/to/test_file.py::test_name", or "….py::TestClass::test_name".
        definition: The target: a class or an instance of one.

    Raises:
        ArgumentError: There is no such test, it takes arguments, or it does not call the target.
    """
    file, separator, name = test.partition("::")
    if not separator or not (
        inspect.isclass(definition) or isinstance(definition, torch.nn.Module)
    ):
        raise ArgumentError(
            "--example-from",
            expected="path/to/test_file.py::test_name, and the class of a module as the target",
            received=f"{test} for {getattr(definition, '__name__', type(definition).__name__)}",
            remedy="For a function, give its arguments: --example.",
        )
    cls = definition if inspect.isclass(definition) else type(definition)
    holder, _, function = name.rpartition("::")
    with loaded(f"{file}:{holder.replace('::', '.') or function}") as found:
        return captured_from_test(getattr(found(), function) if holder else found, cls, test)
