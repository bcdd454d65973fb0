"""Find tensors that take the values of another one, such as a rounded copy, and keep their gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import ancestors
from heedful.observation import Source, Step


def leaves_behind(steps: Sequence[Step], last: Sequence[Step]) -> set[str]:
    """Return the parameters and arguments that are read on the way to the results of some steps."""
    behind = [ancestors(steps, it) | {it.index} for it in last]
    sources = (it for index in set().union(*behind) for it in steps[index].inputs)
    return {
        f"the argument {it.name}" if it.kind == "input" else it.name
        for it in sources
        if it.kind in ("input", "parameter")
    }


def straight_through_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps by which a tensor takes the values of another one and keeps its gradient (Bengio et al. 2013).

    That is x + (rounded - x).detach(), or rounded - x.detach() + x.
    """

    def step_of(source: Source) -> Step | None:
        return None if source.step is None else steps[source.step]

    def behind_cut(source: Source) -> Source:
        cut = step_of(source)
        return cut.inputs[0] if cut is not None and cut.operation == "detach" else source

    for total in (it for it in steps if it.operation in ADDITIONS):
        for source in total.inputs:
            difference = step_of(behind_cut(source))
            if difference is None or difference.operation != "sub" or len(difference.inputs) < 2:
                continue
            subtracted = difference.inputs[1]
            is_cut = behind_cut(source) != source or behind_cut(subtracted) != subtracted
            if is_cut and behind_cut(subtracted) in total.inputs:
                yield total
