"""Arguments of a call whose names do not tell their shapes: many are tried, led by the line that each call reaches."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from itertools import combinations, islice, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.convention import CallingConvention, output_candidates
from heedful.conformance.calling.discovery import TRIAL_SIZES
from heedful.conformance.calling.documented_calls import documented_calls
from heedful.conformance.calling.examples import Example, find_example_convention
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    exits_as_errors,
    own_frames,
)
from heedful.conformance.calling.guessed_examples import flattened
from heedful.conformance.calling.influence import mixes_sequences
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.calling.target import Target, TargetError
from heedful.conformance.calling.time_limit import TimeLimit
from heedful.conformance.calling.trial_values import BATCH, GRIDS, TrialValue, trial_values
from heedful.observation.leaves import leaves_of

SECONDS = 5.0  # the time limit of all trials
SECONDS_OF_PAIRS = 0.5  # that of the changes of two arguments, with images of one size
NUMBERS: re.Pattern[str] = re.compile(r"[\d, ]+")  # of a message that names shapes
MAX_ARGUMENTS = 6
MAX_CALLS = 8  # calls that run of which one may be understood


def find_convention_by_trial(
    targets: Sequence[Target], causal: bool | None
) -> tuple[Target, CallingConvention, torch.dtype] | None:
    """Return the first target with a call that is no coincidence, and its convention as `find_convention` does.

    Such a call runs with other numbers of sequences and of tokens, too, and keeps sequences apart.

    Args:
        targets: The same target, built in several ways.
        causal: Whether calls should be causal, if an argument decides that; None for the target's default.

    Returns:
        None if there is no such call.

    Raises:
        TargetError: A call gets to a line that reads a name or an attribute that exists nowhere.
    """
    for target in targets:
        limit, flat = TimeLimit(SECONDS / len(targets)), flattened(target)
        for call in islice(_calls_that_run(flat, limit), MAX_CALLS):
            args, keywords = flat.bound(call.arguments)
            found = _understood(target, Example(*args, **keywords), causal, call.is_documented)
            if found is not None:
                return target, *found
            if limit.left() < 0:
                break
    return None


class _Call(NamedTuple):
    """The arguments of a call that runs, and whether the documentation shows the shape of each."""

    arguments: dict[str, Any]
    is_documented: bool


def _understood(
    target: Target, example: Example, causal: bool | None, is_documented: bool
) -> tuple[CallingConvention, torch.dtype] | None:
    """Return the convention of a call that runs, and the dtype; None if it may run by coincidence alone."""
    found = attempt(lambda: find_example_convention(target, example, causal))
    if isinstance(found, Exception):
        return None
    convention, dtype = replace(found[0], guessed=True, by_trial=True), found[1]
    caller = Caller(target, convention, dtype, target.copied(dtype))
    apart = mixes_sequences(caller, caller.draw(*(convention.fixed_sizes or TRIAL_SIZES))) is False
    return (convention, dtype) if apart and _varies(convention, is_documented) else None


def _varies(convention: CallingConvention, is_documented: bool) -> bool:
    """Check whether all arguments with an axis for the tokens follow when there are fewer of them.

    The number of tokens may be fixed for images, and where the documentation gives every shape.
    """
    lengths, sizes = [*map(math.prod, GRIDS)], convention.fixed_sizes
    if sizes is not None and not is_documented and (not convention.is_image or sizes[1] in lengths):
        return False
    resized = (it for it in convention.constants.values() if isinstance(it, Resized))
    tensors = ((leaf, it.axes) for it in resized for _, leaf in leaves_of(it.value))
    return all(
        axes.T in lengths and "T" in axes.of(tensor.shape)
        for tensor, axes in tensors
        if isinstance(tensor, Tensor) and any(size in lengths for size in tensor.shape)
    )


def _calls_that_run(target: Target, limit: TimeLimit) -> Iterator[_Call]:
    """Yield calls that run, the most likely first; none if the target takes too many.

    Those of documented shapes come first. From the calls that got furthest, one argument is exchanged, or one width or
    shape in all of them, and at last two arguments.

    Raises:
        TargetError: A call gets to a line that reads a name or an attribute that exists nowhere.
    """
    if target.module is None or not 0 < len(target.required) <= MAX_ARGUMENTS:
        return
    callee = target.copied(torch.float32)
    for arguments, result in documented_calls(target, partial(_called, target, callee)):
        if any(map(_is_of_batch, output_candidates(result))):
            yield _Call(arguments, True)
        if limit.left() < 0:
            return
    for number, grid in enumerate(GRIDS):
        values = [trial_values(name, target, grid) for name in target.required]
        part = TimeLimit(max(limit.left(), 0.0) / (len(GRIDS) - number))
        yield from (_Call(arguments, False) for arguments in _search(target, values, part))


class _Waiting(NamedTuple):
    """A choice of values whose changes are tried: first those whose call got furthest.

    Attributes:
        exchanged: how many arguments a change exchanges.
        reached: the lines that the call reached, negative.
        chosen: the index of each argument's value.
        changes: the changes that are not yet tried.
    """

    exchanged: int
    reached: tuple[int, ...]
    chosen: tuple[int, ...]
    changes: Iterator[tuple[int, ...]]


def _search(
    target: Target, values: Sequence[Sequence[TrialValue]], limit: TimeLimit
) -> Iterator[dict[str, Any]]:
    """Yield the calls that run among those of the given values for each argument, and return a tensor for the batch."""
    callee, tried = target.copied(torch.float32), set[tuple[int, ...]]()
    failures: set[tuple[tuple[int, ...], str]] = set()
    start = (0,) * len(values)
    waiting = [_Waiting(1, (), start, iter([start]))]
    while waiting:
        current = heapq.heappop(waiting)
        if current.exchanged == 2:
            limit = TimeLimit(min(SECONDS_OF_PAIRS, limit.left()))
        for changed in current.changes:
            if limit.left() < 0:
                return
            if changed in tried:
                continue
            tried.add(changed)
            found = zip(target.required, values, changed, strict=True)
            arguments, result = _called(
                target, callee, {name: its[n].value for name, its, n in found}
            )
            if not isinstance(result, Exception):
                if any(map(_is_of_batch, output_candidates(result))):
                    yield arguments
                continue
            reached = tuple(-line for _, line in own_frames(result))  # less than that of others
            failure = (reached, NUMBERS.sub("", describe_exception(result)))
            is_new = failure not in failures  # a line may take several steps
            failures.add(failure)
            further = reached < current.reached or (is_new and reached == current.reached)
            if not current.reached or further:
                heapq.heappush(waiting, current)  # goes on later
                heapq.heappush(waiting, _Waiting(1, reached, changed, _changes(changed, 1, values)))
                break
        else:
            if current.reached and current.exchanged < min(2, len(values)):
                pairs = _changes(current.chosen, 2, values)
                heapq.heappush(waiting, _Waiting(2, current.reached, current.chosen, pairs))


def _called(target: Target, callee: Any, arguments: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return arguments and the result or exception of a call, with masks that show what others hid if all is NaN."""
    result = _call(target, callee, arguments)
    if not isinstance(result, Exception) and any(
        it.isnan().all() for it in output_candidates(result)
    ):
        arguments = {name: _turned(it) for name, it in arguments.items()}
        result = _call(target, callee, arguments)
    return arguments, result


