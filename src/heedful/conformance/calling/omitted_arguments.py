"""Optional arguments without which a target's own code refuses a call, by the lines that raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from heedful.conformance.calling.exceptions import (
    describe_exception,
    own_frames,
    raising_frame,
)
from heedful.conformance.calling.failures import FailedCall, is_refusal, refusing_tests
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.assignments import assigns, variables_read
from heedful.conformance.recording.source import names_in, nodes_of

# What an exception says of None, or of an empty tensor.
OF_NOTHING: re.Pattern[str] = re.compile(r"NoneType|\(\d+x0 and|of size 0\b|size: \[0\]")

UNBOUND: re.Pattern[str] = re.compile(r"UnboundLocalError: .*variable '(\w+)'")


def omitted_argument(target: Target, failures: Sequence[FailedCall]) -> str | None:
    """Return an argument, None or empty by default, that failed calls ask for; None if they ask for none."""
    for failure in failures:
        convention = failure.caller.convention
        given = {*convention.names, *convention.constants}
        name = asked_for(failure.error, optional_arguments(target) - given)
        if name is not None:
            return name
    return None


def unbound_by_default(target: Target, failures: Sequence[FailedCall]) -> BaseException | None:
    """Return an error about a variable that `forward` assigns only if an argument differs from its default.

    The target's own defaults then lead to a line that cannot run. None without such an error.
    """
    forward = getattr(target.forward, "__code__", None)
    for failure in failures:
        said = UNBOUND.search(describe_exception(failure.error))
        frame = raising_frame(failure.error)
        if said is None or frame is None or frame.f_code is not forward:
            continue
        convention = failure.caller.convention
        given = {*convention.names, *convention.constants}
        conditions = [
            names_in(it for it in ast.walk(node.test) if isinstance(it, ast.expr))
            for node in nodes_of(target.forward)
            if isinstance(node, ast.If) and not node.orelse
            if any(assigns(it, said[1]) for it in ast.walk(node) if isinstance(it, ast.stmt))
        ]
        left_out = target.parameters.keys() - {*target.required} - given
        if conditions and not convention.guessed and all(it <= left_out for it in conditions):
            return failure.error
    return None


def optional_arguments(target: Target) -> set[str]:
    """Return the arguments of a target that are None, or an empty tensor, by default."""
    return {
        name
        for name, parameter in target.parameters.items()
        if _is_nothing(parameter.default) and name not in target.required
    }


def _is_nothing(default: object) -> bool:
    return default is None or (isinstance(default, Tensor) and default.numel() == 0)


def may_be_omitted(target: Target, given: Collection[str]) -> set[str]:
    """Return the arguments of a call that are None or empty by default and that the code compares with None."""
    optional = optional_arguments(target) & {*given}
    return {name for name in optional if may_be_none(target, name)}


def asked_for(error: BaseException, omitted: Collection[str]) -> str | None:
    """Return the first omitted argument that a failed call asks for; None if it asks for none."""
    return next((name for name in _asked_for(error) if name in omitted), None)


def may_be_none(target: Target, argument: str) -> bool:
    """Check whether a target's own code compares an argument with None."""
    for node in nodes_of(target.forward):
        match node:
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Is() | ast.IsNot()],
                comparators=[ast.Constant(value=None)],
            ) if name == argument:
                return True
    return False


def _asked_for(error: BaseException) -> Iterator[str]:
    """Yield the variables that a refused call, or one that takes None or nothing for something else, should have had.

    They are those in the line that raises, or in the condition under which it does.
    """
    refused = is_refusal(error)
    frames = own_frames(error)
    if not frames or not (refused or OF_NOTHING.search(describe_exception(error))):
        return
    yield from variables_read(frames[-1][0].f_code.co_filename, frames[-1][1])
    yield from names_in(refusing_tests(error) if refused else ())
