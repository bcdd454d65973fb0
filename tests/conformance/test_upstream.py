"""The re-created bugs, without the check: before the fix a module is wrong, and after it is right."""

from pathlib import Path

import pytest
from upstream.cases import BUGS, Case
from upstream.held_out import HELD_OUT
from upstream.known import FAMILIES, KNOWN
from upstream.proofs import PROOFS, difference

CASES = (*KNOWN, *HELD_OUT)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_bug_is_in_the_numbers_before_the_fix_and_not_after_it(
    case: Case, tmp_path: Path
) -> None:
    assert difference(case.name, case.load("before", tmp_path)) > 1e-4
    assert difference(case.name, case.load("after", tmp_path)) < 1e-6


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.example is not None],
    ids=lambda case: case.name,
)
def test_what_the_user_states_builds_and_calls_the_fixed_module(case: Case, tmp_path: Path) -> None:
    assert case.example is not None
    definition = getattr(case.load("after", tmp_path), case.entry)
    definition(**case.options["arguments"])(*case.example())


def test_every_bug_has_a_file_a_case_and_a_proof() -> None:
    names = sorted(case.name for case in CASES)
    assert names == sorted(PROOFS) == sorted(path.stem for path in BUGS.glob("*.py"))


def test_no_bug_is_in_two_sets() -> None:
    assert len({case.reference for case in CASES}) == len(CASES)


def test_all_known_bugs_of_a_finding_are_in_one_family() -> None:
    families = {(case.bug, family) for family, cases in FAMILIES.items() for case in cases}
    assert len(families) == len({case.bug for case in KNOWN})
