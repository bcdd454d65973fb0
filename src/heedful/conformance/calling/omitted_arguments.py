"""Optional arguments without which a target's own code refuses a call, by the lines that raise."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from heedful.conformance.calling.exceptions import describe_exception, own_frames
from heedful.conformance.calling.failures import FailedCall, is_refusal
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.assignments import variables_read
from heedful.conformance.recording.source import names_in, parsed_file


def omitted_argument(target: Target, failures: Sequence[FailedCall]) -> str | None:
    """Return an argument, None by default, that failed calls ask for and did not get; None if they ask for none."""
    omitted = {
        name
        for name, parameter in target.parameters.items()
        if parameter.default is None and name not in target.required
    }
    for failure in failures:
        convention = failure.caller.convention
        given = {*convention.names, *convention.constants}
        for name in _asked_for(failure.error):
            if name in omitted - given:
                return name
    return None


def _asked_for(error: BaseException) -> Iterator[str]:
    """Yield the variables that a refused call, or one that takes None for something else, should have had.

    They are those in the line that raises, or in the condition under which it does.
    """
    refused = is_refusal(error)
    frames = own_frames(error)
    if not frames or not (refused or "NoneType" in describe_exception(error)):
        return
    file, line = frames[-1][0].f_code.co_filename, frames[-1][1]
    yield from variables_read(file, line)
    source = parsed_file(file) if refused else None
    for node in () if source is None else ast.walk(source.tree):
        if isinstance(node, ast.If) and any(
            isinstance(it, ast.Raise) and it.lineno <= line <= (it.end_lineno or line)
            for it in node.body
        ):
            yield from names_in([node.test])
