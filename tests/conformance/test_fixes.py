"""Fixes: which edits are shown, that they were proved, and that nothing else changes."""

import sys
from dataclasses import replace
from pathlib import Path

import libcst as cst
import pytest
import torch
from corpus.mutants import BASES, MUTANTS, load
from equality import ROUNDING, largest_difference
from measure import judge_mutant
from torch import nn

from heedful import check
from heedful.conformance.calling.loading import loaded
from heedful.conformance.fixing import proof
from heedful.conformance.fixing.proof import candidates, proves
from heedful.conformance.fixing.remedies import REMEDIES
from heedful.conformance.fixing.site import SourceFile
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError

SOURCE = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        weights = torch.softmax( scores, dim = 1 )  # over the keys
        return weights @ value
"""

QUICK = (
    *("mask-unused", "mask-inverted", "mask-fill-too-small", "softmax-wrong-dim", "scale-missing"),
    *("keys-values-swapped", "heads-mixed-merge", "group-order", "dropout-in-eval"),
)
ONE_OF_A_BUG = (
    *("mask-unused", "mask-inverted", "mask-fill-too-small", "mask-after-softmax"),
    *("mask-not-a-buffer", "mask-broadcast", "future-leak", "self-hidden"),
    *("softmax-wrong-dim", "rows-not-normalised", "scale-missing", "scale-wrong"),
    *("keys-values-swapped", "projection-unused", "heads-mixed-split", "heads-mixed-merge"),
    *("group-order", "dropout-in-eval", "dropout-misplaced", "causal-alignment", "rotary-offset"),
    *("rotary-mismatch", "nan-on-masked-rows", "gradient-wrong", "undefined-or-global-name"),
    *("parameter-not-registered", "softmax-twice"),
)


def report_on(path: Path, **options) -> Report:
    with loaded(f"{path}:Attention") as definition:
        return check(definition, fix=True, **options)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


# --- on the corpus -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bug",
    [it if it in QUICK else pytest.param(it, marks=pytest.mark.slow) for it in ONE_OF_A_BUG],
)
def test_a_mutant_of_each_bug_is_mended(bug: str) -> None:
    mutants = [n for n, mutant in enumerate(MUTANTS) if mutant.bug == bug]
    verdict = judge_mutant(mutants[0], fixes=True)
    assert verdict.fixed, verdict.name
    assert verdict.difference <= ROUNDING, verdict.diff


@pytest.mark.parametrize(
    "edit", ["self.alibi *= 2", "angle = (positions.to(x.dtype)", "v.shape[2] // 8 * 8"]
)
def test_a_fix_that_only_hides_a_bug_is_not_taken(edit: str) -> None:
    (number,) = [n for n, mutant in enumerate(MUTANTS) if edit in mutant.new]
    verdict = judge_mutant(number, fixes=True)
    assert verdict.fixed, verdict.name
    assert verdict.difference <= ROUNDING, verdict.diff


def test_a_fix_that_cannot_be_called_is_measured(tmp_path) -> None:
    source = (BASES / "padded.py").read_text()
    wrong = tmp_path / "padded.py"
    wrong.write_text(source.replace("permute(2, 0, 3, 1, 4)", "permute(2, 0, 1, 3, 4)"))
    assert largest_difference(load(BASES / "padded.py"), load(wrong), {}) == float("inf")


def test_a_fix_that_computes_something_else_is_measured(tmp_path) -> None:
    base = BASES / "einsums.py"
    other = tmp_path / "other.py"
    other.write_text(base.read_text().replace("triu(1)", "triu(2)"))
    assert largest_difference(load(base), load(base), {"causal": True}) == 0.0
    assert largest_difference(load(base), load(other), {"causal": True}) > 0.1


# --- the edit ----------------------------------------------------------------------------------------


def test_an_edit_keeps_the_style_and_the_comments(file):
    (fix,) = report_on(file).fixes
    assert fix.finding == "softmax-wrong-dim"
    assert fix.before == SOURCE
    assert fix.after == SOURCE.replace("dim = 1 )", "dim = -1 )")
    assert fix.diff.count("\n-") == fix.diff.count("\n+") - 1 == 1  # one of each, besides +++


def test_windows_line_ends_are_kept(file):
    file.write_bytes(SOURCE.replace("\n", "\r\n").encode())
    (fix,) = report_on(file).fixes
    assert fix.after == SOURCE.replace("dim = 1 )", "dim = -1 )").replace("\n", "\r\n")


def test_several_bugs_are_mended_one_upon_the_other(file):
    file.write_text(SOURCE.replace(" / key.shape[-1] ** 0.5", ""))
    first, second = report_on(file).fixes
    assert {first.finding, second.finding} == {"softmax-wrong-dim", "scale-missing"}
    assert second.before == first.after
    file.write_text(second.after)
    assert report_on(file).ok


def test_a_second_softmax_on_a_line_of_its_own_is_left_out(file):
    right = SOURCE.replace("dim = 1 )", "dim = -1 )")
    again = "        weights = torch.softmax(weights, dim=-1)\n        return"
    file.write_text(right.replace("        return", again))
    (fix,) = report_on(file).fixes
    assert fix.after == right


def test_a_fix_stands_in_the_report_and_in_json(file):
    report = report_on(file)
    assert report.fixes[0].diff.rstrip() in str(report)
    assert report.to_dict()["fixes"] == [
        {"finding": "softmax-wrong-dim", "file": str(file), "diff": report.fixes[0].diff}
    ]
    assert report.unfixed == ()
    assert not report.ok


def test_without_fix_no_fix_is_looked_for(file):
    with loaded(f"{file}:Attention") as definition:
        report = check(definition)
    assert report.fixes is None
    assert report.to_dict()["fixes"] is None


def test_a_bug_without_a_mechanical_remedy_is_named(file):
    file.write_text(
        SOURCE.replace("dim = 1", "dim = -1").replace("return weights @ value", "return x")
    )
    report = report_on(file)
    assert report.fixes == ()
    assert "No fix was found and proved for attention-ignored" in str(report)


# --- the proof ---------------------------------------------------------------------------------------


def report_of(*names: str, scale: str = "0.5 = 1/√head_dim (head size 4)") -> Report:
    return Report("Mine", tuple(finding(name) for name in names), (Fact("scale", scale),))


def finding(name: str, level="bug") -> Finding:
    return Finding(name, level, "")


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        (["scale-missing"], [], True),
        (["scale-missing"], ["scale-missing"], False),
        (["scale-missing"], ["scale-wrong"], False),
        (["scale-missing", "future-leak"], ["future-leak"], True),
    ],
)
def test_a_fix_is_proved_if_the_finding_is_gone_and_no_other_has_come(before, after, proved):
    assert proves("scale-missing", report_of(*before), report_of(*after)) is proved


def test_a_suspicion_counts_as_a_new_finding_and_a_convention_does_not():
    before = Report("Mine", (finding("mask-unused"),))
    assert not proves("mask-unused", before, Report("Mine", (finding("crashes", "suspicious"),)))
    assert proves("mask-unused", before, Report("Mine", (finding("rotary-layout", "convention"),)))


def test_a_fix_of_a_scale_makes_it_the_usual_one():
    assert not proves("scale-wrong", report_of("scale-wrong"), report_of(scale="1 = no scaling"))
    assert proves("mask-unused", report_of("mask-unused"), report_of(scale="1 = no scaling"))


def test_a_fix_that_disables_a_part_is_not_proved():
    before = replace(report_of("padding-leak"), facts=(Fact("padding mask", "attention_mask"),))
    assert proves("padding-leak", before, replace(before, findings=()))
    assert not proves("padding-leak", before, report_of())


def test_a_fix_still_takes_other_numbers_of_tokens():
    """Heads that are turned with the tokens once too often fit only as many tokens as heads."""
    before = replace(report_of("padding-leak"), facts=(Fact("largest context", "no limit"),))
    assert proves("padding-leak", before, replace(before, findings=()))
    assert not proves("padding-leak", before, report_of())


@pytest.mark.parametrize(
    ("bug", "part"), [("heads-mixed-split", "heads"), ("rotary-offset", "rotary")]
)
def test_a_fix_of_a_part_makes_it_recognizable(bug, part):
    before = report_of(bug)
    assert not proves(bug, before, report_of())
    told = replace(report_of(), facts=(*before.facts, Fact(part, "found")))
    assert proves(bug, before, told)


def test_only_proved_edits_are_shown(file, monkeypatch):
    monkeypatch.setattr(proof, "proves", lambda name, before, after: False)
    report = report_on(file)
    assert report.fixes == ()
    assert [bug.name for bug in report.unfixed] == ["softmax-wrong-dim"]
    assert "No fix was found and proved for softmax-wrong-dim" in str(report)


def test_every_candidate_is_another_source_that_compiles():
    text = (BASES / "decoder.py").read_text()
    place = SourceLine(
        "decoder.py", 1 + text[: text.index("scores = torch.matmul")].count("\n"), ""
    )
    found = list(candidates(Finding("scale-wrong", "bug", "", "", place), text))
    assert len(found) == len(set(found)) > 10
    assert text not in found
    for candidate in found:
        compile(candidate, "candidate", "exec")


def test_no_remedy_fails_on_any_statement_of_a_module():
    file = SourceFile((BASES / "folded.py").read_text())
    sites = [site for line in range(30, 42) if (site := file.site(line)) is not None]
    remedies = {remedy for group in REMEDIES.values() for remedy in group}
    edits = [edit for site in sites for remedy in remedies for edit in remedy(site)]
    assert len(edits) > 100


# --- the surroundings --------------------------------------------------------------------------------


def test_relative_imports_work_in_the_copy_and_nothing_is_written_beside_it(tmp_path):
    package = tmp_path / "package_of_fixes"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "scales.py").write_text("def scale_of(key):\n    return key.shape[-1] ** 0.5\n")
    source = SOURCE.replace("import torch\n", "import torch\nfrom .scales import scale_of\n", 1)
    source = source.replace("key.shape[-1] ** 0.5", "scale_of(key)")
    (package / "mine.py").write_text(source)
    modules = set(sys.modules)
    (fix,) = report_on(package / "mine.py").fixes
    assert fix.after == source.replace("dim = 1 )", "dim = -1 )")
    names = {path.name for path in package.iterdir()}
    assert names - {"__pycache__"} == {"__init__.py", "scales.py", "mine.py"}
    assert (package / "mine.py").read_text() == source
    assert not [name for name in set(sys.modules) - modules if "_heedful_fixed" in name]


def test_an_instance_that_the_file_names_can_be_mended(file):
    file.write_text(f"{SOURCE}\n\nmine = Attention(24)\n")
    with loaded(f"{file}:mine") as instance:
        (fix,) = check(instance, fix=True).fixes
    assert "dim = -1" in fix.after


def test_a_function_can_be_mended(file):
    file.write_text(
        "def attend(query, key, value):\n    return (query @ key.mT).softmax(dim=-1) @ value\n"
    )
    with loaded(f"{file}:attend") as function:
        (fix,) = check(function, fix=True).fixes
    assert fix.after.splitlines()[1] == (
        "    return ((query @ key.mT) / query.shape[-1] ** 0.5).softmax(dim=-1) @ value"
    )


def test_a_target_that_no_file_defines_cannot_be_mended():
    class Local(nn.Module):
        def forward(self, x):
            return torch.softmax(x @ x.mT, dim=-1) @ x

    with pytest.raises(ArgumentError, match="at its top level"):
        check(Local, fix=True)


def test_a_script_that_checks_itself_does_not_do_so_for_ever(file):
    file.write_text(f"{SOURCE}\n\nfrom heedful import check\n\ncheck(Attention, fix=True)\n")
    assert report_on(file).fixes == ()


# --- sites -------------------------------------------------------------------------------------------


def test_a_site_is_the_innermost_statement_with_what_its_code_reads():
    file = SourceFile(SOURCE)
    line = 1 + SOURCE[: SOURCE.index("scores =")].count("\n")
    site = file.site(line)
    assert site is not None
    assert site.targets == ["scores"]
    assert site.reads == ["query", "key"]
    assert set(site.assigned) == {"query", "key", "value"}
    assert site.parameters == ["x"]
    assert isinstance(site.small, cst.Assign)
    assert next(site.related()).line == line - 1
