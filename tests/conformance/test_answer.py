"""The answer of the process that runs a target: it survives the way to the command, and no other text passes for it."""

from __future__ import annotations

import json

import pytest

from heedful.conformance import Fact, Finding, Report, SourceLine
from heedful.conformance.answer import Request, answer_as_json, parse_answer
from heedful.conformance.reporting.result import ProbeRun
from heedful.errors import ArgumentError, HeedfulError

FINDING = Finding(
    "scale-missing", "bug", "The logits equal query · key.", place=SourceLine("mine.py", 5, "x")
)
FACT = Fact("scale", "1")
REPORT = Report(
    "Attention",
    (FINDING,),
    (FACT,),
    {"scale-missing": "trained so"},
    (ProbeRun("scale", 0.25, (FINDING,), (FACT,)),),
)


def fields() -> dict:
    """Return the fields of a right answer."""
    return json.loads(answer_as_json(REPORT, "nonce"))


def test_a_report_and_an_error_arrive_as_they_were_sent():
    assert parse_answer(answer_as_json(REPORT, "nonce").encode(), "nonce") == REPORT
    error = ArgumentError("TARGET", expected="a", received="ö", remedy="c")
    arrived = parse_answer(answer_as_json(error, "nonce").encode(), "nonce")
    assert isinstance(arrived, HeedfulError)
    assert str(arrived) == str(error)


def test_a_request_arrives_as_it_was_sent():
    request = Request("mine.py", {"d_model": "24"}, {"causal": None}, "nonce")
    assert Request.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it.update(nonce="another"),
        lambda it: it.pop("nonce"),
        lambda it: it.pop("report"),
        lambda it: it.update(error="both"),
        lambda it: it["report"].update(target=3),
        lambda it: it["report"].update(ok=True),
        lambda it: it["report"].pop("probes"),
        lambda it: it["report"].update(findings={}),
        lambda it: it["report"].update(expected_failures={"no-such-finding": "x"}),
        lambda it: it["report"]["findings"][0].update(level="harmless"),
        lambda it: it["report"]["findings"][0]["place"].update(line="5"),
        lambda it: it["report"]["findings"].append(None),
        lambda it: it["report"]["probes"][0].update(seconds=True),
    ],
)
def test_an_answer_with_anything_else_in_it_is_refused(change):
    answer = fields()
    change(answer)
    with pytest.raises(ValueError):  # noqa: PT011 - json's own errors are meant, too
        parse_answer(json.dumps(answer).encode(), "nonce")


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"\x80\x04.", b"[" * 100_000, b'{"report": {}}', "ö".encode()]
)
def test_text_that_is_no_answer_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - json's own errors are meant, too
        parse_answer(text, "nonce")


def test_control_characters_in_an_answer_are_escaped():
    answer = fields()
    answer["report"]["target"] = "\x1b[2J\n\x9b"
    report = parse_answer(json.dumps(answer).encode(), "nonce")
    assert isinstance(report, Report)
    assert report.target == "\\x1b[2J\n\\x9b"
