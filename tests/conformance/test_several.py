"""Two bugs in one module. `python tests/conformance/test_several.py` prints in how many modules both are named."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import pytest
import torch
from corpus.mutants import load
from several import SEVERAL, Base, Bug

from heedful import check

QUICK = 3
"""Of so many pairs of bugs, the first is not left to the slow tests."""
PAIRS = [(base, pair) for base in SEVERAL for pair in base.sample(3)]
HIDDEN = {
    # Beside a bias that is learned, a scale is a convention, even alone.
    ("window", "scale-wrong", "softmax-wrong-dim"): "scale-wrong",
    # What is never applied hides nothing, not even too much.
    ("tokens_first", "self-hidden", "mask-unused"): "self-hidden",
    # All rows, chunks or keys are mixed already by the other bug.
    ("tokens_first", "mask-broadcast", "heads-mixed-merge"): "mask-broadcast",
    ("cached", "causal-alignment", "heads-mixed-split"): "causal-alignment",
}
"""The pairs of which one bug cannot be seen, and which one that is."""


def found(base: Base, bugs: tuple[Bug, ...], folder: Path) -> list[tuple[str, int | None]]:
    """Return the names and lines of the bugs that are found in a base with some bugs planted."""
    path = folder / f"several_{base.name}_{'_'.join(str(base.bugs.index(bug)) for bug in bugs)}.py"
    path.write_text(base.source(*bugs))
    torch.manual_seed(0)
    report = check(load(path), **base.options)
    return [(bug.name, bug.place and bug.place.line) for bug in report.bugs]


@pytest.mark.parametrize("base", SEVERAL, ids=lambda base: base.name)
def test_a_base_has_no_bug(base: Base, tmp_path: Path) -> None:
    assert found(base, (), tmp_path) == []


@pytest.mark.parametrize(
    ("base", "bugs"),
    [
        pytest.param(
            *(base, (a, b)),
            id=f"{base.name}-{a.name}-{b.name}",
            marks=[pytest.mark.slow] * (index % QUICK > 0),
        )
        for index, (base, (a, b)) in enumerate(PAIRS)
    ],
)
def test_of_two_bugs_both_are_named_if_they_can_be_seen(
    base: Base, bugs: tuple[Bug, Bug], tmp_path: Path
) -> None:
    names = {name for name, _ in found(base, bugs, tmp_path)}
    first, second = bugs
    hidden = HIDDEN.get((base.name, first.name, second.name), "")
    assert [bug.name for bug in bugs if not names & {*bug.names}] == [hidden] * bool(hidden)


def _judge(job: tuple[int, tuple[int, ...]]) -> tuple[int, int, int]:
    """Return how many bugs were named, and on the right line, and how many names too many there are."""
    torch.set_num_threads(1)
    base = SEVERAL[job[0]]
    bugs = tuple(base.bugs[number] for number in job[1])
    with tempfile.TemporaryDirectory() as folder:
        bugs_found = found(base, bugs, Path(folder))
    near = [
        [abs((line or 0) - base.line(bug)) <= 1 for name, line in bugs_found if name in bug.names]
        for bug in bugs
    ]
    known = {name for bug in bugs for name in bug.names}
    extra = sum(name not in known for name, _ in bugs_found)
    return sum(map(bool, near)), sum(map(any, near)), extra


def main() -> None:
    """Print how many bugs are named alone, and how many pairs are named in full."""
    singles = [(n, (i,)) for n, base in enumerate(SEVERAL) for i in range(len(base.bugs))]
    pairs = [
        (n, (base.bugs.index(a), base.bugs.index(b)))
        for n, base in enumerate(SEVERAL)
        for a, b in base.sample(6)
    ]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for title, jobs in (("one bug", singles), ("two bugs", pairs)):
            verdicts = pool.map(_judge, jobs)
            wanted = sum(len(numbers) for _, numbers in jobs)
            full = sum(
                named == len(it[1]) for (named, _, _), it in zip(verdicts, jobs, strict=True)
            )
            named, lines, extra = (sum(numbers) for numbers in zip(*verdicts, strict=True))
            print(
                f"{title}: {full} of {len(jobs)} modules in full; {named} of {wanted} bugs named, {lines} on the right "
                f"line, {extra} other findings"
            )


if __name__ == "__main__":
    main()
