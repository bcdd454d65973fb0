"""The report of a check as JUnit XML for CI servers, with one test case for each probe."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.result import CheckResult, ProbeRun
from heedful.conformance.reporting.text import finding_as_text, not_exercised

NOT_XML: re.Pattern[str] = re.compile(
    "[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
)
"""Characters that XML cannot hold. Messages of exceptions may contain them, for example in colour codes."""


def as_junit(result: CheckResult) -> str:
    """Return the whole report as an XML document.

    A bug is a failure of its test case. If the only finding is expected or could not be tested, the case is skipped.
    All other findings, including those that another finding explains, go to the output of the case.
    """
    suites = Element("testsuites")
    suite = SubElement(suites, "testsuite", name=f"heedful check {result.target}")
    for run in result.probes:
        suite.append(_test_case(result, run))
    suite.set("tests", str(len(result.probes)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    suite.set("time", f"{sum(run.seconds for run in result.probes):.3f}")
    output = [] if result.coverage is None else not_exercised(result.coverage)
    if result.no_longer_failing:
        names = ", ".join(result.no_longer_failing)
        output.append(f"Expected failures that no longer fail: {names}")
    if output:
        SubElement(suite, "system-out").text = "\n".join(output)
    ElementTree.indent(suites)
    return NOT_XML.sub("", ElementTree.tostring(suites, encoding="unicode", xml_declaration=True))


def _test_case(result: CheckResult, run: ProbeRun) -> Element:
    seconds = f"{run.seconds:.3f}"
    case = Element("testcase", classname=result.target, name=run.name, time=seconds)
    bugs = [finding for finding in run.findings if finding in result.bugs]
    explained = [finding for finding in run.findings if finding not in result.findings]
    others = [finding for finding in run.findings if finding not in (*bugs, *explained)]
    skipped = [finding for finding in others if _is_skipped(result, finding)]
    if bugs:
        message = "; ".join(finding.proof for finding in bugs)
        failure = SubElement(case, "failure", type=bugs[0].name, message=message)
        failure.text = "\n\n".join(map(finding_as_text, bugs))
    elif skipped:
        reasons = (_reason_for_skipping(result, finding) for finding in skipped)
        SubElement(case, "skipped", message="; ".join(reasons))
    output = [finding_as_text(finding) for finding in others if finding not in skipped]
    output += [
        f"{finding.name} follows from another finding: {finding.proof}" for finding in explained
    ]
    if output:
        SubElement(case, "system-out").text = "\n\n".join(output)
    return case


def _is_skipped(result: CheckResult, finding: Finding) -> bool:
    return finding.name in result.expected_failures or finding.level == "not-testable"


def _reason_for_skipping(result: CheckResult, finding: Finding) -> str:
    reason = result.expected_failures.get(finding.name)
    return f"{finding.name}: " + (finding.proof if reason is None else f"expected: {reason}")
