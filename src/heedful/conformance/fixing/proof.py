"""The search for fixes: candidate edits of the source, of which the first is kept that another check proves."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import libcst as cst

from heedful.conformance.calling.isolation import within
from heedful.conformance.fixing.origin import Origin, origin_of
from heedful.conformance.fixing.remedies import REMEDIES
from heedful.conformance.fixing.remedies.remedy import Remedy
from heedful.conformance.fixing.site import Site, SourceFile
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.fix import Fix, SourceText
from heedful.conformance.reporting.report import Report

SEARCH_SECONDS = 60.0
"""The time limit of the search for all fixes of a target."""

CHECK_SECONDS = 20.0
"""The time limit of the check of one candidate."""

CANDIDATES = 60
"""The largest number of candidates that are checked for one finding."""

PARTS = frozenset({"padding mask", "cache", "rotary", "heads", "scale", "largest context"})
"""The facts that tell which parts an attention has, and that it takes other numbers of tokens."""

Check = Callable[[Any, str], Report]
"""A function of a definition and the name of a bug that returns the report, and may stop early at that bug."""


def proved_fixes(target: Any, report: Report, check: Check) -> tuple[Fix, ...]:
    """Return fixes of the bugs in a report, each proved by another check on top of the previous ones.

    Args:
        target: The checked class, function or instance.
        report: The report on it.
        check: A function that checks another definition of the target in the same way.

    Returns:
        The fixes, in the order in which they were applied; none for a bug that no candidate mends.

    Raises:
        ArgumentError: No file defines the target.
    """
    origin = origin_of(target)
    search = _Search(origin, check, time.monotonic() + SEARCH_SECONDS)
    fixes: list[Fix] = []
    failed: set[str] = set()
    text, file = origin.text, origin.file
    while bugs := [bug for bug in report.bugs if bug.name not in failed]:
        proved = search.fix(bugs[0], report, text, file)
        if proved is None:
            failed.add(bugs[0].name)
            continue
        after, file, report = proved
        fixes.append(Fix(bugs[0].name, origin.file, SourceText(text), SourceText(after)))
        text = after
        failed.clear()  # what is mended now may have hidden that an earlier fix was right
    return tuple(fixes)


class _Search:
    """A search for fixes that ends at a point in time."""

    def __init__(self, origin: Origin, check: Check, end: float) -> None:
        self.origin = origin
        self.check = check
        self.end = end

    def fix(
        self, finding: Finding, report: Report, text: str, file: str
    ) -> tuple[str, str, Report] | None:
        """Return the first source without a finding, the file that it was checked in, and the report on it."""
        if finding.place is None or finding.place.file != file:
            return None
        for candidate in islice(candidates(finding, text), CANDIDATES):
            if time.monotonic() > self.end:
                return None
            checked = self._checked(candidate, finding.name)
            if checked is not None and proves(finding.name, report, checked[1]):
                return candidate, *checked
        return None

    def _checked(self, text: str, name: str) -> tuple[str, Report] | None:
        """Return the file and the report of an edited source; None if it cannot be imported or checked."""
        try:
            with within(CHECK_SECONDS), self.origin.edited(text) as (definition, file):
                return file, self.check(definition, name)
        except (Exception, SystemExit):  # noqa: BLE001 - an edit may break the source in any way
            return None


def candidates(
    finding: Finding, text: str, remedies: Sequence[Remedy] | None = None
) -> Iterator[str]:
    """Yield edited sources that may lack a finding: first edits of its line, then of the code around it.

    Args:
        finding: The finding.
        text: The source.
        remedies: The remedies to try; None for those of the finding.
    """
    assert finding.place is not None
    try:
        site = SourceFile(text).site(finding.place.line)
    except cst.ParserSyntaxError:  # syntax that is newer than libcst
        return
    if site is None:
        return
    seen, said = {text}, _docstrings(text)
    sites = [site.with_proof(finding.proof), *site.with_proof(finding.proof).related()]
    for place in sites:
        for remedy in REMEDIES.get(finding.name, ()) if remedies is None else remedies:
            for candidate in _edited(place, remedy):
                if candidate in seen or not _is_valid(candidate):
                    continue
                if said <= _docstrings(candidate):  # they say what is right
                    seen.add(candidate)
                    yield candidate


def _edited(site: Site, remedy: Remedy) -> Iterator[str]:
    """Yield the sources after the edits of a remedy, up to the first that is no Python."""
    with suppress(cst.ParserSyntaxError, cst.CSTValidationError):
        for edit in remedy(site):
            yield site.file.edited(edit)


def proves(name: str, before: Report, after: Report) -> bool:
    """Check whether a finding is gone, no other one has come, nothing was disabled, and a scale is the usual one."""
    left = {finding.name for finding in after.findings if finding.level != "convention"}
    known = {finding.name for finding in before.findings}
    if name == "parameter-not-registered":
        known.add("mask-fill-overflow")  # .half() converts only what is registered
    if name in left or not left <= known:
        return False
    if not _parts(before) <= _parts(after):
        return False
    for part in ("heads", "rotary"):  # one mix-up may hide another
        if name.startswith(f"{part}-") and part not in _parts(after):
            return False
    scales = [fact.value for fact in after.facts if fact.name == "scale"]
    return not name.startswith("scale-") or any("= 1/√head_dim (" in scale for scale in scales)


def _parts(report: Report) -> set[str]:
    """Return the parts of an attention that a check has recognized: an edit that disables one proves nothing."""
    return {fact.name for fact in report.facts} & PARTS


def _docstrings(text: str) -> set[str | None]:
    """Return the docstrings of a source."""
    definitions = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(text))
    return {ast.get_docstring(it) for it in nodes if isinstance(it, definitions)}


def _is_valid(text: str) -> bool:
    """Check whether a source can be compiled."""
    try:
        compile(text, "<candidate>", "exec")
    except (SyntaxError, ValueError):
        return False
    return bool(cst.parse_module(text).body)
