"""The result of a case: what was measured, whether it is right, and how it was judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from heedful.bench.accuracy import AccuracyCheck
from heedful.bench.cases import BenchCase
from heedful.bench.targets import BenchTarget
from heedful.bench.workload import AttentionWorkload, ModelWorkload
from heedful.timing import Spread, Times

HOLDS: str = "holds"
MISSED: str = "MISSED"
WRONG: str = "WRONG"
NOT_MEASURED: str = "not measured"


@dataclass(frozen=True)
class Judgement:
    """A target and whether it was reached.

    Attributes:
        target: The target.
        required: The target in words.
        measured: The measured value in words, or the reason why there is none.
        holds: Whether the target was reached. None: it was not measured.
    """

    target: BenchTarget
    required: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """`HOLDS`, `MISSED` or `NOT_MEASURED`."""
        return {True: HOLDS, False: MISSED, None: NOT_MEASURED}[self.holds]


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    Attributes:
        case: The case.
        workload: What was computed. It is smaller than the case's workload in a quick run.
        kernel: The kernel that `attention` chose. "" for a whole model, which calls it many times.
        checks: The errors of our results. If one is too large, nothing is timed.
        times: The times of ours, the peers and a peak probed in turn. None: nothing was timed.
        share: The share of the peak that ours reaches. None: it has no peak, or the peak cannot be measured.
        peak: The name of the peak.
        memory: The bytes that one call adds, in a case that measures memory.
        thread_dependent: The names of the results that depend on the number of threads, in a case that compares
            them.
        left_out: The peers that were not timed, each with the reason.
        not_measured: The reason why the case could not be measured at all. "": it was.
        judgements: The case's targets and whether they were reached.
    """

    case: BenchCase
    workload: AttentionWorkload | ModelWorkload
    kernel: str
    checks: tuple[AccuracyCheck, ...] = ()
    times: Times | None = None
    share: Spread | None = None
    peak: str = ""
    memory: int | None = None
    thread_dependent: tuple[str, ...] | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    not_measured: str = ""
    judgements: tuple[Judgement, ...] = ()

    @property
    def right(self) -> bool:
        """True if all our results are accurate enough."""
        return all(check.right for check in self.checks)

    @property
    def verdict(self) -> str:
        """The worst verdict. "": all results are right, and there are no targets."""
        if not self.right:
            return WRONG
        verdicts = [judgement.verdict for judgement in self.judgements]
        return next((worst for worst in (MISSED, NOT_MEASURED, HOLDS) if worst in verdicts), "")

    @property
    def peers(self) -> tuple[str, ...]:
        """The peers that were timed."""
        timed = () if self.times is None else self.times.seconds
        return tuple(name for name in self.case.peers if name in timed)

    def ratio(self, peer: str) -> Spread:
        """Return the time of a peer divided by ours."""
        assert self.times is not None
        return self.times.ratio(peer, self.case.ours)

    def judgement_against(self, peer: str) -> Judgement | None:
        """Return the judgement of the speed against a peer, if there is one."""
        return next(
            (
                judgement
                for judgement in self.judgements
                if judgement.target.quantity in ("speed", "small")
                and judgement.target.against == peer
            ),
            None,
        )
