"""What a check finds behind a bug that ends every call, or that hides others: it goes on with a copy that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, NamedTuple

from heedful.conformance.calling.isolation import within
from heedful.conformance.calling.time_limit import TimeLimit
from heedful.conformance.fixing.origin import Origin, origin_of
from heedful.conformance.fixing.proof import CHECK_SECONDS, Check, candidates
from heedful.conformance.fixing.remedies import REMEDIES, REPAIRS
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.root_causes import HIDING
from heedful.errors import ArgumentError

SEARCH_SECONDS = 4.0  # of the processor for one bug, after which no further repair of it is tried
CANDIDATES = 30  # repairs that are tried for one bug
WORKING = 2  # repairs with which the target runs, whose findings are compared
REPAIRED = 3  # bugs of one target that are repaired, one behind the other

REVEALED = frozenset(
    {"scale-wrong", "scale-missing", "mask-fill-too-small", "mask-fill-positive", "group-order"}
)
"""What may show behind the repair of a bug that hides others. Anything else may come from a wrong repair."""


class _Repair(NamedTuple):
    """An edited source with which a check goes on, and what that check finds."""

    text: str
    file: str
    report: Report


def findings_behind(target: Any, report: Report, check: Check) -> tuple[Finding, ...]:
    """Return what is wrong with a target beside a bug that ended every call of it, or that hides other bugs.

    The lines are those of the target's own source. Of the repairs with which the target runs, the one that leaves the
    fewest bugs counts: what is wrong with each repair is wrong with the target.

    Args:
        target: The checked class or function.
        report: The report on it.
        check: A function that checks another definition of the target in the same way.
    """
    try:
        origin = origin_of(target)
    except ArgumentError:  # no file defines it, so that it cannot be defined again
        return ()
    text, file, found = origin.text, origin.file, list[Finding]()
    for _ in range(REPAIRED):
        blocking = report.blocking_bug or _hiding_bug(report)
        if blocking is None:
            break
        known = {finding.name for finding in report.findings} if _hides(blocking) else set[str]()
        repair = _best(blocking, _repairs(origin, blocking, known, text, file, check))
        if repair is None:
            break
        text, file, report = repair
        lines = _LineNumbers(origin, file, text)
        new = report.bugs if _hides(blocking) else report.findings
        found += [_behind(blocking, it, lines) for it in new if it.name not in known]
    return tuple(found)


def _hiding_bug(report: Report) -> Finding | None:
    """Return a bug beside which others do not show; None if there is none."""
    return next((bug for bug in report.bugs if _hides(bug)), None)


def _hides(bug: Finding) -> bool:
    return bug.name in HIDING


def _repairs(
    origin: Origin, blocking: Finding, known: set[str], text: str, file: str, check: Check
) -> Iterator[_Repair]:
    """Yield the repairs with which a check ends otherwise, and that do not look wrong beside the `known` findings."""
    if blocking.place is None or blocking.place.file != file:
        return
    limit = TimeLimit(SEARCH_SECONDS)
    remedies = REMEDIES if _hides(blocking) else REPAIRS
    found = candidates(blocking, text, remedies.get(blocking.name, ()))
    for candidate in islice(found, CANDIDATES):
        if limit.left() < 0:
            return
        try:
            with within(CHECK_SECONDS), origin.edited(candidate) as (definition, path):
                report = check(definition, "")
        except (Exception, SystemExit):  # noqa: BLE001 - an edit may break the source in any way
            continue
        left = {bug.name for bug in report.bugs}
        if _hides(blocking) and (blocking.name in left or not left <= {*known, *REVEALED}):
            continue
        still = report.blocking_bug
        if still is None or (_is_missing_name(still) and still.proof != blocking.proof):
            yield _Repair(candidate, path, report)


def _is_missing_name(finding: Finding) -> bool:
    """Check whether a bug is a name or an attribute that does not exist."""
    return finding.name == "undefined-or-global-name" or "has no attribute" in finding.proof


def _best(blocking: Finding, repairs: Iterator[_Repair]) -> _Repair | None:
    """Return the first of the repairs with the fewest bugs; those with which no call works count last.

    If calls now end on a later line, one more name is wrong there, and that is as good as it gets.
    """

    def rank(repair: _Repair) -> tuple[bool, int]:
        return repair.report.blocking_bug is not None, len(repair.report.bugs)

    tried: list[_Repair] = []
    for repair in repairs:
        tried.append(repair)
        works = sum(not rank(it)[0] for it in tried)
        if rank(repair) == (False, 0) or works == WORKING:
            break
        if not works and _line(repair.report.blocking_bug) > _line(blocking) + 1:
            return repair
    return min(tried, key=rank, default=None)


def _line(finding: Finding | None) -> int:
    return 0 if finding is None or finding.place is None else finding.place.line


def _behind(blocking: Finding, finding: Finding, lines: _LineNumbers) -> Finding:
    return replace(
        finding,
        proof=f"Behind the repair of {blocking.name}: {finding.proof}",
        place=None if finding.place is None else lines.original(finding.place),
    )


class _LineNumbers:
    """The line numbers of an edited source in the source that it was made from.

    Args:
        origin: The original.
        file: The temporary file of the edited source.
        text: The edited source.
    """

    def __init__(self, origin: Origin, file: str, text: str) -> None:
        self.origin: Origin = origin
        self.file: str = file
        self._lines: dict[int, int] = {}
        before, after = origin.text.splitlines(), text.splitlines()
        for _, start, stop, first, last in SequenceMatcher(
            None, before, after, False
        ).get_opcodes():
            for number in range(first, last):
                self._lines[number + 1] = min(start + number - first, max(stop - 1, start)) + 1

    def original(self, place: SourceLine) -> SourceLine:
        """Return the line of the original for a line of the edited source; lines of other files stay."""
        if place.file != self.file:
            return place
        return SourceLine(self.origin.file, self._lines.get(place.line, place.line), place.source)
