"""What the runs on many ranks show, compared with the run on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heedful.conformance.ranks.layout import ORDERS, Layout, part, part_of_shape
from heedful.conformance.ranks.locating import Comparison, Departure, is_written
from heedful.conformance.ranks.matching import KnownValues, agree, differing
from heedful.conformance.ranks.processes import Failure
from heedful.conformance.ranks.run import Run, Value, Whole
from heedful.conformance.ranks.weights import Dealt
from heedful.conformance.recording.differences import TOLERANCES
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation.collectives import BETWEEN_TWO, Collective
from heedful.shapes import times

ROUNDED = 1e-5  # what a sum over ranks in float32 may differ by


@dataclass(frozen=True)
class Attempt:
    """The runs of a target on all ranks with one layout.

    Attributes:
        whole: The run on one rank.
        layout: Which part of the arguments each rank got.
        in_sections: Whether weights that hold several were cut in each of them.
        runs: The run of each rank.
        dealt: Which part of each weight each rank has.
    """

    whole: Whole
    layout: Layout
    in_sections: bool
    runs: tuple[Run, ...]
    dealt: tuple[dict[str, Dealt], ...]

    @property
    def ranks(self) -> int:
        return len(self.runs)

    @cached_property
    def tolerance(self) -> float:
        """The largest difference that rounding may cause: that of the dtypes on one rank, or of float32 sums."""
        coarsest = max(
            (TOLERANCES.get(it, 0.0) for it in self.whole.run.coarsest),
            default=TOLERANCES[torch.float64],
        )
        single = any(torch.float32 in run.coarsest for run in self.runs)
        return max(coarsest, ROUNDED if single else 0.0, TOLERANCES[torch.float64])

    @cached_property
    def expected(self) -> list[Tensor]:
        """The first output that each rank should have."""
        first = self.whole.run.outputs[0]
        parts = [
            self._part(first, run.outputs[0].shape, rank) for rank, run in enumerate(self.runs)
        ]
        return [it for it in parts if it is not None]

    @cached_property
    def wrong(self) -> list[Tensor]:
        """Where the first output of each rank is wrong."""
        return [
            differing(run.outputs[0], it, self.tolerance)
            for run, it in zip(self.runs, self.expected, strict=True)
        ]

    @property
    def right_share(self) -> float:
        """The share of entries of the outputs that are right."""
        return 1.0 - sum(it.double().mean().item() for it in self.wrong) / self.ranks

    @property
    def error(self) -> float:
        """The largest difference of the outputs."""
        pairs = zip(self.runs, self.expected, strict=True)
        return max(
            (run.outputs[0] - it).abs().nan_to_num(torch.inf).max().item() for run, it in pairs
        )

    @cached_property
    def largest_gradient(self) -> float:
        """The largest entry of any gradient of the run on one rank."""
        return max((it.abs().max().item() for it in self.gradients), default=1.0)

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the run on one rank."""
        run = self.whole.run
        every = (*run.input_gradients, *run.weight_gradients.values())
        return [it for it in every if it is not None and it.numel()]

    def same_gradient(self, a: Tensor, b: Tensor) -> bool:
        """Check whether two gradients are equal but for rounding, relative to the largest one of all."""
        limit = self.tolerance * self.largest_gradient
        return a.shape == b.shape and bool(((a - b).abs() <= limit).all())

    @property
    def is_distributed(self) -> bool:
        """Whether ranks divide the work: their tokens or heads, their weights, or something on the way."""
        if self.layout != "replicated" or any(it.pieces > 1 for it in self.dealt[0].values()):
            return True
        first, *others = self.runs
        return any(not _same_values(first.forward, it.forward) for it in others)

    @cached_property
    def compared(self) -> Comparison:
        """The values of the forward pass of all ranks beside those of one."""
        return Comparison(self.known(self.whole.run.forward), [run.forward for run in self.runs])

    @property
    def is_shared(self) -> bool:
        """Whether ranks exchange something and most of what they compute is right, so that the layout fits."""
        return self.compared.right_share > 0.5 and any(run.collectives for run in self.runs)

    @property
    def is_replicated(self) -> bool:
        """Whether each rank returns the whole output."""
        return all(it.outputs[0].shape == self.whole.run.outputs[0].shape for it in self.runs)

    def known(self, values: Sequence[Value]) -> KnownValues:
        return KnownValues(values, self.layout, self.whole.tokens, self.ranks, self.tolerance)

    def _part(self, whole: Tensor, shape: torch.Size, rank: int) -> Tensor | None:
        return part_of_shape(whole, shape, self.layout, self.whole.tokens, rank, self.ranks)

    def case(self, rank: int, name: str, received: Tensor, expected: Tensor) -> str:
        """Return the entry of a rank's tensor that differs first."""
        places = differing(received, expected, self.tolerance).nonzero()
        place = tuple(places[0].tolist()) if len(places) else ()
        entry = ", ".join(map(str, place))
        return (
            f"{self.ranks} ranks, {self.whole.tokens} tokens, {self.layout}; rank {rank}, {name}[{entry}]: "
            f"expected {expected[place].item():.6g}, received {received[place].item():.6g}"
        )


