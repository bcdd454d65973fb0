"""How well `heedful check` does: every mutant and every right attention checked, and the results as a page.

.venv/bin/python tests/conformance/measure.py --page docs/conformance.md     # make conformance
.venv/bin/python tests/conformance/measure.py --only split                   # a few, each miss with its proofs
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median

import torch
from mutants import MUTANTS, OPTIONS, Mutant, built

from heedful.conformance import check
from heedful.errors import HeedfulError

WORKERS = 2


@dataclass(frozen=True)
class Verdict:
    """What a check said of a mutant, or of a right attention.

    Attributes:
        name: of what was checked.
        expected: the bug; "" for a right attention.
        accepted: the names that say it.
        line: where the bug sits; None if not on one line.
        found: the names of the bugs found, first the first.
        found_line: the line that was named for it.
        seconds: how long the check took.
        proofs: of all bugs found.
    """

    name: str
    expected: str
    accepted: tuple[str, ...]
    line: int | None
    found: tuple[str, ...]
    found_line: int | None
    seconds: float
    proofs: tuple[str, ...]

    @property
    def right(self) -> bool:
        """The bug is named, and nothing else; or nothing is, where there is none."""
        if not self.expected:
            return not self.found
        return len(self.found) == 1 and self.found[0] in self.accepted

    @property
    def detected(self) -> bool:
        """The bug is named, whatever else is."""
        return any(name in self.accepted for name in self.found)

    @property
    def line_right(self) -> bool:
        return self.line is not None and self.found_line == self.line

    def complaint(self) -> str:
        """What is not as it should be, with the proofs of what was found; "" where all is."""
        if self.right and (self.line is None or self.line_right):
            return ""
        said = [f"      {proof[:260]}" for proof in self.proofs or ("nothing found",)]
        about = f"{self.expected or 'right'}, line {self.line}, {self.name}"
        return "\n".join([("" if self.right else "WRONG ") + about, *said, ""])


def judge_mutant(number: int) -> Verdict:
    """Check one mutant, from a file of its own."""
    torch.set_num_threads(1)
    mutant: Mutant = MUTANTS[number]
    with tempfile.TemporaryDirectory() as folder:
        kind = built(mutant, Path(folder))
        began = time.perf_counter()
        try:
            report = check(kind, **OPTIONS[mutant.base])
        except HeedfulError as error:
            return _refused(mutant.title, mutant.bug, mutant.names, error)
        seconds = time.perf_counter() - began
    named = [it for it in report.bugs if it.name in mutant.names] or list(report.bugs)
    place = named[0].place if named else None
    return Verdict(
        mutant.title,
        mutant.bug,
        mutant.names,
        mutant.line,
        tuple(it.name for it in report.bugs),
        None if place is None else place.line,
        seconds,
        tuple(f"{it.name}: {it.proof} [{it.place and it.place.line}]" for it in report.bugs),
    )


def judge_correct(name: str) -> Verdict:
    """Check one right attention."""
    from correct import CORRECT

    torch.set_num_threads(1)
    torch.manual_seed(0)
    target, options = CORRECT[name]()
    began = time.perf_counter()
    try:
        report = check(target, **options)
    except HeedfulError as error:
        return _refused(name, "", (), error)
    return Verdict(
        name, "", (), None,
        tuple(it.name for it in report.bugs), None, time.perf_counter() - began,
        tuple(f"{it.name}: {it.proof} [{it.place}]" for it in report.bugs),
    )  # fmt: skip


def _refused(name: str, bug: str, names: tuple[str, ...], error: HeedfulError) -> Verdict:
    """A check that did not come about."""
    return Verdict(name, bug, names, None, ("not checked",), None, 0.0, (str(error),))


def measure(only: str = "") -> list[Verdict]:
    """Check everything whose name holds `only`, two at a time."""
    from correct import CORRECT

    mutants = [n for n, it in enumerate(MUTANTS) if only in f"{it.base} {it.bug}"]
    names = [name for name in CORRECT if only in name]
    context = multiprocessing.get_context("spawn")
    found = []
    with context.Pool(WORKERS) as pool:
        verdicts = chain(
            pool.imap(judge_mutant, mutants, chunksize=4), pool.imap(judge_correct, names)
        )
        for verdict in verdicts:
            found.append(verdict)
            print(end="\r" + verdict.complaint())
            print(end=f"\r{len(found)} of {len(mutants) + len(names)}", flush=True)
    print()
    return found


def page(verdicts: Sequence[Verdict]) -> str:
    """The figures, the confusion matrix and every miss, as Markdown."""
    mutants = [it for it in verdicts if it.expected]
    right = [it for it in verdicts if not it.expected]
    misses = [f"- {it.expected}, {it.name}" for it in mutants if not it.detected]
    alarms = [f"- {it.name}: {', '.join(it.found)}" for it in right if it.found]
    parts = [
        "# How well `heedful check` does",
        "Written by `make conformance`; do not edit. Every mutant is a right attention of\n"
        "`tests/conformance/bases/` with one small edit of `tests/conformance/mutants.py`, checked from its\n"
        "class alone, with what its user would say (`causal=True`).",
        _figures(mutants, right),
        "## Confusion matrix",
        "Rows: the bug; in brackets: of how many mutants. Otherwise: what was reported first in its stead.",
        _matrix(mutants),
        "## Bases",
        _bases(mutants),
        "## Missed",
        "\n".join(misses or ["Nothing."]),
        "## False alarms",
        "\n".join(alarms or ["None."]),
        "## Right attentions",
        "\n".join(f"- {it.name}" for it in right),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(mutants: Sequence[Verdict], right: Sequence[Verdict]) -> str:
    on_a_line = [it for it in mutants if it.line is not None]
    seconds = [it.seconds for it in [*mutants, *right]]
    rows = {
        "mutants": f"{len(mutants)}, of {len({it.expected for it in mutants})} bugs, on {len(OPTIONS)} bases",
        "named right": _share([it.detected for it in mutants]),
        "named right, and nothing else reported": _share([it.right for it in mutants]),
        "right line, of bugs that sit on one line": _share([it.line_right for it in on_a_line]),
        "right attentions": len(right),
        "false alarms": sum(bool(it.found) for it in right),
        "seconds for a check, one thread": f"median {median(seconds):.2f}, most {max(seconds):.2f}",
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _matrix(mutants: Sequence[Verdict]) -> str:
    lines = ["| bug | named right | otherwise |", "|---|--:|---|"]
    for bug in dict.fromkeys(it.expected for it in mutants):
        those = [it for it in mutants if it.expected == bug]
        others = Counter(it.found[0] if it.found else "nothing" for it in those if not it.detected)
        said = ", ".join(f"{name} {n}" for name, n in others.most_common())
        lines.append(f"| {bug} ({len(those)}) | {sum(it.detected for it in those)} | {said} |")
    return "\n".join(lines)


def _bases(mutants: Sequence[Verdict]) -> str:
    lines = ["| base | mutants | named right |", "|---|--:|--:|"]
    for base in dict.fromkeys(it.name.split(":")[0] for it in mutants):
        those = [it for it in mutants if it.name.startswith(f"{base}:")]
        lines.append(f"| {base} | {len(those)} | {sum(it.detected for it in those)} |")
    return "\n".join(lines)


def _share(which: Sequence[bool]) -> str:
    return f"{sum(which)} of {len(which)}, {sum(which) / max(len(which), 1):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the results as Markdown")
    parser.add_argument("--only", default="", help="those whose base, bug or name holds this")
    given = parser.parse_args()
    verdicts = measure(given.only)
    print(page(verdicts))
    if given.page is not None:
        given.page.write_text(page(verdicts))


if __name__ == "__main__":
    main()
