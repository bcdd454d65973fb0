"""Capture the real inputs of a module from a run of the model that contains it, or of a test that calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.discovery import find_convention
from heedful.conformance.calling.examples import Example, as_example
from heedful.conformance.calling.exceptions import described_with_line, exits_as_errors
from heedful.conformance.calling.isolation import seeded
from heedful.conformance.calling.options import option, option_with
from heedful.conformance.calling.target import copied_module, make_target
from heedful.errors import ArgumentError

MODEL_SIZES = (2, 5)  # B and T of the tokens that a model gets without an example
MAX_NAMED = 20  # names in an error message


@dataclass(frozen=True)
class Capture:
    """The first call of a module.

    Attributes:
        module: A module in the state that it had before the call.
        example: The arguments of the call, and where it was made.
    """

    module: nn.Module
    example: Example


def captured_from_model(model: Any, name: str, example: Any) -> Capture:
    """Run a copy of a model, and return the first call of one of its modules.

    Args:
        model: The model.
        name: The name of the module, as in `named_modules()`.
        example: The arguments of the model, in any form that `check` takes; None to find out how it is called.

    Raises:
        ArgumentError: The model has no such module, cannot be run, or does not call the module.
    """
    if not isinstance(model, nn.Module) or name not in dict(model.named_modules()):
        raise _no_such_module(model, name)
    target = make_target(model)
    assert target.module is not None
    own = copied_module(target.module).eval()
    module = own.get_submodule(name)
    with _first_call(lambda called: called is module) as calls:
        error = _run(own, _inputs_of(target, example))
    if not calls:
        raise ArgumentError(
            option("module"),
            expected=f"a module that a run of {target.name} calls",
            received=f"{name}, which is not called" if error is None else f"{name}, but {error}",
            remedy=f"Give an example of {target.name}'s own arguments: {option_with('example', '…')}.",
        ) from None
    return _capture(calls, f"{name} in a run of {target.name}")


def captured_from_test(test: Callable[[], Any], cls: type, name: str) -> Capture:
    """Run a test, and return the first call of an instance of a class in it.

    A test usually imports the file of the class under another name than the check does, so that its class is another
    object; it is recognized by its name and its file.

    Raises:
        ArgumentError: The test takes arguments, or does not call an instance of the class.
    """
    if inspect.signature(test).parameters:
        raise ArgumentError(
            "--example-from",
            expected="a test function without parameters, because fixtures are not made",
            received=f"{name}({', '.join(inspect.signature(test).parameters)})",
            remedy="Write one that calls it, or give --example.",
        )
    with _first_call(lambda called: _is_same_class(type(called), cls)) as calls:
        error = _run(test, Example())
    if not calls:
        raise ArgumentError(
            "--example-from",
            expected=f"a test that calls an instance of {cls.__name__}",
            received=f"{name}, which calls none" if error is None else f"{name}, but {error}",
            remedy="Name a test that does, or give --example.",
        )
    return _capture(calls, f"{cls.__name__} in {name}")


@contextmanager
def _first_call(is_wanted: Callable[[nn.Module], bool]) -> Iterator[list[Any]]:
    """Yield a list to which every call of a wanted module is added: the first one as (module, example), then None."""
    calls: list[Any] = []
    call = nn.Module.__call__

    def observed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_wanted(self):
            calls.append(
                None if calls else (copied_module(self), Example(*args, **kwargs).copied())
            )
        return call(self, *args, **kwargs)

    nn.Module.__call__ = observed
    try:
        yield calls
    finally:
        nn.Module.__call__ = call


def _run(function: Callable[..., Any], example: Example) -> str | None:
    """Call a function, and return what it raises, if anything: the call that is wanted may come before."""
    try:
        with torch.no_grad(), exits_as_errors(), seeded():
            function(*example.args, **example.kwargs)
    except Exception as error:  # noqa: BLE001 - a model or test may raise anything
        return f"the run raises {described_with_line(error)}"
    return None


def _inputs_of(target: Any, example: Any) -> Example:
    """Return the arguments of a model: those of an example, or tokens drawn for the convention that is found."""
    if example is not None:
        return as_example(target, example)
    convention, _ = find_convention(target, None)
    caller = Caller(target, convention, torch.float32, target.callee)
    inputs = caller.draw(*(convention.fixed_sizes or MODEL_SIZES))
    args, keywords = target.bound(caller.arguments(inputs))
    return Example(*args, **keywords)


def _capture(calls: list[Any], source: str) -> Capture:
    module, example = calls[0]
    count = f"the first of {len(calls)} calls" if len(calls) > 1 else "the only call"
    example.source = f"{count} of {source}"
    return Capture(module, example)


def _is_same_class(called: type, cls: type) -> bool:
    if called is cls:
        return True
    return called.__qualname__ == cls.__qualname__ and _file_of(called) == _file_of(cls) is not None


def _file_of(cls: type) -> str | None:
    try:
        return inspect.getsourcefile(cls)
    except (OSError, TypeError):
        return None


def _no_such_module(model: Any, name: str) -> ArgumentError:
    """Return an error that lists the modules of a model that look like an attention."""
    parts = list(model.named_modules()) if isinstance(model, nn.Module) else []
    like = [path for path, part in parts if path and _looks_like_attention(path, part)]
    listed = like or [path for path, _ in parts if path]
    more = ", …" if len(listed) > MAX_NAMED else ""
    names = f"{', '.join(listed[:MAX_NAMED])}{more}" or "none"
    return ArgumentError(
        option("module"),
        expected="the name of a module in a model, as in named_modules()",
        received=f"{name!r}, which {type(model).__name__} does not have",
        remedy=f"{'Those that look like an attention' if like else 'Its modules'}: {names}.",
    )


def _looks_like_attention(path: str, part: nn.Module) -> bool:
    own = path.rpartition(".")[2].lower()
    return "attention" in type(part).__name__.lower() or "attn" in own or own == "attention"
