"""Find the calling convention of a target, by trying the likely ones."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.candidates import as_documented, candidate_conventions
from heedful.conformance.calling.convention import SIGNAL, CallingConvention, output_candidates
from heedful.conformance.calling.conventional import IMAGE_LENGTHS, WINDOW
from heedful.conformance.calling.decoder_states import with_a_state
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    own_frames,
    raising_line,
    unequal_sizes,
    unjoined_sizes,
    without_tensors,
)
from heedful.conformance.calling.failures import (
    FailedCall,
    batches_named,
    has_too_few,
    is_refusal,
    lengths_named,
    not_callable,
    proof_of_bug,
    square_sizes,
)
from heedful.conformance.calling.further_axes import with_further_axes
from heedful.conformance.calling.globals import global_tensor_sizes
from heedful.conformance.calling.influence import mixes_sequences
from heedful.conformance.calling.isolation import within
from heedful.conformance.calling.larger_maps import with_larger_map
from heedful.conformance.calling.layouts import likely_layouts
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.omitted_arguments import omitted_argument, unbound_by_default
from heedful.conformance.calling.one_query import with_one_query
from heedful.conformance.calling.other_axes import with_axes_by_behavior
from heedful.conformance.calling.pixel_masks import with_pixel_masks
from heedful.conformance.calling.second_masks import with_second_masks
from heedful.conformance.calling.second_sequence import with_second_sequence
from heedful.conformance.calling.target import Target, TargetError, tables
from heedful.conformance.calling.time_limit import TimeLimit
from heedful.conformance.recording.assignments import variables_read_until
from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.conformance.recording.inputs import Inputs
from heedful.observation import Trace

TRIAL_SIZES = (3, 5)  # B and T
WINDOWED_LENGTHS = (WINDOW**2, (2 * WINDOW) ** 2)  # squares that the conventional window divides
POOLED = (
    "(B, T, C)",
    "(T, B, C)",
    "(B, T) ids",
    "(T, B) ids",
    SIGNAL,
)  # layouts whose tokens may have one row in all
SEARCH_SECONDS, TRIAL_SECONDS = 20.0, 5.0  # the time limits of all trials, and of one
SECONDS_OF_LENGTHS = 2.0  # that of guessed calls with another number of tokens
MISSHAPEN: re.Pattern[str] = re.compile(
    r"shapes? .*cannot be multiplied|[Tt]he size of tensor|invalid for input of size|to unpack|Dimension out of range|"
    r"object has no attribute|[Ee]xpected size|not callable|not subscriptable|number of dimensions|not sufficient"
)
MAX_ALONE = 60  # calls with one sequence
MAX_ASKED = 3  # optional arguments that failed calls may ask for
ENOUGH = 4  # calls that fail alike with different masks
FUSED = "scaled_dot_product_attention"
LESS_EXACT = (torch.float32, torch.complex64, torch.bfloat16, torch.float16)


def find_convention(target: Target, causal: bool | None) -> tuple[CallingConvention, torch.dtype]:
    """Return the first convention that works, and the dtype of the tokens.

    The dtype is float64; or float32 if the target does not run in float64, or computes in float32 on the way, so that
    its results are only as exact as that.

    Raises:
        TargetError: Every convention fails, and the target's own code is to blame.
        ArgumentError: No convention works, which may be because of our guesses.
    """
    failures: list[FailedCall] = []
    limit = TimeLimit(SEARCH_SECONDS)
    candidates = list(candidate_conventions(target, causal))
    for sizes in _sizes(target, failures):
        conventions = [replace(convention, fixed_sizes=sizes) for convention in candidates]
        caller = first_that_works(target, conventions, failures, limit)
        if caller is None and sizes is None:
            caller = _given_what_is_asked_for(target, causal, failures, limit)
        if caller is None and sizes is None:
            more = with_further_axes(candidates, failures)
            last = [*more, *with_a_state(target, candidates)]
            caller = first_that_works(target, last, failures, limit) if last else None
            candidates += more
        if caller is not None:
            return _completed(caller)
    caller = _of_fixed_length(target, failures, limit)
    if caller is not None:
        return _completed(caller)
    if limit.left() < 0:  # what was not tried might have worked
        raise not_callable(target, failures)
    bug = proof_of_bug(failures) or unbound_by_default(target, failures)
    if bug is not None:
        raise TargetError(target.name) from bug
    caller = _of_one_sequence(target, failures, limit)
    if caller is not None:
        return _completed(caller)
    raise not_callable(target, failures)


def _completed(caller: Caller) -> tuple[CallingConvention, torch.dtype]:
    """Return the convention of a caller that works, with what its calls show about axes and masks, and its dtype."""
    caller = with_one_query(with_axes_by_behavior(with_larger_map(caller)))
    caller = with_pixel_masks(with_second_sequence(with_second_masks(caller)))
    return caller.convention, caller.dtype


def _of_fixed_length(target: Target, failures: list[FailedCall], limit: TimeLimit) -> Caller | None:
    """Return the first caller that works with as many tokens as a table, or an attribute, has; None if none does.

    The exceptions of guessed calls say that these are unequal. There may be many such calls, and so they have little
    time. Sequences that mix show that a guess is wrong.
    """
    shapes = [] if target.module is None else [it.shape for it in tables(target.module)]
    lengths = {rows for rows, _ in shapes} - {width for _, width in shapes}
    lengths |= {*square_sizes(target.module)}
    held = getattr(target.callee, "__dict__", {}).values()
    lengths |= {it for it in held if type(it) is int and it > 1}
    (B, T), conventions = TRIAL_SIZES, list[CallingConvention]()
    for failure in failures:
        convention, sizes = failure.caller.convention, {*(unequal_sizes(failure.error) or ())}
        if convention.guessed and failure.caller.dtype == torch.float64 and T in sizes:
            expected = lengths & (sizes - {T})
            conventions += [replace(convention, fixed_sizes=(B, length)) for length in expected]
    little = TimeLimit(min(SECONDS_OF_LENGTHS, limit.left()))
    caller = first_that_works(target, conventions, failures, little) if conventions else None
    if caller is None or mixes_sequences(caller, caller.draw(*(caller.fixed_sizes or TRIAL_SIZES))):
        return None
    return caller


def _of_one_sequence(target: Target, failures: list[FailedCall], limit: TimeLimit) -> Caller | None:
    """Return the first caller that works with one sequence, after several did not fit something; None if none does.

    Raises:
        TargetError: The target declares an axis for sequences, so that its own code is to blame.
    """
    several, causes = TRIAL_SIZES[0], dict[CallingConvention, BaseException]()
    for failure in failures:
        convention, dtype = failure.caller.convention, failure.caller.dtype
        B, T = failure.caller.fixed_sizes or TRIAL_SIZES
        unequal = unequal_sizes(failure.error) or unjoined_sizes(failure.error) or ()
        if (
            not convention.guessed
            and several == B
            and several in unequal
            and dtype == torch.float64
        ):
            causes.setdefault(replace(convention, fixed_sizes=(1, T)), failure.error)
    alone = [*causes][:MAX_ALONE]
    caller = first_that_works(target, alone, failures, limit) if alone else None
    if caller is not None and likely_layouts(target.callee).declared:
        likeliest = next(
            iter(causes.values())
        )  # the search may have changed constants of the convention
        cause = causes.get(replace(caller.convention, guessed=False), likeliest)
        raise TargetError(target.name) from cause
    return caller


def _given_what_is_asked_for(
    target: Target, causal: bool | None, failures: list[FailedCall], limit: TimeLimit
) -> Caller | None:
    """Return the first caller that works with the optional arguments that failed calls ask for; None if none does."""
    for _ in range(MAX_ASKED):
        asked = omitted_argument(target, failures)
        if asked is None:
            return None
        target = replace(target, needed=(*target.needed, asked))
        conventions = list(candidate_conventions(target, causal))
        caller = first_that_works(target, conventions, failures, limit)
        if caller is not None:
            return caller
    return None


def _sizes(target: Target, failures: Sequence[FailedCall]) -> Iterator[tuple[int, int] | None]:
    """Yield None for any sizes, and then the B and T that may be the only ones that work.

    They are those of global tensors that the code reads, and the numbers that the failures up to then have named.
    """
    yield None
    yield from global_tensor_sizes(target.callee)
    if any(has_too_few(it.error) for it in failures):
        yield from ((TRIAL_SIZES[0], T) for T in IMAGE_LENGTHS)
    if failures[0].caller.convention.guessed or any(is_missing_name(it.error) for it in failures):
        return
    B, T = TRIAL_SIZES
    yield from ((size, T) for size in batches_named(failures))
    if any(it.caller.convention.is_image for it in failures):
        yield from ((B, T) for T in (*IMAGE_LENGTHS, *WINDOWED_LENGTHS))
    yield from ((B, T) for T in lengths_named(failures))


def first_that_works(
    target: Target,
    conventions: Sequence[CallingConvention],
    failures: list[FailedCall],
    limit: TimeLimit,
) -> Caller | None:
    """Return the first caller that works, in float32 if float64 fails or adds nothing; append the failures.

    Args:
        target: What is called.
        conventions: How it may be called, the most likely way first. The result may have no row for each token in one
            that is `pooled`, and in all whose tokens are no pixels.
        failures: The calls that failed, to which those of this search are appended.
        limit: The time limit of the search.
    """
    before = len(failures)
    conventions = as_documented(target, conventions)
    double = _first_in(torch.float64, target, conventions, failures, limit)
    if double is not None:
        caller, trace = double
        if _is_exact(trace):
            return caller
        conventions = [caller.convention]
    else:
        conventions = _not_misshapen(conventions, failures[before:])
    single = _first_in(torch.float32, target, conventions, failures, limit)
    works = single or double
    return None if works is None else works[0]


def _not_misshapen(
    conventions: Sequence[CallingConvention], failures: Sequence[FailedCall]
) -> list[CallingConvention]:
    """Return the conventions that did not fail because of shapes or kinds of values, which no other dtype changes."""
    misshapen = {
        it.caller.convention for it in failures if MISSHAPEN.search(describe_exception(it.error))
    }
    return [it for it in conventions if it not in misshapen]


def _first_in(
    dtype: torch.dtype,
    target: Target,
    conventions: Sequence[CallingConvention],
    failures: list[FailedCall],
    limit: TimeLimit,
) -> tuple[Caller, Trace] | None:
    """Return the first caller that works in a dtype, and the trace of its call; None once the time is up.

    Sequences that mix show that a guess is wrong: the last resort is the first one, in a layout that the target does
    not contradict.
    """
    callee, resort = target.copied(dtype), None
    waiting = deque(Caller(target, convention, dtype, callee) for convention in conventions)
    while waiting:
        left = limit.left()
        if left < 0 and failures:
            return resort
        first = waiting[0]
        try:
            with within(min(max(left, 1.0), TRIAL_SECONDS)):
                found = _first_of(waiting, failures)
                if found is None or not _is_doubtful(found[0]):
                    return found or resort
        except TimeoutError as error:
            if waiting and waiting[0] is first:  # any other one gets all of the time in its turn
                failures.append(FailedCall(waiting.popleft(), without_tensors(error)))
            continue
        resort = resort or (None if _contradicts(found[0]) else _as_guess(*found))
        waiting.popleft()
    return resort


def _as_guess(caller: Caller, trace: Trace) -> tuple[Caller, Trace]:
    """Return a caller and its trace, with the caller's convention marked as a guess."""
    return replace(caller, convention=replace(caller.convention, guessed=True)), trace


