"""Find the calling convention of a target, by trying the likely ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter  # bound here, because a target may replace it

import torch

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.candidates import candidate_conventions
from heedful.conformance.calling.convention import CallingConvention, output_candidates
from heedful.conformance.calling.exceptions import without_tensors
from heedful.conformance.calling.failures import (
    FailedCall,
    is_missing_name,
    lengths_named,
    not_callable,
    proof_of_bug,
)
from heedful.conformance.calling.globals import global_tensor_sizes
from heedful.conformance.calling.isolation import within
from heedful.conformance.calling.layouts import likely_layouts
from heedful.conformance.calling.one_query import mixes_sequences, with_one_query
from heedful.conformance.calling.other_axes import with_axes_by_behavior
from heedful.conformance.calling.second_sequence import with_second_sequence
from heedful.conformance.calling.target import Target, TargetError
from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.observation import Trace

TRIAL_SIZES = (3, 5)  # B and T
IMAGE_LENGTHS = (16, 64)  # squares that most strides and windows divide
POOLED = ("(B, T, C)", "(T, B, C)", "(B, T) ids")  # layouts whose tokens may have one row in all
SEARCH_SECONDS, TRIAL_SECONDS = 20.0, 5.0  # the time limits of all trials, and of one
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
    until = perf_counter() + SEARCH_SECONDS
    candidates = list(candidate_conventions(target, causal))
    for sizes in _sizes(target, failures):
        conventions = [replace(convention, fixed_sizes=sizes) for convention in candidates]
        caller = _first_that_works(target, conventions, failures, until)
        if caller is not None:
            caller = with_second_sequence(with_one_query(with_axes_by_behavior(caller)))
            return caller.convention, caller.dtype
    if perf_counter() > until:  # what was not tried might have worked
        raise not_callable(target, failures)
    bug = proof_of_bug(failures)
    if bug is not None:
        raise TargetError(target.name) from bug
    raise not_callable(target, failures)


def _sizes(target: Target, failures: Sequence[FailedCall]) -> Iterator[tuple[int, int] | None]:
    """Yield None for any sizes, and then the B and T that may be the only ones that work.

    They are those of global tensors that the code reads, and the numbers that the failures up to then have named.
    """
    yield None
    yield from global_tensor_sizes(target.callee)
    if failures[0].caller.convention.guessed or any(is_missing_name(it.error) for it in failures):
        return
    B = TRIAL_SIZES[0]
    if any(it.caller.convention.is_image for it in failures):
        yield from ((B, T) for T in IMAGE_LENGTHS)
    yield from ((B, T) for T in lengths_named(failures))


def _first_that_works(
    target: Target,
    conventions: Sequence[CallingConvention],
    failures: list[FailedCall],
    until: float,
) -> Caller | None:
    """Return the first caller that works, in float32 if float64 fails or adds nothing; append the failures."""
    double = _first_in(torch.float64, target, conventions, failures, until)
    if double is not None:
        caller, trace = double
        if _is_exact(trace):
            return caller
        conventions = [caller.convention]
    single = _first_in(torch.float32, target, conventions, failures, until)
    works = single or double
    return None if works is None else works[0]


def _first_in(
    dtype: torch.dtype,
    target: Target,
    conventions: Sequence[CallingConvention],
    failures: list[FailedCall],
    until: float,
) -> tuple[Caller, Trace] | None:
    """Return the first caller that works in a dtype, and the trace of its call; None once the time is up.

    Sequences that mix show that a guess is wrong: the last resort is the first one, in a layout that the target does
    not contradict.
    """
    callee, resort = target.copied(dtype), None
    layouts = likely_layouts(target.callee)
    for convention in conventions:
        caller = Caller(target, convention, dtype, callee)
        left = until - perf_counter()
        if left < 0 and failures:
            return resort
        contradicted = layouts.declared and caller.layout == layouts.tokens[1]
        try:
            with within(min(max(left, 1.0), TRIAL_SECONDS)):
                found = _trial(caller)
                sure = not (convention.guessed or contradicted) or not convention.batched
                if sure or convention.fixed_sizes or not mixes_sequences(found[0], TRIAL_SIZES[0]):
                    return found
                resort = resort or (None if contradicted else found)
        except Exception as error:  # noqa: BLE001 - the next convention may work
            failures.append(FailedCall(caller, without_tensors(error)))
    return resort


def _trial(caller: Caller) -> tuple[Caller, Trace]:
    """Call the target once, and return how its rows are found, and the trace.

    Raises:
        TypeError: The result has no row for each token, and no one for each sequence.
    """
    B, T = caller.fixed_sizes or TRIAL_SIZES
    inputs = caller.draw(B if caller.batched else 1, T)
    arguments = caller.arguments(inputs)
    args, keywords = caller.target.bound(arguments)
    with torch.no_grad(), caller.isolated():
        caller.callee(*args, **keywords)  # a recording of a call that fails would take much longer
    with torch.no_grad(), caller.isolated():
        trace = caller.trace(arguments)
    pooled = caller.convention.layout in POOLED and _pools(trace.result, *inputs.sizes)
    caller = replace(caller, convention=replace(caller.convention, pooled=pooled))
    rows = caller.convention.rows(trace.result, *inputs.sizes)
    if rows is None:
        raise TypeError(f"the result has no row for each of {T} tokens: {_shapes(trace.result)}")
    if caller.convention.guessed and not rows.isfinite().all():
        raise TypeError("the result is not finite, because the arguments were guessed")
    return caller, trace


def _pools(result: object, B: int, T: int) -> bool:
    """Check whether the first tensor in a result has a row for each sequence and none for each token."""
    output = next(output_candidates(result), None)
    return output is not None and output.shape[:1] == (B,) and T not in output.shape


def _is_exact(trace: Trace) -> bool:
    """Check that no step on the way from the tokens has fewer digits than float64."""
    return not any(trace[index].dtype in LESS_EXACT for index in steps_from_tokens(trace.steps))


def _shapes(result: object) -> str:
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in output_candidates(result))
    return shapes or type(result).__name__
