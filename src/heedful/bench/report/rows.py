"""Numbers and findings as the terminal and the page both write them."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.bench.checking import Check
from heedful.bench.judging import WRONG, Judgement
from heedful.bench.measuring import Spread
from heedful.bench.running import Found

UNITS = {"fma": "FLOP/s", "bf16": "FLOP/s", "read": "B/s"}
PEAKS = {
    "fma": "fp32 multiply-add",
    "bf16": "bf16 dot product",
    "read": "memory read in a stream",
}


def milliseconds(seconds: float) -> str:
    """Three digits, as many places as that takes."""
    amount = seconds * 1000
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"


def ratio(spread: Spread) -> str:
    """'2.31 (2.28–2.35)': the median between its quartiles."""
    return f"{spread.median:.2f} ({spread.low:.2f}–{spread.high:.2f})"


def rate(name: str, per_second: float) -> str:
    """A peak with its unit: '231 GFLOP/s'."""
    return f"{per_second / 1e9:.4g} G{UNITS[name]}"


def share(found: Found) -> str:
    """'83% fma'; '' where there is none."""
    return "" if found.share is None else f"{found.share.median:.0%} {found.limit}"


@dataclass(frozen=True)
class Row:
    """One line on a case, as text: a peer with its requirement, or a requirement that no peer has."""

    against: str = ""
    ours: str = ""
    theirs: str = ""
    reached: str = ""
    required: str = ""
    verdict: str = ""


def rows(found: Found) -> list[Row]:
    """A row for each peer, then one for each requirement beside; of a wrong result, that it is wrong."""
    if found.verdict == WRONG:
        return [Row(verdict=WRONG)]
    peers = [_peer(found, peer) for peer in found.peers]
    return peers + [
        Row(reached=it.measured, required=it.required, verdict=it.verdict) for it in beside(found)
    ]


def beside(found: Found) -> list[Judgement]:
    """The requirements that stand in no peer's row."""
    against_peers = [found.judgement_of(peer) for peer in found.peers]
    return [judgement for judgement in found.judgements if judgement not in against_peers]


def _peer(found: Found, peer: str) -> Row:
    assert found.times is not None
    judgement = found.judgement_of(peer)
    added = judgement is not None and judgement.measured.endswith("µs")  # no ratio is judged
    return Row(
        against=peer,
        ours=milliseconds(found.times.median(found.case.ours)),
        theirs=milliseconds(found.times.median(peer)),
        reached=judgement.measured if judgement and added else ratio(found.ratio(peer)),
        required=judgement.required if judgement else "",
        verdict=judgement.verdict if judgement else "",
    )


def faults(found: Found) -> list[str]:
    """What is wrong with a result, or was missed, in sentences."""
    name = found.case.name
    if found.verdict == WRONG:
        return [
            f"{name}: WRONG, therefore not timed: {_wrong(check)}"
            for check in found.checks
            if not check.right
        ]
    return [
        f"{name}: {_subject(judgement.requirement.quantity, judgement.requirement.against)} "
        f"{judgement.measured}; required: {judgement.required}"
        for judgement in found.judgements
        if judgement.holds is False
    ]


def _subject(quantity: str, against: str) -> str:
    return {
        "speed": f"against {against}",
        "small": f"against {against}",
        "share": "share of the peak",
        "memory": "memory added by one call",
        "equal": "over numbers of threads",
    }[quantity]


def _wrong(check: Check) -> str:
    """Which of its two comparisons a result failed."""
    if not check.error <= check.allowed:
        return (
            f"the {check.quantity} is {check.error:.2g} from float64, PyTorch's {check.baseline:.2g}; "
            f"allowed: {check.allowed:.2g}"
        )
    return (
        f"the {check.quantity} of a head is {check.elsewhere:.2g} from PyTorch's; "
        f"allowed: {check.elsewhere_allowed:.2g}"
    )