def _is_doubtful(caller: Caller) -> bool:
    """Check whether a call that works mixes sequences, in a layout that is a guess or not the likely one.

    Tokens first are a guess if only a layer within the target has them so. It is not doubtful if the sequences no
    longer mix once the first argument has one vector for each.
    """
    convention = caller.convention
    layouts = likely_layouts(caller.target.callee)
    unlikely = caller.layout == layouts.tokens[1]
    unlikely |= caller.layout == "(T, B, C)" and not layouts.declared
    if not convention.batched or not (convention.guessed or unlikely) or convention.fixed_sizes:
        return False
    mixed = mixes_sequences(caller, caller.draw(*TRIAL_SIZES))
    return mixed is True and with_one_query(caller) is caller


def _contradicts(caller: Caller) -> bool:
    """Check whether the target declares another layout."""
    layouts = likely_layouts(caller.target.callee)
    return layouts.declared and caller.layout in (layouts.tokens[1], layouts.ids[1])


def _first_of(waiting: deque[Caller], failures: list[FailedCall]) -> tuple[Caller, Trace] | None:
    """Return the first caller that works, and the trace of its call; take those that fail from the queue.

    Calls that differ by their masks alone are left out once some of them have failed alike, before any mask is used. So
    are those that differ by other arguments than the tokens once one has failed before the target reads these, and
    those that differ by the tokens once one has failed before it reads any.

    Raises:
        TimeoutError: The time is up.
    """
    alike: Counter[Any] = Counter()
    hopeless, refused = set[Any](), dict[frozenset[str], set[Any]]()
    while waiting:
        kind, of_tokens = _without_masks(waiting[0].convention), _tokens_of(waiting[0].convention)
        if alike[kind] >= ENOUGH or of_tokens in hopeless or _gives_refused(waiting[0], refused):
            waiting.popleft()
            continue
        try:
            return _trial(waiting[0])
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - the next convention may work
            read = _read_before(waiting[0], error)
            if read and read <= {*waiting[0].convention.names}:
                hopeless.add(of_tokens)
            elif read and read.isdisjoint(waiting[0].convention.names):
                refused.setdefault(read, set()).add(_constants(waiting[0], read))
            failures.append(FailedCall(waiting.popleft(), without_tensors(error)))
            line = raising_line(error)
            outcome = kind, describe_exception(error), line
            alike[outcome] += 1
            of_mask = line is not None and "mask" in line.source.lower()
            alike[kind] = 0 if of_mask or is_refusal(error) else alike[outcome]
    return None


