"""The lines, branches and arguments that a check never exercised, and what the report says of them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from heedful import check
from heedful.conformance import Example
from heedful.conformance.pytest import parametrize
from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.html import as_html
from heedful.conformance.reporting.junit import as_junit


class Branching(nn.Module):
    def __init__(self, d_model, gate=False):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(d_model, d_model) for _ in range(3))
        self.gate = gate

    def forward(self, x, quirk=None, temperature=1.0):
        """Attend."""
        if x.dim() != 3:
            raise ValueError("an error that no probe should make")
        query, key, value = self.a(x), self.b(x), self.c(x)
        if quirk is not None and quirk > 1:
            value = value * quirk
            value = value + 1
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return self.finished(scores / temperature, value)

    def finished(self, scores, value):
        if self.gate:
            return scores.sigmoid() @ value
        return scores.softmax(dim=-1) @ value

    def never_called(self):
        return 1


def line_of(text: str) -> int:
    with open(__file__) as file:
        return 1 + next(n for n, line in enumerate(file) if line.strip() == text)


def test_missed_branches_are_named_with_what_would_run_them():
    report = check(Branching(24))
    coverage = report.coverage
    assert coverage is not None
    assert report.ok
    assert report.summary == "no bug in 7 of 10 lines"
    first, second = coverage.missed
    assert (first.place.line, first.last) == (
        line_of("value = value * quirk"),
        line_of("value = value + 1"),
    )
    assert first.branch == "if quirk is not None and quirk > 1"
    assert first.remedy == "Give quirk: example=Example(…, quirk=…)."
    assert second.place.line == line_of("return scores.sigmoid() @ value")
    assert second.remedy == "Check it with arguments={'gate': …}, too."
    assert coverage.never_given == ("quirk", "temperature")


def test_every_form_of_the_report_names_them():
    report = check(Branching(24))
    never = "if quirk is not None and quirk > 1. Give quirk"
    assert never in " ".join(str(report).split())
    assert "Never given: quirk, temperature" in str(report)
    assert never in as_html(report).replace("&gt;", ">")
    output = ElementTree.fromstring(as_junit(report)).findtext("testsuite/system-out") or ""
    assert never in output
    missed = json.loads(report.to_json())["coverage"]["missed"]
    assert [it["branch"] for it in missed][1:] == ["if self.gate"]


def test_an_example_runs_the_branch_and_a_strict_check_wants_all():
    example = Example(torch.randn(2, 7, 24), quirk=2.0, temperature=1)
    coverage = check(Branching(24), example=example).coverage
    assert coverage is not None
    assert [it.branch for it in coverage.missed] == ["if self.gate"]
    assert coverage.never_given == ()
    strict = check(Branching(24), example=example, strict=True)
    assert [it.name for it in strict.bugs] == ["lines-not-run"]
    assert strict.exit_code == 1
    known = {"lines-not-run": "the gate has a test of its own"}
    assert check(Branching(24), example=example, strict=True, expected_failures=known).ok


def test_lines_that_run_with_another_flag_of_the_constructor_count_as_run():
    report = check(Branching)
    assert ("also with", "gate=True") in [(it.name, it.value) for it in report.facts]
    coverage = report.coverage
    assert coverage is not None
    assert (coverage.ran, coverage.lines) == (8, 10)
    (missed,) = coverage.missed
    assert missed.branch == "if quirk is not None and quirk > 1"
    assert missed.remedy == "Give quirk: example=Example(…, quirk=…)."


def test_a_strict_check_is_a_test_of_its_own():
    mark = parametrize(Branching(24), strict=True)
    case = mark.args[1][-1].values[0]
    with pytest.raises(AssertionError, match="lines-not-run"):
        case()


def test_a_cell_of_a_notebook_is_named(monkeypatch):
    compiler = pytest.importorskip("IPython.core.compilerop").CachingCompiler()
    file = compiler.cache("x = 1", 5)
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(compile=compiler))
    assert location_of(SourceLine(file, 1, "x = 1")) == "cell In[5]:1"
    assert location_of(SourceLine("mine.py", 1, "x = 1")) == "mine.py:1"


def test_what_runs_completely_is_reported_without_a_remark():
    def attend(query, key, value):
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value

    report = check(attend, strict=True)
    assert report.coverage is not None
    assert report.coverage.complete
    assert report.summary == "no bug"
    assert "Never" not in str(report)


def test_what_follows_a_branch_that_always_returns():
    def attend(query, key, value, fast=True):
        if fast:
            return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value
        scores = query @ key.mT
        return scores.softmax(dim=-1) @ value

    coverage = check(attend).coverage
    assert coverage is not None
    (missed,) = coverage.missed
    assert missed.branch.startswith("what follows line")
    assert missed.branch.endswith("if fast")
    assert "fast" in missed.remedy
