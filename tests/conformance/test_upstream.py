"""The re-created bugs, without the check: before the fix a module is wrong, and after it is right."""

from pathlib import Path

import pytest
from upstream.cases import BUGS, CASES, Case
from upstream.proofs import PROOFS, difference


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bug_is_in_the_numbers_before_the_fix_and_not_after_it(
    case: Case, tmp_path: Path
) -> None:
    assert difference(case.name, case.load("before", tmp_path)) > 1e-4
    assert difference(case.name, case.load("after", tmp_path)) < 1e-6


def test_every_bug_has_a_file_a_case_and_a_proof() -> None:
    names = sorted(case.name for case in CASES)
    assert names == sorted(PROOFS) == sorted(path.stem for path in BUGS.glob("*.py"))


def test_both_halves_of_the_set_hold_a_fair_share() -> None:
    tune = sum(case.half == "tune" for case in CASES)
    assert len(CASES) / 3 < tune < 2 * len(CASES) / 3
