"""Which gradients of many ranks are wrong, how they are related to the right ones, and on which line they depart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.conformance.ranks.attempt import Attempt, largest_difference
from heedful.conformance.ranks.layout import ORDERS, part
from heedful.conformance.ranks.locating import Comparison, Departure
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding


def findings_of_gradients(attempt: Attempt) -> Iterator[Finding]:
    """Yield a finding if a gradient is wrong; all of them have one cause, as a rule."""
    compared = [*_inputs_compared(attempt), *_weights_compared(attempt)]
    wrong = [it for it in compared if not it.is_right]
    if not wrong:
        return
    first = wrong[0]
    name, case = (
        f"gradient of {first.name}",
        attempt.case(first.rank, f"gradient of {first.name}", first.own, first.expected),
    )
    if attempt.layout == "replicated" and (said := _convention(attempt, compared)):
        yield Finding("ranks-gradient-summed", "convention", said, case)
        return
    place, said = _wrong_gradient_line(attempt, first)
    names = ", ".join(dict.fromkeys(it.name for it in wrong))
    proof = (
        f"With {attempt.ranks} ranks, the output is right, and these gradients are wrong: {names}. "
        f"The {name} on rank {first.rank} differs by up to {largest_difference(first.own, first.expected):.3g}"
        f"{first.relation}. {said}"
    )
    yield Finding("ranks-gradient-differs", "bug", proof.rstrip(), case, place)


def _convention(attempt: Attempt, compared: Sequence[ComparedGradient]) -> str:
    """Return a sentence about gradients that are shares, or those of the sum of all losses; "" if they are neither."""
    if all(it.is_multiple(attempt.ranks) for it in compared) and attempt.is_replicated:
        return (
            f"Each rank has the whole output. If each of {attempt.ranks} ranks goes back from the same loss, the "
            "gradients are those of the sum of all losses: "
            f"summed over ranks, each is {attempt.ranks} times that of one rank."
        )
    if all(it.is_multiple(1) for it in compared) and not _has_cut_weights(attempt):
        return (
            f"Each of {attempt.ranks} ranks takes all tokens, and gets its share of each gradient: "
            "the shares sum up to that of one rank."
        )
    return ""


@dataclass(frozen=True)
class ComparedGradient:
    """A gradient of a rank beside that of one rank.

    Attributes:
        attempt: The runs.
        name: The argument or parameter.
        rank: The rank.
        own, expected: The gradients.
        total: The sum over the ranks that have the same part.
        shared: Whether a rank may have its share of it, because the whole is summed over ranks.
    """

    attempt: Attempt
    name: str
    rank: int
    own: Tensor
    expected: Tensor
    total: Tensor
    shared: bool

    @property
    def is_right(self) -> bool:
        if self.shared and self.is_multiple(1):
            return True
        return self.attempt.same_gradient(self.own, self.expected)

    def is_multiple(self, factor: float) -> bool:
        """Check whether the gradients of the ranks sum up to a multiple of the right one."""
        return self.attempt.same_gradient(self.total, factor * self.expected)

    @property
    def relation(self) -> str:
        """How it is related to the right gradient, if that is known."""
        if self.is_multiple(1):
            return (
                ": it is the share of one rank, and those of all ranks sum up to the right one (an all-reduce in the "
                "backward pass is missing)"
            )
        ranks = self.attempt.ranks
        received = self.total if self.shared and self.attempt.layout in ORDERS else self.own
        for factor in (ranks, 1.0 / ranks, ranks**2, 0, -1):
            if self.attempt.same_gradient(received, factor * self.expected):
                return f": it is {factor:g} times the right one"
        return ""


def _inputs_compared(attempt: Attempt) -> Iterator[ComparedGradient]:
    whole = attempt.whole
    axes = whole.head_axes if attempt.layout == "heads" else whole.token_axes
    for index, (axis, right) in enumerate(zip(axes, whole.run.input_gradients, strict=True)):
        if right is None:
            continue
        parts = [run.input_gradients[index] for run in attempt.runs]
        for rank, own in enumerate(parts):
            cut = axis is not None and attempt.layout != "replicated"
            expected = (
                part(right, axis, attempt.layout, rank, attempt.ranks)
                if axis is not None and cut
                else right
            )
            own = torch.zeros_like(expected) if own is None else own
            alike = [it for it in parts if it is not None]
            total = own if cut or not alike else torch.stack(alike).sum(0)
            # An argument without tokens is shared by all ranks, as a weight is.
            yield ComparedGradient(
                attempt, f"argument {index}", rank, own, expected, total, axis is None
            )


def _weights_compared(attempt: Attempt) -> Iterator[ComparedGradient]:
    for name, whole in attempt.whole.run.weight_gradients.items():
        if whole is None or name not in attempt.runs[0].weight_gradients:
            continue
        for rank, (run, dealt) in enumerate(zip(attempt.runs, attempt.dealt, strict=True)):
            expected = dealt[name].of(whole)
            own = run.weight_gradients[name]
            own = torch.zeros_like(expected) if own is None else own
            same = [
                gradient
                for other, others in zip(attempt.runs, attempt.dealt, strict=True)
                if others[name] == dealt[name]
                and (gradient := other.weight_gradients[name]) is not None
            ]
            total = torch.stack(same).sum(0) if same else own
            yield ComparedGradient(attempt, name, rank, own, expected, total, True)


def _has_cut_weights(attempt: Attempt) -> bool:
    return any(it.pieces > 1 for it in attempt.dealt[0].values())


def _wrong_gradient_line(
    attempt: Attempt, wrong: ComparedGradient
) -> tuple[SourceLine | None, str]:
    """Return the line of the first gradient that departs, and a sentence about it."""
    whole = attempt.whole.run
    known = attempt.known([*whole.gradients, *whole.backward])
    departing = Comparison(known, [run.backward for run in attempt.runs]).first_departure()
    if departing is not None:
        return departing.value.place, (
            f"The first tensor that departs in the backward pass, on rank {departing.rank}, is what this line returns "
            f"from {departing.value.operation}."
        )
    gradients = [list(reversed(run.gradients)) for run in attempt.runs]
    departing = Comparison(known, gradients).first_departure()
    if departing is None:
        own = (it for it in attempt.runs[wrong.rank].gradients if it.tensor is not None)
        same = (it for it in own if it.tensor is not None and it.tensor.shape == wrong.own.shape)
        reader = next((it for it in same if torch.equal(it.tensor, wrong.own)), None)  # pyright: ignore[reportArgumentType]
        departing = None if reader is None else Departure(wrong.rank, reader)
    if departing is None:
        return None, ""
    of = departing.value.name or wrong.name
    return departing.value.place, (
        f"The first gradient that departs, on rank {departing.rank}, is that of {of}, which this line reads "
        f"({departing.value.operation})."
    )
