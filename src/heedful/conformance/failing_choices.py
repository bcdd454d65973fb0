"""Find a value for the constructor, such as method="concat", with which a call fails that works with another one."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heedful.conformance.calling import names
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.constructor_parameters import defaults_of, unstated_parameters
from heedful.conformance.calling.conventional import OTHER_WIDTHS, WIDTH, conventional_values
from heedful.conformance.calling.declared import declared_number
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    raising_frame,
    raising_line,
    unequal_sizes,
)
from heedful.conformance.calling.failures import UNFIT_VIEW, UncallableError
from heedful.conformance.calling.subject import SIZES, Subject, find_subject
from heedful.conformance.calling.target import make_target
from heedful.conformance.recording.source import SourceLine, compared_around
from heedful.conformance.reporting.finding import Finding

OF_AXES: re.Pattern[str] = re.compile(
    r"Dimension out of range|\b[1-4]D tensors? expected|must be a [1-4]D|expected [1-4]-?D\b",
    re.IGNORECASE,
)
"""What PyTorch says of a tensor with another number of axes than an operation takes."""
ROTARY_SIZE = 4  # unlike the usual number of features that do not turn
OF_SEVERAL: re.Pattern[str] = re.compile(r"\b(cat|concat|stack|dot|mv|mm|bmm|baddbmm|matmul)\(")
"""Operations on several tensors, which need not fit each other; one alone may have the axes that the text asks for."""


def failing_choice(
    target: type, name: str, value: float | str | type, arguments: Mapping[str, Any]
) -> Finding | None:
    """Return the finding on a value with which no call can work; None if it may need another call.

    With a text, a variable that has no value yet is such a case, and so are axes that a tensor does not have, on a line
    that runs with this text alone. A layer within may take other axes than those of the other texts. A number of key
    heads fails where it meets the number of heads.
    """
    if not isinstance(value, str) and name not in names.KEY_HEADS:
        return None
    chosen, error = _call_with(target, name, value, arguments)
    place = None if error is None else raising_line(error)
    if chosen is None or error is None or place is None:
        return None
    heads = declared_number(chosen.module, names.HEADS)
    is_certain = (
        _cannot_work(error, place, value)
        if isinstance(value, str)
        else unequal_sizes(error) in ((heads, value), (value, heads))
    )
    if not is_certain:
        return None
    proof = f"With {name}={value!r}, a call that works otherwise raises {describe_exception(error)}"
    return Finding("crashes", "bug", proof, f"{name}={value!r}", place)


def merged_to_input_width(target: type, arguments: Mapping[str, Any]) -> Finding | None:
    """Return the finding on a class that takes the widths of inputs and of heads, and works if both are equal alone.

    It gives what has the width of all heads that of its input, in a view.
    """
    widths = [it for it in unstated_parameters(target, arguments) if it in names.WIDTHS]
    inputs = [it for it in widths if it in names.INPUT_WIDTHS]
    if len(widths) != 2 or len(inputs) != 1:
        return None
    sizes = dict.fromkeys(widths, WIDTH) | {inputs[0]: OTHER_WIDTHS[0]}
    failed = attempt(lambda: find_subject(target, arguments={**arguments, **sizes}, by_trial=False))
    for error in failed.failures if isinstance(failed, UncallableError) else ():
        said = UNFIT_VIEW.search(str(error))
        last = None if said is None else int(said[1].rpartition(", ")[2])
        if last == OTHER_WIDTHS[0]:
            case = ", ".join(f"{name}={size}" for name, size in sizes.items())
            proof = (
                f"With {case} it raises {describe_exception(error)}: the heads have {WIDTH} features together, and the "
                f"view gives them the {last} of the input. With equal widths it works."
            )
            remedy = "Merge the heads into their own width."
            return Finding("crashes", "bug", proof, case, raising_line(error), remedy)
    return None


def fewer_key_heads_fail(
    target: Any, arguments: Mapping[str, Any], error: UncallableError
) -> Finding | None:
    """Return the finding on a class that takes a number of heads of keys, and works with that of the queries alone.

    Args:
        target: The class.
        arguments: The arguments of its constructor.
        error: What calls with fewer heads of keys raise.
    """
    known = conventional_values(arguments)
    heads, key_heads = known[names.HEADS[0]], known[names.KEY_HEADS[0]]
    taken = defaults_of(target).keys() - arguments.keys() if inspect.isclass(target) else set[str]()
    name = next((it for it in names.KEY_HEADS if it in taken), None)
    sizes = ((heads, key_heads), (key_heads, heads))
    unfit = [it for it in error.failures if unequal_sizes(it) in sizes]
    if name is None or not unfit:
        return None
    equal = {**arguments, name: heads}
    if isinstance(
        attempt(lambda: find_subject(target, arguments=equal, by_trial=False)), Exception
    ):
        return None
    proof = (
        f"With {name}={key_heads} and {heads} heads it raises {describe_exception(unfit[0])}. With as many heads of "
        "keys as of queries it works."
    )
    remedy = "Repeat the heads of keys and values along the axis of the heads, each for the queries of its group."
    return Finding("crashes", "bug", proof, f"{name}={key_heads}", raising_line(unfit[0]), remedy)


def rotary_size_mistaken(target: type, arguments: Mapping[str, Any]) -> Finding | None:
    """Return the finding on a class with features that turn and others, and works if they are equally many alone."""
    taken = defaults_of(target).keys() - arguments.keys()
    rotary = next((it for it in names.ROTARY_SIZES if it in taken), None)
    if rotary is None or taken.isdisjoint(names.STEADY_SIZES):
        return None
    chosen, error = _call_with(target, rotary, ROTARY_SIZE, arguments)
    if chosen is None or not isinstance(error, RuntimeError):  # a refusal of its own is another one
        return None
    if any(
        not isinstance(it, bool | int | float | str | None)
        for it in chosen.convention.constants.values()
    ):
        return None  # tables of the first size, for example
    proof = (
        f"With {rotary}={ROTARY_SIZE} it raises {describe_exception(error)}. It works if as many features of a head "
        "turn as do not."
    )
    return Finding("crashes", "bug", proof, f"{rotary}={ROTARY_SIZE}", raising_line(error))


def _call_with(
    target: type, name: str, value: float | str | type, arguments: Mapping[str, Any]
) -> tuple[Subject | None, Exception | None]:
    """Return a class with another value, called as without it, and the exception of the call; None where there is none.

    Both are None if the class cannot be called without the value, or not be built with it.
    """
    subject = attempt(lambda: find_subject(target, arguments=arguments))
    other = attempt(lambda: make_target(instantiate(target, {**arguments, name: value})))
    if isinstance(subject, Exception) or isinstance(other, Exception):
        return None, None
    chosen = replace(subject, target=other, callee=other.copied(subject.dtype))
    result = attempt(lambda: chosen.run(chosen.draw(*(subject.fixed_sizes or SIZES))))
    return chosen, result if isinstance(result, Exception) else None


def _cannot_work(error: Exception, place: SourceLine, text: str) -> bool:
    """Check whether an exception shows that no call works with a text."""
    if isinstance(error, UnboundLocalError):
        return True
    innermost = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    of_axes = innermost is raising_frame(error) and OF_AXES.search(str(error)) is not None
    of_several = OF_SEVERAL.search(place.source) is not None
    return of_axes and of_several and text in compared_around(place)