def _turned(value: Any) -> Any:
    """Return a Boolean mask that shows what another one has hidden; other values are returned themselves."""
    return ~value if isinstance(value, Tensor) and value.dtype == torch.bool else value


def _is_of_batch(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and BATCH in tensor.shape


def _changes(
    chosen: tuple[int, ...], count: int, values: Sequence[Sequence[TrialValue]]
) -> Iterator[tuple[int, ...]]:
    """Yield the choices that differ in so many arguments, after those with another width or shape in several."""
    widths = dict.fromkeys(its[index].width for its, index in zip(values, chosen, strict=True))
    others = dict.fromkeys(it.width for its in values for it in its if it.width)
    for width, other in product(widths, others) if count == 1 else ():
        yield tuple(
            _with(its, index, width=other) if its[index].width == width else index
            for its, index in zip(values, chosen, strict=True)
        )
    kinds = Counter(its[index].kind for its, index in zip(values, chosen, strict=True))
    shared = [kind for kind, uses in kinds.items() if uses > 1]
    other_kinds = dict.fromkeys(it.kind for its in values for it in its)
    for kind, new in product(shared, other_kinds) if count == 1 else ():
        yield tuple(
            _with(its, index, kind=new) if its[index].kind == kind else index
            for its, index in zip(values, chosen, strict=True)
        )
    for places in combinations(range(len(values)), count):
        for indices in product(*(range(len(values[place])) for place in places)):
            changed = list(chosen)
            for place, index in zip(places, indices, strict=True):
                changed[place] = index
            yield tuple(changed)


def _with(values: Sequence[TrialValue], index: int, kind: str = "", width: int = 0) -> int:
    """Return the index of the value of another kind, or another width, than one has; its own index if there is none."""
    wanted = (kind or values[index].kind, width or values[index].width)
    return next((n for n, it in enumerate(values) if (it.kind, it.width) == wanted), index)


def _call(target: Target, callee: Any, arguments: dict[str, Any]) -> Any:
    """Return what a call returns, or the exception that it raises.

    Raises:
        TargetError: The exception is about a name that exists nowhere.
    """
    given = {name: it.clone() if isinstance(it, Tensor) else it for name, it in arguments.items()}
    args, keywords = target.bound(given)

    def run() -> Any:
        with torch.enable_grad(), exits_as_errors():
            return callee(*args, **keywords)

    result = attempt(run)
    if isinstance(result, Exception) and is_missing_name(result) and _is_sure(result):
        raise TargetError(target.name) from result
    return result


def _is_sure(error: Exception) -> bool:
    """Check whether a missing attribute is no sign that something else than a tensor should have been given."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, Tensor):
        return True
    owner, name = error.obj, str(error.name)
    return owner.requires_grad or bool(get_close_matches(name, dir(Tensor)))
