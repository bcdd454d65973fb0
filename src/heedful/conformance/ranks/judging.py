"""What the runs on many ranks show, compared with the run on one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from heedful.conformance.ranks.attempt import Attempt, largest_difference
from heedful.conformance.ranks.gradients import findings_of_gradients
from heedful.conformance.ranks.locating import Departure
from heedful.conformance.ranks.matching import agree
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.shapes import times


def findings_of(attempt: Attempt) -> tuple[list[Finding], bool]:
    """Return what is wrong with a target that runs on all ranks, and whether that is certain.

    It is not if nothing that ranks compute together is right: then, the layout may be another one.
    """
    if any(bool(it.any()) for it in attempt.wrong):
        finding, certain = _of_output(attempt)
        return [finding], certain or attempt.right_share > 0
    return [*findings_of_gradients(attempt), *_of_dropout(attempt)], True


def _of_output(attempt: Attempt) -> tuple[Finding, bool]:
    rank = next(index for index, it in enumerate(attempt.wrong) if bool(it.any()))
    wrong, run = attempt.wrong[rank], attempt.runs[rank]
    received, expected = run.outputs[0], attempt.expected[rank]
    results = [
        run.outputs[0] for run, it in zip(attempt.runs, attempt.wrong, strict=True) if it.any()
    ]
    departing = attempt.compared.first_departure(results)
    proof = (
        f"With {attempt.ranks} ranks, {int(wrong.sum())} of {wrong.numel()} entries of the output of rank {rank} "
        f"differ from those with one rank, by up to {largest_difference(received, expected):.3g}. {_said_of(departing)}"
    )
    return (
        Finding(
            "ranks-output-differs",
            "bug",
            proof + _coarse(attempt, rank),
            attempt.case(rank, "output", received, expected),
            None if departing is None else departing.value.place,
        ),
        departing is not None and attempt.is_shared,
    )


def _said_of(departing: Departure | None) -> str:
    if departing is None or departing.value.tensor is None:
        return "No recorded tensor before it departs."
    value, shape = departing.value, times(tuple(departing.value.tensor.shape))
    return (
        f"The first tensor that departs, on rank {departing.rank}, is {value.name} ({value.operation}, {shape}): "
        "it is neither a part of what one rank computes, nor a partial result over the keys of some ranks."
    )


def _coarse(attempt: Attempt, rank: int) -> str:
    """Return a sentence about a coarser dtype than one rank uses, if this rank computes in one."""
    coarser = attempt.runs[rank].coarsest - attempt.whole.run.coarsest
    names = sorted(
        str(it).removeprefix("torch.") for it in coarser if it in (torch.bfloat16, torch.float16)
    )
    if not names:
        return ""
    return f" On the way it computes in {' and '.join(names)}, as one rank does not, so that each rank adds an error."


def _of_dropout(attempt: Attempt) -> Iterator[Finding]:
    """Yield a finding if ranks that return the same tensor drop other entries of it in training."""
    trained = [run.trained for run in attempt.runs]
    if not attempt.is_replicated or not all(trained):
        return
    first = trained[0][0]
    for rank, (own, *_) in enumerate(trained):
        if own.shape != first.shape or agree(own, first, attempt.tolerance):
            continue
        proof = (
            f"Each rank returns the whole output. In training mode, with the same random state on all ranks, that of "
            f"rank {rank} differs from that of rank 0, by up to {largest_difference(own, first):.3g}: ranks drop "
            "different entries of a tensor that all of them have."
        )
        case = attempt.case(rank, "output", own, first)
        yield Finding("ranks-dropout-differs", "bug", proof, case, _dropout_line(attempt, rank))
        return


def _dropout_line(attempt: Attempt, rank: int) -> SourceLine | None:
    """Return the last call of dropout on a tensor that all ranks have."""
    first, other = attempt.runs[0].forward, attempt.runs[rank].forward
    lines = [
        value.place
        for value, same in zip(other, first, strict=False)
        if "dropout" in value.operation
        and value.tensor is not None
        and same.tensor is not None
        and same.tensor.shape == value.tensor.shape
        and agree(same.tensor, value.tensor, attempt.tolerance)
    ]
    return lines[-1] if lines else None