def _without_masks(convention: CallingConvention) -> Any:
    """Return what is equal for conventions that differ by their masks alone."""
    constants = ((name, id(it)) for name, it in convention.constants.items() if "mask" not in name)
    return *_tokens_of(convention), tuple(constants)


def _tokens_of(convention: CallingConvention) -> tuple[Any, ...]:
    """Return what is equal for conventions that differ by other arguments than the tokens alone."""
    tokens = convention.layout, convention.names, convention.features, convention.vocabulary
    return *tokens, tuple(convention.other_features.items()), convention.fixed_sizes


def _gives_refused(caller: Caller, refused: Mapping[frozenset[str], Container[Any]]) -> bool:
    """Check whether a caller gives values to arguments other than the tokens with which another call has failed."""
    return any(
        read.isdisjoint(caller.convention.names) and _constants(caller, read) in values
        for read, values in refused.items()
    )


def _constants(caller: Caller, names: Iterable[str]) -> frozenset[tuple[str, Any]]:
    """Return what is equal for callers that give the same values to some arguments other than the tokens."""
    (B, T), constants = _trial_sizes(caller), caller.convention.constants
    given = {name: constants[name] for name in names if name in constants}
    made = {name: it(B, T, caller.dtype) if callable(it) else it for name, it in given.items()}
    return frozenset((name, _content(it)) for name, it in made.items())