def findings_of(attempt: Attempt) -> tuple[list[Finding], bool]:
    """Return what is wrong with a target that runs on all ranks, and whether that is certain.

    It is not if nothing that ranks compute together is right: then, the layout may be another one.
    """
    if any(bool(it.any()) for it in attempt.wrong):
        finding, certain = _of_output(attempt)
        return [finding], certain or attempt.right_share > 0
    return [*_of_gradients(attempt), *_of_dropout(attempt)], True


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
        f"differ from those with one rank, by up to {_largest(received, expected):.3g}. {_said_of(departing)}"
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


def _of_gradients(attempt: Attempt) -> Iterator[Finding]:
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
        f"The {name} on rank {first.rank} differs by up to {_largest(first.own, first.expected):.3g}"
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
            f"rank {rank} differs from that of rank 0, by up to {_largest(own, first):.3g}: ranks drop different "
            "entries of a tensor that all of them have."
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


def differing_collectives(
    calls: Sequence[Sequence[Collective]], stopped: Collection[int] = ()
) -> Finding | None:
    """Return the finding that ranks make different calls in which all of them take part; None if they do not.

    Args:
        calls: The calls of each rank.
        stopped: The ranks that an exception, a hang or the end of their process has stopped, so that calls are missing.
    """
    everybody = len(calls)
    rows = [
        [it for it in row if it.members == everybody and it.operation not in BETWEEN_TWO]
        for row in calls
    ]
    for number in range(max(map(len, rows), default=0)):
        called = {
            rank: row[number] if number < len(row) else None
            for rank, row in enumerate(rows)
            if number < len(row) or rank not in stopped
        }
        described = {rank: None if it is None else _key(it) for rank, it in called.items()}
        usual = Counter(described.values()).most_common(1)[0][0]
        other = next((rank for rank, it in described.items() if it != usual), None)
        if other is not None:
            same = next(rank for rank, it in described.items() if it == usual)
            return _differing(called, other, same, number)
    return None


def _differing(
    called: Mapping[int, Collective | None], rank: int, usual: int, number: int
) -> Finding:
    own = called[rank] or called[usual]
    assert own is not None  # they differ, so one of them makes a call
    place = (
        None if own.file is None or own.line is None else SourceLine(own.file, own.line, own.source)
    )
    proof = (
        f"Call {number + 1} in which all ranks take part is {_call(called[usual])} on rank {usual}, "
        f"and {_call(called[rank])} on rank {rank}."
    )
    return Finding("ranks-collectives-differ", "bug", proof, f"{len(called)} ranks", place)


def _key(collective: Collective) -> tuple[str, ...]:
    """Return what must be equal on all ranks: the operation, and the sizes unless one rank has more than the others."""
    one_sided = collective.operation in ("scatter", "gather", "reduce")
    return (collective.operation, *(() if one_sided else collective.shapes))


def _call(collective: Collective | None) -> str:
    if collective is None:
        return "none"
    return f"{collective.operation}({', '.join(collective.shapes)})"


def blamed(failures: Sequence[Failure]) -> Failure:
    """Return the failure that caused the others: an end, an exception or a hang before those who waited in vain."""
    order = ("ends", "raises", "hangs", "waits")
    return min(failures, key=lambda it: order.index(it.ending))


def _same_values(a: Sequence[Value], b: Sequence[Value]) -> bool:
    pairs = [
        (one.tensor, other.tensor)
        for one, other in zip(a, b, strict=False)
        if one.tensor is not None and other.tensor is not None and is_written(one)
    ]
    return len(a) == len(b) and all(
        one.shape == other.shape and agree(one, other, 0.0) for one, other in pairs
    )


def _largest(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().nan_to_num(torch.inf).max().item()
