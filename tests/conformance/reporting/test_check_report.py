"""The report as text, JSON, JUnit XML and HTML: what is said, what counts, and that it can be read."""

import json
from xml.etree import ElementTree

import pytest
import torch

from heedful.conformance import probes  # noqa: F401 - enters every probe
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
    """Line 5 of a file in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    return SourceLine(str(tmp_path / "mine.py"), 5, "weights = scores.softmax(1)")


@pytest.fixture
def softmax(place) -> Finding:
    return Finding("softmax-wrong-dim", "bug", PROOF, "7 queries, 7 keys", place)


LEAK = Finding("future-leak", "bug", "Changing token 3 changes output 1.")
LAYOUT = Finding("rotary-layout", "convention", "It pairs (i, i + 2).", remedy="Keep it.")
UNTESTED = Finding("padding-leak", "not-testable", "It could not be told what is padding.")


def report(*findings, facts=(), expected=None) -> Report:
    """One probe a finding, and one that finds nothing."""
    runs = [ProbeRun(f"about {it.name}", 0.25, (it,)) for it in findings]
    return Report("Mine", findings, facts, expected or {}, (*runs, ProbeRun("what is right", 0.25)))


# --- what counts -------------------------------------------------------------------------------------


def test_bugs_stand_first_and_decide(softmax):
    found = report(LAYOUT, UNTESTED, softmax, LEAK)
    assert [it.name for it in found.findings] == [
        "softmax-wrong-dim", "future-leak", "rotary-layout", "padding-leak",
    ]  # fmt: skip
    assert found.bugs == (softmax, LEAK)
    assert not found.ok
    assert found.exit_code == 1
    assert repr(found) == (
        "Report(Mine: 2 bugs, 1 convention, 1 not-testable: softmax-wrong-dim, future-leak)"
    )


def test_nothing_but_a_bug_is_a_bug():
    found = report(LAYOUT, UNTESTED)
    assert (found.ok, found.exit_code, found.bugs) == (True, 0, ())
    assert "no bug" in repr(found)


def test_an_expected_failure_is_shown_and_does_not_count(softmax):
    found = report(softmax, expected={"softmax-wrong-dim": "mine is special"})
    assert found.ok
    assert "no bug, 1 expected" in str(found)
    assert "expected: mine is special" in str(found)
    assert "expected: mine is special" in found._repr_html_()
    assert found.to_dict()["findings"][0]["expected"] == "mine is special"


def test_an_expected_failure_that_is_gone_is_said(softmax):
    found = report(softmax, expected={"future-leak": "upstream"})
    assert found.no_longer_failing == ("future-leak",)
    for said in (str(found), found._repr_html_(), as_junit(found)):
        assert "future-leak" in said
        assert "no longer fail" in said
    assert found.to_dict()["no_longer_failing"] == ["future-leak"]


def test_what_another_finding_explains_still_fails(softmax):
    """A consequence is left out of the findings, but it is not gone."""
    runs = (ProbeRun("softmax", 0.1, (softmax,)), ProbeRun("causality", 0.1, (LEAK,)))
    found = Report("Mine", (softmax,), (), {"future-leak": "upstream"}, runs)
    assert found.no_longer_failing == ()


def test_an_expected_failure_is_one_of_the_catalogue():
    with pytest.raises(ArgumentError, match=r"scale-missing.*--list"):
        report(expected={"scale-mising": "typing"})


# --- text --------------------------------------------------------------------------------------------


def test_text_names_the_line_as_one_would_type_it(softmax):
    lines = str(report(softmax)).splitlines()
    assert lines[0] == "Mine: 1 bug  (2 probes, 0.5 s)"
    assert lines[2] == "softmax-wrong-dim  bug"
    assert lines[3] == f"    {PROOF}"
    assert lines[4] == "    line    mine.py:5  weights = scores.softmax(1)"
    assert lines[5] == "    case    7 queries, 7 keys"
    assert lines[6].startswith("    remedy  softmax(dim=-1)")


def test_a_findings_own_remedy_goes_before_the_catalogues():
    assert "remedy  Keep it." in str(report(LAYOUT))


def test_facts_are_one_block_with_a_line_a_name():
    facts = (Fact("causal", "yes"), Fact("scale", "0.5"), Fact("scale", "0.25"))
    assert str(report(facts=facts)).splitlines()[2:] == ["causal  yes", "scale   0.5; 0.25"]


def test_a_long_statement_is_cut_and_a_packages_file_is_named_from_the_package(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    statement = "context, weights = attend(" + "query, " * 40 + ")"
    place = SourceLine(torch.nn.modules.activation.__file__, 7, statement)
    said = str(report(Finding("crashes", "bug", "It raises.", place=place)))
    where = next(line for line in said.splitlines() if line.startswith("    line"))
    assert "line    torch/nn/modules/activation.py:7" in where
    assert "…" in said
    assert len(said.splitlines()) <= 8


def test_text_keeps_to_100_columns(softmax):
    long = Finding("crashes", "bug", "It raises " + "very " * 60, "tokens " * 40, softmax.place)
    assert max(map(len, str(report(long, softmax)).splitlines())) <= 100


def test_brackets_are_no_markup():
    finding = Finding(
        "crashes", "bug", "It raises KeyError: [bold]", place=SourceLine("x.py", 1, "a[i]")
    )
    said = str(report(finding))
    assert "KeyError: [bold]" in said
    assert "a[i]" in said


# --- JSON, JUnit, HTML -------------------------------------------------------------------------------


def test_json_holds_everything(softmax):
    document = json.loads(report(softmax, LAYOUT, facts=(Fact("causal", "yes"),)).to_json())
    assert document["target"] == "Mine"
    assert document["ok"] is False
    first = document["findings"][0]
    assert first["place"]["line"] == 5
    assert first["place"]["source"] == "weights = scores.softmax(1)"
    assert first["remedy"] == CATALOGUE["softmax-wrong-dim"].remedy
    assert document["facts"] == [{"name": "causal", "value": "yes"}]
    assert [it["outcome"] for it in document["probes"]] == ["bug", "convention", "passed"]


def test_junit_has_a_case_for_each_probe(softmax):
    expected = {"future-leak": "upstream"}
    suite = ElementTree.fromstring(as_junit(report(softmax, LEAK, LAYOUT, UNTESTED, expected=expected)))[0]  # fmt: skip
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "1", "2")
    failure = suite.find("testcase[@name='about softmax-wrong-dim']/failure")
    assert failure.get("type") == "softmax-wrong-dim"
    assert "mine.py:5" in failure.text
    known = suite.find("testcase[@name='about future-leak']/skipped")
    assert known.get("message") == "future-leak: expected: upstream"
    assert "rotary-layout" in suite.find("testcase[@name='about rotary-layout']/system-out").text
    assert len(suite.find("testcase[@name='what is right']")) == 0


def test_junit_fails_no_case_for_a_consequence(softmax):
    runs = (ProbeRun("softmax", 0.1, (softmax,)), ProbeRun("causality", 0.1, (LEAK,)))
    suite = ElementTree.fromstring(as_junit(Report("Mine", (softmax,), (), {}, runs)))[0]
    assert suite.get("failures") == "1"
    assert "follows from" in suite.find("testcase[@name='causality']/system-out").text


def test_junit_can_be_parsed_whatever_an_exception_says():
    finding = Finding("crashes", "bug", "It raises \x1b[31m<&\x00")
    suite = ElementTree.fromstring(as_junit(report(finding)))[0]
    assert suite.find("testcase/failure").get("message") == "It raises [31m<&"


def test_html_marks_the_line_among_its_neighbours(softmax):
    html = report(softmax)._repr_html_()
    assert "<mark>5      weights = scores.softmax(1)</mark>" in html
    assert html.count("<span>") == 3
    assert "weights @ value &lt; 1" in html


def test_html_of_a_file_that_is_gone_shows_the_line_alone():
    place = SourceLine("<notebook cell>", 3, "scores < 1")
    html = report(Finding("future-leak", "bug", "It leaks.", place=place))._repr_html_()
    assert "<mark>3  scores &lt; 1</mark>" in html


# --- the catalogue -----------------------------------------------------------------------------------


def test_the_catalogue_knows_what_probes_find():
    names = {name for probe in PROBES for name in probe.finds}
    names |= {*EXPLAINS, *(name for explained in EXPLAINS.values() for name in explained)}
    assert names <= set(CATALOGUE)
    assert len(names) > 15


def test_every_entry_says_something_of_its_own():
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.level in LEVELS
        assert all(len(text) > 15 for text in (entry.meaning, entry.proof)), name
        assert entry.remedy, name
    assert len({entry.remedy for entry in CATALOGUE.values()}) == len(CATALOGUE)


def test_probes_have_names_and_meanings_of_their_own():
    assert len({probe.name for probe in PROBES}) == len(PROBES)
    assert all(probe.meaning.endswith(".") for probe in PROBES)
