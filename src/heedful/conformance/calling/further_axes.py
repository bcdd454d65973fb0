"""Conventions for tokens with more axes than a sequence has, if the exceptions of other calls ask for so many."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from heedful.conformance.calling.convention import FRAMES, MAPS, SIGNAL, CallingConvention
from heedful.conformance.calling.exceptions import attempt, raising_line
from heedful.conformance.calling.failures import FailedCall, refusing_tests
from heedful.conformance.calling.layouts import channel_axis
from heedful.conformance.calling.target import Target, made_parameters

SEQUENCE, SEQUENCE_AXES = "(B, T, C)", 3
IDS, TURNED_IDS = "(B, T) ids", "(T, B) ids"
ASKED: tuple[re.Pattern[str], ...] = (
    re.compile(r"values to unpack \(expected (?P<wanted>\d), got (?P<given>\d)\)"),
    re.compile(
        r"equation \((?P<wanted>\d)\) does not match the number of dimensions \((?P<given>\d)\)"
    ),
    re.compile(r"expected (?P<wanted>\d) dims. Received (?P<given>\d)-dim"),
    re.compile(r"dim\(\) = (?P<given>\d) is not equal to len\(dims\) = (?P<wanted>\d)"),
    re.compile(r"or (?P<wanted>\d)D \(batched\) input to conv\dd, but got input of"),
)
PAST_SHAPE = "tuple index out of range"
SIZE_READ: re.Pattern[str] = re.compile(r"\.shape\[(\d)\]")
PAST_LAST: re.Pattern[str] = re.compile(r"Dimension out of range .*\[-(\d), \d\], but got (\d)\)")


def with_further_axes(
    conventions: Sequence[CallingConvention], failures: Sequence[FailedCall]
) -> list[CallingConvention]:
    """Return the conventions of sequences, in layouts of as many axes as failed calls ask for.

    If they ask for none, channels may come before tokens, and the tokens of ids before sequences. Such a layout is a
    guess.
    """
    tried = {it.layout for it in conventions}
    wanted = next((n for n in _axes_asked_for(failures) if n in MAPS), None)
    target = failures[0].caller.target
    layouts = (SIGNAL,) if wanted is None else _likely(target, MAPS[wanted], wanted)
    of_ids = (
        replace(it, layout=TURNED_IDS, guessed=True) for it in conventions if it.layout == IDS
    )
    of_vectors = (
        replace(it, layout=layout, guessed=True)
        for layout in layouts
        if layout not in tried
        for it in conventions
        if it.layout == SEQUENCE and len(it.features) == 1
    )
    return [*of_vectors, *of_ids]


def _likely(target: Target, layouts: tuple[str, ...], axes: int) -> tuple[str, ...]:
    """Return the layouts in which features are on the axis that the target's source names so.

    Without such a name, layers decide which one works. Where there are none, every one would.
    """
    channels = channel_axis(target.callee, axes)
    if channels is not None:
        known = (*layouts, FRAMES)
        return tuple(it for it in known if it.strip("()").split(", ").index("C") == channels)
    parameters = () if target.module is None else made_parameters(target.module)
    return layouts if any(it.dim() > 1 for it in parameters) else ()


def _axes_asked_for(failures: Sequence[FailedCall]) -> Iterator[int]:
    """Yield the numbers of axes that the exceptions of calls with sequences ask for."""
    for failure in failures:
        text = attempt(lambda failure=failure: str(failure.error))
        if failure.caller.layout != SEQUENCE or not isinstance(text, str):
            continue
        yield from _axes_demanded(failure.error)
        for said in filter(None, (pattern.search(text) for pattern in ASKED)):
            found = said.groupdict()
            yield int(found["wanted"]) + SEQUENCE_AXES - int(found.get("given", SEQUENCE_AXES))
        if past := PAST_LAST.search(text):
            yield SEQUENCE_AXES + int(past[2]) + 1 - int(past[1])
        place = raising_line(failure.error)
        if PAST_SHAPE in text and place is not None:  # as `x.shape[3]`
            yield 1 + max(map(int, SIZE_READ.findall(place.source)), default=0)


def _axes_demanded(error: BaseException) -> Iterator[int]:
    """Yield the number of axes in the condition that refused a call, as `if x.ndim != 4` or `assert x.dim() == 4`."""
    for test in refusing_tests(error):
        match test:
            case ast.Compare(
                left=ast.Attribute(attr="ndim")
                | ast.Call(func=ast.Attribute(attr="dim"))
                | ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="shape")]),
                ops=[ast.NotEq() | ast.Eq()],
                comparators=[ast.Constant(value=int(axes))],
            ):
                yield axes
