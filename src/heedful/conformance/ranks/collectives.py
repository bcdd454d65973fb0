"""Whether all ranks make the same calls of `torch.distributed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation.collectives import BETWEEN_TWO, Collective


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
