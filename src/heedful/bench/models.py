"""Cases that time whole models, with our attention in place of PyTorch's or behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heedful.acceleration import accelerate
from heedful.bench.accuracy import AccuracyCheck, check_whole
from heedful.bench.cases import BenchCase
from heedful.bench.conditions import BenchConditions
from heedful.bench.results import CaseResult
from heedful.bench.workload import ModelWorkload
from heedful.bench.zoo import (
    PADDED_ON_THE_RIGHT,
    attention_implementation,
    draw_inputs,
    draw_labels,
    load_model,
    missing_package,
    real_outputs,
)
from heedful.kernels.native import library
from heedful.timing import Budget, TimedRun, take_turns, time_runs

BUDGET: Budget = Budget(seconds=10.0, min_turns=4)  # a run takes seconds
MAX_CHECKED_TOKENS: int = 96  # whose output and gradients are compared with float64
ERROR_FLOORS: int = 16  # of one operation: rounding errors of many layers come together


def measure_model(
    case: BenchCase, workload: ModelWorkload, conditions: BenchConditions
) -> CaseResult:
    """Check a model's results, then time it in turns with each attention implementation.

    Args:
        case: The case.
        workload: The case's workload, or a smaller one.
        conditions: The conditions of the run. Without `quick`, `BUDGET` replaces their budget.
    """
    result = CaseResult(case, workload, kernel="")
    reason = missing_package(workload)
    if case.ours == "accelerate":
        reason = reason or library.missing
    if reason:
        return replace(result, not_measured=reason, left_out={case.ours: reason})
    result = replace(result, checks=check_model(workload, case.ours))
    if not result.right:
        return result
    budget = conditions.budget if conditions.quick else BUDGET
    return replace(result, times=take_turns(_contenders(case, workload), budget))


def check_model(workload: ModelWorkload, ours: str) -> tuple[AccuracyCheck, ...]:
    """Compare the output on the first tokens, and in training the gradients, with float64. Nothing is dropped."""
    model = load_model(workload.model, workload.dtype, tiny=workload.tiny)
    inputs = draw_inputs(replace(workload, T=min(workload.T, MAX_CHECKED_TOKENS)))
    training = workload.work == "train"
    results = partial(_results, workload, training=training)
    mine, theirs = results(model, inputs, ours), results(model, inputs, "sdpa")
    in_double = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    right = results(deepcopy(model).double(), in_double, "sdpa")
    return tuple(
        check_whole(our, exact, their, workload.dtype, quantity=quantity, floors=ERROR_FLOORS)
        for quantity, our, their, exact in zip(
            ("output", "gradients"), mine, theirs, right, strict=False
        )
    )


@contextmanager
def _contender(model: Any, name: str) -> Iterator[None]:
    """Compute the model's attention as a contender does: "heedful", "sdpa", or "accelerate" behind "sdpa"."""
    with ExitStack() as stack:
        if name == "accelerate":
            stack.enter_context(accelerate())
        implementation = "heedful" if name == "heedful" else "sdpa"
        stack.enter_context(attention_implementation(model, implementation))
        yield


def _contenders(case: BenchCase, workload: ModelWorkload) -> dict[str, TimedRun]:
    """Return timed runs of the model with the attention of the case's contenders."""
    model = load_model(workload.model, workload.dtype, tiny=workload.tiny)
    run = partial(_run, model, draw_inputs(workload), workload)

    def timed_run(name: str, repeats: int) -> float:
        model.train(workload.dropout)
        with _contender(model, name):
            seconds = time_runs(run, repeats)
        model.eval()
        return seconds

    names = (case.ours, *case.peers)
    present = [name for name in names if name != "accelerate" or library.missing is None]
    return {name: partial(timed_run, name) for name in present}


def _results(
    workload: ModelWorkload,
    model: Any,
    inputs: dict[str, Tensor],
    contender: str,
    *,
    training: bool,
) -> tuple[Tensor, ...]:
    """Return the output for real tokens as one vector; in training, also the gradients of its mean square."""
    with _contender(model, contender), torch.set_grad_enabled(training):
        output = model(**inputs)
        output = output if isinstance(output, Tensor) else output[0]
        real = real_outputs(workload, inputs)
        if real is not None:
            output = output[real]
        if not training:
            return (output.flatten(),)
        model.zero_grad()
        output.square().mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return output.detach().flatten(), torch.cat(gradients)


def _run(model: Any, inputs: dict[str, Tensor], workload: ModelWorkload) -> None:
    """Do the model's work once. This function is timed."""
    if workload.work == "train":
        model.zero_grad()
        model(**inputs, labels=draw_labels(workload, inputs)).loss.backward()
        return
    with torch.inference_mode():
        if workload.work == "generate":
            length = {"max_new_tokens": workload.generated, "min_new_tokens": workload.generated}
            model.generate(**inputs, **length, do_sample=False, pad_token_id=0)
        else:
            last_only = {} if workload.model in PADDED_ON_THE_RIGHT else {"logits_to_keep": 1}
            model(**inputs, **last_only)
