"""The cells and sentences that the terminal and the Markdown page share."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.bench.accuracy import AccuracyCheck
from heedful.bench.peaks import UNITS
from heedful.bench.results import WRONG, CaseResult, Judgement
from heedful.bench.targets import BenchTarget
from heedful.timing import Spread


@dataclass(frozen=True)
class TableRow:
    """One line of a case as text: a peer with its target, or a measurement or target that belongs to no peer."""

    against: str = ""
    ours: str = ""
    theirs: str = ""
    measured: str = ""
    required: str = ""
    verdict: str = ""


def table_rows(result: CaseResult) -> list[TableRow]:
    """Return a row for each peer, then one for each measurement and target that belongs to no peer."""
    if not result.right:
        return [TableRow(verdict=WRONG)]
    rows = [_peer_row(result, peer) for peer in result.peers]
    if not result.judgements:
        return rows + [TableRow(measured=measured) for measured in _untimed(result)]
    return rows + [
        TableRow(
            measured=judgement.measured, required=judgement.required, verdict=judgement.verdict
        )
        for judgement in judgements_without_peer(result)
    ]


def measured_title(results: list[CaseResult]) -> str:
    """Return the heading of the column `TableRow.measured`, for one table."""
    return "times as fast" if any(result.times for result in results) else "measured"


def judgements_without_peer(result: CaseResult) -> list[Judgement]:
    """Return the judgements that stand in no peer's row."""
    in_rows = [result.judgement_against(peer) for peer in result.peers]
    return [judgement for judgement in result.judgements if judgement not in in_rows]


def _peer_row(result: CaseResult, peer: str) -> TableRow:
    assert result.times is not None
    judgement = result.judgement_against(peer)
    by_difference = judgement is not None and judgement.measured.endswith("µs")
    return TableRow(
        against=peer,
        ours=milliseconds(result.times.median(result.case.ours)),
        theirs=milliseconds(result.times.median(peer)),
        measured=judgement.measured if judgement and by_difference else ratio(result.ratio(peer)),
        required=judgement.required if judgement else "",
        verdict=judgement.verdict if judgement else "",
    )


def _untimed(result: CaseResult) -> list[str]:
    """Return what a case without targets measured other than times."""
    if result.not_measured:
        return ["not measured"]
    if result.memory is not None:
        return [f"{result.memory / 2**20:.0f} MiB"]
    if result.thread_dependent is not None:
        differing = ", ".join(result.thread_dependent)
        return [f"{differing} differ" if differing else "equal bits"]
    return []


def faults(result: CaseResult) -> list[str]:
    """Return a sentence for each wrong result, or for each missed target if all results are right."""
    name = result.case.name
    if not result.right:
        return [
            f"{name}: WRONG, therefore not timed: {_error(check)}"
            for check in result.checks
            if not check.right
        ]
    return [
        f"{name}: {_subject(target)} {judgement.measured}; required: {judgement.required}"
        + (f". Reason: {target.reason}" if target.reason else "")
        for judgement in result.judgements
        if judgement.holds is False
        for target in [judgement.target]
    ]


def _subject(target: BenchTarget) -> str:
    return {
        "speed": f"against {target.against}",
        "small": f"against {target.against}",
        "share": "share of the peak",
        "memory": "memory added by one call",
        "equal": "on different numbers of threads",
    }[target.quantity]


def _error(check: AccuracyCheck) -> str:
    """Describe which limit a wrong result exceeds."""
    if not check.error <= check.allowed:
        return (
            f"the {check.quantity} differs from float64 by {check.error:.2g}, PyTorch's by {check.baseline:.2g}; "
            f"allowed: {check.allowed:.2g}"
        )
    return (
        f"the {check.quantity} of one head differs from PyTorch's by {check.elsewhere:.2g}; "
        f"allowed: {check.elsewhere_allowed:.2g}"
    )


# --- numbers -----------------------------------------------------------------------------------------


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with at least three digits.

    >>> milliseconds(0.0012345), milliseconds(1.2345)
    ('1.23', '1234')
    """
    amount = seconds * 1000
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"


def ratio(spread: Spread) -> str:
    """Format a ratio with its quartiles.

    >>> ratio(Spread(median=2.314, low=2.281, high=2.352))
    '2.31 (2.28–2.35)'
    """
    return f"{spread.median:.2f} ({spread.low:.2f}–{spread.high:.2f})"


def rate(peak: str, per_second: float) -> str:
    """Format a peak with its unit.

    >>> rate("fma", 231e9)
    '231 GFLOP/s'
    """
    return f"{per_second / 1e9:.4g} G{UNITS[peak]}"


def share_of_peak(result: CaseResult) -> str:
    """Format the share of the peak, such as '83% fma'. Return '' if there is none."""
    return "" if result.share is None else f"{result.share.median:.0%} {result.peak}"
