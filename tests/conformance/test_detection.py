"""The check on the corpus: it names every bug on one base and reports nothing about one in three correct attentions.

A slow test covers all bases and all correct attentions.
"""

import pytest
from corpus.correct import CORRECT
from corpus.mutants import MUTANTS, OPTIONS, bugs
from measure import Verdict, judge_correct, judge_mutant, measure


def _one_mutant_per_bug() -> list[int]:
    """Return one mutant for every bug, taking the bases in turn."""
    bases, numbers = list(OPTIONS), []
    for turn, bug in enumerate(bugs()):
        mutants = [n for n, mutant in enumerate(MUTANTS) if mutant.bug == bug]
        preferred = [bases[(turn + k) % len(bases)] for k in range(len(bases))]
        numbers.append(min(mutants, key=lambda n: (preferred.index(MUTANTS[n].base), n)))
    return numbers


@pytest.mark.parametrize(
    "number", _one_mutant_per_bug(), ids=lambda n: f"{MUTANTS[n].bug}-{MUTANTS[n].base}"
)
def test_every_bug_is_named(number: int) -> None:
    verdict = judge_mutant(number)
    assert verdict.detected, verdict.proofs or "nothing found"


OF_TRANSFORMERS = [name for name in CORRECT if name.startswith("transformers")]


@pytest.mark.parametrize("name", [name for name in CORRECT if name not in OF_TRANSFORMERS][::3])
def test_correct_attentions_have_no_bugs(name: str) -> None:
    assert judge_correct(name).proofs == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_attentions_of_transformers_have_no_bugs(name: str) -> None:
    pytest.importorskip("transformers", reason="install it with: pip install -e '.[transformers]'")
    assert judge_correct(name).proofs == ()


@pytest.mark.slow
def test_detection_rates_on_the_whole_corpus() -> None:
    verdicts = measure()
    mutants = [verdict for verdict in verdicts if verdict.expected]
    on_one_line = [verdict for verdict in mutants if verdict.line is not None]
    assert _share([verdict.detected for verdict in mutants]) >= 0.95
    assert _share([verdict.line_right for verdict in on_one_line]) >= 0.80
    false_alarms = [verdict.name for verdict in verdicts if verdict.found and not verdict.expected]
    assert false_alarms == []


def _share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


def test_a_bug_named_among_others_is_detected_but_not_right() -> None:
    verdict = Verdict(
        name="",
        expected="scale-missing",
        accepted=("scale-missing",),
        line=3,
        found=("crashes", "scale-missing"),
        found_line=3,
        seconds=0.1,
        proofs=(),
    )
    assert verdict.detected
    assert not verdict.right
    assert verdict.line_right
