"""The corpus is told apart: every bug on one base, and every right attention; on all bases where marked slow."""

import pytest
from correct import CORRECT
from measure import Verdict, judge_correct, judge_mutant, measure
from mutants import MUTANTS, OPTIONS, bugs


def _one_of_each() -> list[int]:
    """For every bug one mutant, on bases in turn."""
    bases, numbers = list(OPTIONS), []
    for turn, bug in enumerate(bugs()):
        those = [n for n, it in enumerate(MUTANTS) if it.bug == bug]
        ranked = [bases[(turn + k) % len(bases)] for k in range(len(bases))]
        numbers.append(min(those, key=lambda n: (ranked.index(MUTANTS[n].base), n)))
    return numbers


@pytest.mark.parametrize(
    "number", _one_of_each(), ids=lambda n: f"{MUTANTS[n].bug}-{MUTANTS[n].base}"
)
def test_every_bug_is_named(number: int) -> None:
    verdict = judge_mutant(number)
    assert verdict.detected, verdict.proofs or "nothing found"


OTHERS = [name for name in CORRECT if name.startswith("transformers")]


@pytest.mark.parametrize("name", [name for name in CORRECT if name not in OTHERS])
def test_what_is_right_is_not_said_to_have_a_bug(name: str) -> None:
    assert judge_correct(name).proofs == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_what_transformers_does_is_not_said_to_have_a_bug(name: str) -> None:
    pytest.importorskip("transformers", reason="install it with: pip install -e '.[transformers]'")
    assert judge_correct(name).proofs == ()


@pytest.mark.slow
def test_the_corpus_is_told_apart() -> None:
    verdicts = measure()
    mutants = [it for it in verdicts if it.expected]
    on_a_line = [it for it in mutants if it.line is not None]
    assert _share([it.detected for it in mutants]) >= 0.95
    assert _share([it.line_right for it in on_a_line]) >= 0.80
    assert [it.name for it in verdicts if not it.expected and it.found] == []


def _share(which: list[bool]) -> float:
    return sum(which) / len(which)


def test_a_verdict_counts_a_bug_named_among_others_as_detected_and_not_as_right() -> None:
    verdict = Verdict(
        "", "scale-missing", ("scale-missing",), 3, ("crashes", "scale-missing"), 3, 0.1, ()
    )
    assert verdict.detected
    assert not verdict.right
    assert verdict.line_right
