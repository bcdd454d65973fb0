"""The report as text, JSON, JUnit XML and HTML: which findings count as bugs, and how they are shown."""

import json
import re
from xml.etree import ElementTree

import pytest
import torch

from heedful.conformance.probes import PROBES
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.catalogue import CATALOGUE
from heedful.conformance.reporting.finding import LEVELS, Fact, Finding
from heedful.conformance.reporting.junit import as_junit
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.result import ProbeRun
from heedful.conformance.reporting.root_causes import EXPLAINS
from heedful.errors import ArgumentError

SOURCE = """import torch

def attend(query, key, value):
    scores = query @ key.mT
    weights = scores.softmax(1)
    return weights @ value < 1
"""
PROOF = "The weights sum to 1 along dimension 1."


@pytest.fixture
def place(tmp_path, monkeypatch) -> SourceLine:
    """Return line 5 of a file in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    return SourceLine(str(tmp_path / "mine.py"), 5, "weights = scores.softmax(1)")


@pytest.fixture
def softmax(place) -> Finding:
    return Finding("softmax-wrong-dim", "bug", PROOF, "7 queries, 7 keys", place)


LEAK = Finding("future-leak", "bug", "Changing token 3 changes output 1.")
LAYOUT = Finding("rotary-layout", "convention", "It pairs (i, i + 2).", remedy="Keep it.")
UNTESTED = Finding("padding-leak", "not-testable", "The target takes no padding mask.")


def report_on(*findings, facts=(), expected=None) -> Report:
    """Return the report of one probe for each finding, and of one that finds nothing."""
    runs = [ProbeRun(f"about {finding.name}", 0.25, (finding,)) for finding in findings]
    return Report("Mine", findings, facts, expected or {}, (*runs, ProbeRun("no finding", 0.25)))


# --- which findings are bugs -------------------------------------------------------------------------


def test_bugs_come_first_and_decide_the_exit_code(softmax):
    report = report_on(LAYOUT, UNTESTED, softmax, LEAK)
    assert [finding.name for finding in report.findings] == [
        "softmax-wrong-dim", "future-leak", "rotary-layout", "padding-leak",
    ]  # fmt: skip
    assert report.bugs == (softmax, LEAK)
    assert not report.ok
    assert report.exit_code == 1
    assert repr(report) == (
        "Report(Mine: 2 bugs, 1 convention, 1 not-testable: softmax-wrong-dim, future-leak)"
    )


def test_findings_at_other_levels_are_not_bugs():
    report = report_on(LAYOUT, UNTESTED)
    assert (report.ok, report.exit_code, report.bugs) == (True, 0, ())
    assert "no bug" in repr(report)


def test_an_expected_failure_is_shown_but_is_not_a_bug(softmax):
    report = report_on(softmax, expected={"softmax-wrong-dim": "mine is special"})
    assert report.ok
    assert "no bug, 1 expected" in str(report)
    assert "expected: mine is special" in str(report)
    assert "expected: mine is special" in report._repr_html_()
    assert report.to_dict()["findings"][0]["expected"] == "mine is special"


def test_an_expected_failure_that_no_longer_fails_is_reported(softmax):
    report = report_on(softmax, expected={"future-leak": "upstream"})
    assert report.no_longer_failing == ("future-leak",)
    for text in (str(report), report._repr_html_(), as_junit(report)):
        assert "future-leak" in text
        assert "no longer fail" in text
    assert report.to_dict()["no_longer_failing"] == ["future-leak"]


def test_an_expected_failure_that_another_finding_explains_still_fails(softmax):
    """A consequence is not among the findings, but a probe has found it."""
    runs = (ProbeRun("softmax", 0.1, (softmax,)), ProbeRun("causality", 0.1, (LEAK,)))
    report = Report("Mine", (softmax,), (), {"future-leak": "upstream"}, runs)
    assert report.no_longer_failing == ()


def test_an_expected_failure_must_be_in_the_catalogue():
    with pytest.raises(ArgumentError, match=r"scale-missing.*--list"):
        report_on(expected={"scale-mising": "typing"})


# --- text --------------------------------------------------------------------------------------------


def test_text_shows_the_line_with_its_relative_path(softmax):
    lines = str(report_on(softmax)).splitlines()
    assert lines[0] == "Mine: 1 bug  (2 probes, 0.5 s)"
    assert lines[2] == "softmax-wrong-dim  bug"
    assert lines[3] == f"    {PROOF}"
    assert lines[4] == "    line    mine.py:5  weights = scores.softmax(1)"
    assert lines[5] == "    case    7 queries, 7 keys"
    assert lines[6].startswith("    remedy  softmax(dim=-1)")


def test_a_findings_own_remedy_replaces_the_one_in_the_catalogue():
    assert "remedy  Keep it." in str(report_on(LAYOUT))


def test_what_could_not_be_tested_has_no_remedy():
    report = report_on(Finding("scale-missing", "not-testable", "The probe could not run."))
    assert "remedy" not in str(report)
    assert "Remedy" not in report._repr_html_()
    assert report.to_dict()["findings"][0]["remedy"] == ""


def test_facts_with_the_same_name_share_a_line():
    facts = (Fact("causal", "yes"), Fact("scale", "0.5"), Fact("scale", "0.25"))
    assert str(report_on(facts=facts)).splitlines()[2:] == ["causal  yes", "scale   0.5; 0.25"]


def test_a_long_statement_is_shortened_and_the_path_is_relative_to_the_package(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    statement = "context, weights = attend(" + "query, " * 40 + ")"
    place = SourceLine(torch.nn.modules.activation.__file__, 7, statement)
    text = str(report_on(Finding("crashes", "bug", "It raises.", place=place)))
    where = next(line for line in text.splitlines() if line.startswith("    line"))
    assert "line    torch/nn/modules/activation.py:7" in where
    assert "…" in text
    assert len(text.splitlines()) <= 8


def test_text_has_at_most_100_columns(softmax):
    long = Finding("crashes", "bug", "It raises " + "very " * 60, "tokens " * 40, softmax.place)
    assert max(map(len, str(report_on(long, softmax)).splitlines())) <= 100


def test_brackets_are_not_markup():
    finding = Finding(
        "crashes", "bug", "It raises KeyError: [bold]", place=SourceLine("x.py", 1, "a[i]")
    )
    text = str(report_on(finding))
    assert "KeyError: [bold]" in text
    assert "a[i]" in text


# --- JSON, JUnit, HTML -------------------------------------------------------------------------------


def test_json_contains_everything(softmax):
    document = json.loads(report_on(softmax, LAYOUT, facts=(Fact("causal", "yes"),)).to_json())
    assert document["target"] == "Mine"
    assert document["ok"] is False
    first = document["findings"][0]
    assert first["place"]["line"] == 5
    assert first["place"]["source"] == "weights = scores.softmax(1)"
    assert first["remedy"] == CATALOGUE["softmax-wrong-dim"].remedy
    assert document["facts"] == [{"name": "causal", "value": "yes"}]
    assert [probe["outcome"] for probe in document["probes"]] == ["bug", "convention", "passed"]


def test_junit_has_a_case_for_each_probe(softmax):
    expected = {"future-leak": "upstream"}
    report = report_on(softmax, LEAK, LAYOUT, UNTESTED, expected=expected)
    suite = ElementTree.fromstring(as_junit(report))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "2")
    failure = suite.find("testcase[@name='about softmax-wrong-dim']/failure")
    assert failure.get("type") == "softmax-wrong-dim"
    assert "mine.py:5" in failure.text
    known = suite.find("testcase[@name='about future-leak']/skipped")
    assert known.get("message") == "future-leak: expected: upstream"
    assert "rotary-layout" in suite.find("testcase[@name='about rotary-layout']/system-out").text
    assert len(suite.find("testcase[@name='no finding']")) == 0


def test_junit_has_no_failure_for_a_consequence(softmax):
    runs = (ProbeRun("softmax", 0.1, (softmax,)), ProbeRun("causality", 0.1, (LEAK,)))
    suite = ElementTree.fromstring(as_junit(Report("Mine", (softmax,), (), {}, runs)))[0]
    assert suite.get("failures") == "1"
    assert "follows from" in suite.find("testcase[@name='causality']/system-out").text


def test_junit_is_valid_xml_for_any_message_of_an_exception():
    finding = Finding("crashes", "bug", "It raises \x1b[31m<&\x00")
    suite = ElementTree.fromstring(as_junit(report_on(finding)))[0]
    assert suite.find("testcase/failure").get("message") == "It raises [31m<&"


def test_html_marks_the_line_among_its_neighbours(softmax):
    html = report_on(softmax)._repr_html_()
    lines = re.findall(
        r'<(mark|span) data-line="(\d+)">(.*?)</\1>(?=<(?:span|mark) data|</pre>)', html
    )
    assert [tag for tag, _, _ in lines] == ["span", "span", "mark", "span"]
    assert [number for _, number, _ in lines] == ["3", "4", "5", "6"]
    assert re.sub("<.*?>", "", lines[2][2]) == "    weights = scores.softmax(1)"
    assert "weights @ value &lt; 1" in re.sub("<.*?>", "", lines[3][2])


def test_html_shows_the_line_alone_if_the_file_cannot_be_read():
    place = SourceLine("<notebook cell>", 3, "scores < 1")
    html = report_on(Finding("future-leak", "bug", "It leaks.", place=place))._repr_html_()
    line = re.search(r'<mark data-line="3">(.*)</mark>', html)
    assert line is not None
    assert re.sub("<.*?>", "", line[1]) == "scores &lt; 1"


# --- the catalogue -----------------------------------------------------------------------------------


def test_the_catalogue_has_all_findings_of_the_probes():
    names = {name for probe in PROBES for name in probe.finds}
    names |= {*EXPLAINS, *(name for explained in EXPLAINS.values() for name in explained)}
    assert names <= set(CATALOGUE)
    assert len(names) > 15


def test_every_entry_is_complete_and_has_its_own_remedy():
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.level in LEVELS
        assert all(len(text) > 15 for text in (entry.meaning, entry.proof)), name
        assert entry.remedy, name
    assert len({entry.remedy for entry in CATALOGUE.values()}) == len(CATALOGUE)


def test_every_probe_has_its_own_name_and_a_meaning():
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    assert all(probe.meaning.endswith(".") for probe in PROBES)
