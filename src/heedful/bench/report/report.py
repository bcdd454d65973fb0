"""The report of a benchmark run."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.bench.machine import Machine
from heedful.bench.results import HOLDS, MISSED, WRONG, CaseResult


@dataclass(frozen=True)
class BenchReport:
    """The results of all cases.

    Attributes:
        machine: The machine that they were measured on.
        peaks: The highest measured value of each peak, in units per second.
        results: The results of the cases.
        judged: Whether there were targets to judge the results by.
        quick: Whether the workloads were made small. Then speed is not judged.
    """

    machine: Machine
    peaks: dict[str, float]
    results: tuple[CaseResult, ...]
    judged: bool
    quick: bool

    @property
    def right(self) -> bool:
        """True if all results are right."""
        return not self.wrong

    @property
    def wrong(self) -> tuple[CaseResult, ...]:
        """The cases with wrong results."""
        return self._with_verdict(WRONG)

    @property
    def missed(self) -> tuple[CaseResult, ...]:
        """The cases that missed a target."""
        return self._with_verdict(MISSED)

    @property
    def holding(self) -> tuple[CaseResult, ...]:
        """The cases that reached all their targets."""
        return self._with_verdict(HOLDS)

    def _with_verdict(self, verdict: str) -> tuple[CaseResult, ...]:
        return tuple(result for result in self.results if result.verdict == verdict)

    @property
    def not_installed(self) -> dict[str, str]:
        """The contenders that could not be compared because a package is missing, with the command to install it."""
        return {
            name: reason
            for result in self.results
            for name, reason in result.left_out.items()
            if "pip install" in reason
        }
