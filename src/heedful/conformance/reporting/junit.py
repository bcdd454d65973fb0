"""The report as JUnit XML, which CI servers read: one test case a probe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.text import finding_as_text

if TYPE_CHECKING:
    from heedful.conformance.reporting.report import ProbeRun, Report

NOT_XML = re.compile(
    "[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
)  # as in a coloured exception


def as_junit(report: Report) -> str:
    """One XML document: a bug is a failure, an expected one or what cannot be tested skips its case.

    What another finding explains fails nothing; that and the lesser findings stand in the case's output.
    """
    suites = Element("testsuites")
    suite = SubElement(suites, "testsuite", name=f"heedful check {report.target}")
    for run in report.probes:
        suite.append(_case(report, run))
    suite.set("tests", str(len(report.probes)))
    for kind in ("failures", "skipped"):
        tag = kind.removesuffix("s")
        suite.set(kind, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("errors", "0")
    suite.set("time", f"{sum(run.seconds for run in report.probes):.3f}")
    if report.no_longer_failing:
        names = ", ".join(report.no_longer_failing)
        SubElement(suite, "system-out").text = f"expected to fail, and no longer failing: {names}"
    ElementTree.indent(suites)
    return NOT_XML.sub("", ElementTree.tostring(suites, encoding="unicode", xml_declaration=True))


def _case(report: Report, run: ProbeRun) -> Element:
    name, seconds = run.name, f"{run.seconds:.3f}"
    case = Element("testcase", classname=report.target, name=name, time=seconds)
    bugs = [it for it in run.findings if it in report.bugs]
    known = [it for it in run.findings if it in report.findings and it not in bugs]
    explained = [it for it in run.findings if it not in report.findings]
    skipping = [it for it in known if _skips(report, it)]
    if bugs:
        message = "; ".join(finding.proof for finding in bugs)
        failure = SubElement(case, "failure", type=bugs[0].name, message=message)
        failure.text = "\n\n".join(map(finding_as_text, bugs))
    elif skipping:
        SubElement(case, "skipped", message="; ".join(_reason(report, it) for it in skipping))
    said = [finding_as_text(it) for it in known if it not in skipping]
    said += [f"{it.name} follows from another finding: {it.proof}" for it in explained]
    if said:
        SubElement(case, "system-out").text = "\n\n".join(said)
    return case


def _skips(report: Report, finding: Finding) -> bool:
    return finding.name in report.expected_failures or finding.level == "not-testable"


def _reason(report: Report, finding: Finding) -> str:
    expected = report.expected_failures.get(finding.name)
    return f"{finding.name}: " + (finding.proof if expected is None else f"expected: {expected}")