def _content(value: Any) -> Any:
    """Return what is equal for the same numbers, texts and tensors; anything else equals nothing."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape, tuple(value.flatten().tolist())
    return (type(value), value) if isinstance(value, int | float | str | None) else object()


def _read_before(caller: Caller, error: BaseException) -> frozenset[str]:
    """Return the arguments that the target may have read before a call failed; none if that is not known."""
    frames, forward = own_frames(error), caller.target.forward
    if not frames or frames[0][0].f_code is not getattr(forward, "__code__", None):
        return frozenset()
    parameters, given = caller.target.signature.parameters.keys(), caller.convention
    if not {*given.names, *given.constants} <= parameters:  # values within a structure
        return frozenset()
    return frozenset(variables_read_until(forward, frames[0][1]) & parameters)


def _trial_sizes(caller: Caller) -> tuple[int, int]:
    """Return B and T of a trial."""
    B, T = caller.fixed_sizes or TRIAL_SIZES
    return B if caller.batched else 1, T


def _trial(caller: Caller) -> tuple[Caller, Trace]:
    """Call the target once, and return how its rows are found, and the trace.

    Raises:
        TypeError: The result has no row for each token, and no one for each sequence.
    """
    inputs = caller.draw(*_trial_sizes(caller))
    arguments = caller.arguments(inputs)
    args, keywords = caller.target.bound(arguments)
    with torch.no_grad(), caller.isolated():
        caller.callee(*args, **keywords)  # a recording of a call that fails would take much longer
    with torch.no_grad(), caller.isolated():
        trace = caller.trace(arguments)
    convention = replace(caller.convention, pooled=False)
    without_rows = convention.rows(trace.result, *inputs.sizes) is None
    of_images = caller.convention.pooled and without_rows
    beside_source = not without_rows and names.TRANSLATION.match(convention.names[0]) is not None
    pooled = (of_images or (convention.layout in POOLED and not beside_source)) and _pools(
        trace.result, *inputs.sizes, weights=convention.guessed
    )
    before = int(pooled and _has_start(caller, inputs, trace.result))
    convention = replace(convention, pooled=pooled and not before, rows_before=before)
    caller = replace(caller, convention=convention)
    rows = caller.convention.rows(trace.result, *inputs.sizes)
    if rows is None:
        raise TypeError(
            f"the result has no row for each of {inputs.sizes[1]} tokens: {_shapes(trace.result)}"
        )
    if caller.convention.guessed and not rows.isfinite().all():
        raise TypeError("the result is not finite, because the arguments were guessed")
    if any(map(callable, caller.convention.constants.values())) and not rows.isfinite().any():
        raise TypeError("the result has no finite number: a mask of ours may hide every token")
    return caller, trace


def _has_start(caller: Caller, inputs: Inputs, result: object) -> bool:
    """Check whether a result has one more row than tokens, before theirs: a changed token changes its own row most."""
    output, (B, T) = next(output_candidates(result)), inputs.sizes
    if caller.layout not in ("(B, T, C)", "(B, T) ids") or output.dim() != 3:
        return False
    longer = attempt(lambda: _output(caller, caller.draw(B, T + 1)))
    if not isinstance(longer, Tensor) or (output.shape[1], *longer.shape[1:2]) != (T + 1, T + 2):
        return False
    middle, changed = T // 2, inputs
    for b in range(B):
        changed = changed.changed(b, middle)
    distance = (_output(caller, changed) - output).abs().mean((0, 2))
    return int(distance.argmax()) == middle + 1


def _output(caller: Caller, inputs: Inputs) -> Tensor:
    """Return the first tensor of the result of a call."""
    args, keywords = caller.target.bound(caller.arguments(inputs))
    with torch.no_grad(), caller.isolated():
        return next(output_candidates(caller.callee(*args, **keywords)))


def _pools(result: object, B: int, T: int, *, weights: bool) -> bool:
    """Check whether the first tensor in a result has a row for each sequence and none for each token.

    Args:
        result: What the target returns.
        B: The number of sequences.
        T: The number of tokens.
        weights: Whether a row may be the weights of the tokens, (B, T), (B, 1, T) or (B, T, 1), or several such rows,
            (B, R, T), each with a sum of 1.
    """
    output = next(output_candidates(result), None)
    if output is None or output.shape[:1] != (B,):
        return False
    if T not in output.shape or (weights and output.shape in ((B, T), (B, 1, T), (B, T, 1))):
        return True
    several = output.dim() == 3 and output.shape[1] != T == output.shape[2]
    sums = output.sum(-1)
    return weights and several and torch.allclose(sums, torch.ones_like(sums))


def _is_exact(trace: Trace) -> bool:
    """Check that no step on the way from the tokens has fewer digits than float64, nor what meets them in one call.

    PyTorch's fused attention reads the numbers of a float32 mask beside float64 tokens wrongly.
    """
    fused = (it for it in trace if it.operation == FUSED)
    beside = {it.step for step in fused for it in step.inputs if it.step is not None}
    on_the_way = beside | steps_from_tokens(trace.steps)
    return not any(trace[index].dtype in LESS_EXACT for index in on_the_way)


def _shapes(result: object) -> str:
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in output_candidates(result))
    return shapes or type(result).__name__
