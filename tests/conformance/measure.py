"""Measures how well `heedful check` finds bugs: it checks every mutant and every correct attention of the corpus, and
bugs of public projects before and after their fixes.

.venv/bin/python tests/conformance/measure.py --page docs/conformance.md     # make conformance
.venv/bin/python tests/conformance/measure.py --only split                   # a part, with the proofs of each miss
.venv/bin/python tests/conformance/measure.py --only split --fixes           # and the fixes that --fix would show
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

import packages  # noqa: F401 - without it, torchvision cannot be imported if make conformance-packages has installed it
import torch
from corpus.correct import CORRECT
from corpus.mutants import BASES, MUTANTS, OPTIONS, Mutant, built, load
from equality import ROUNDING, largest_difference
from measure_upstream import measure_upstream, upstream_section

from heedful.conformance import Report, check
from heedful.errors import HeedfulError

WORKERS = 2


@dataclass(frozen=True)
class Verdict:
    """The report of a check on a mutant or a correct attention.

    Attributes:
        name: The name of what was checked.
        expected: The bug of a mutant; "" for a correct attention.
        accepted: The names of findings that describe the bug.
        line: The line of the bug; None if the bug is not on one line.
        found: The names of the bugs that were reported, in order.
        found_line: The line that was reported for the bug.
        seconds: The processor time of the check.
        proofs: The proofs of all bugs that were reported.
        fixed: Whether a fix of the bug was proved.
        difference: The largest difference of the outputs of the fixed mutant from those of its base; 0 without a fix.
        diff: The fix as a diff.
    """

    name: str
    expected: str
    accepted: tuple[str, ...]
    line: int | None
    found: tuple[str, ...]
    found_line: int | None
    seconds: float
    proofs: tuple[str, ...]
    fixed: bool = False
    difference: float = 0.0
    diff: str = ""

    @property
    def right(self) -> bool:
        """True if exactly the bug was reported, or nothing about a correct attention."""
        if not self.expected:
            return not self.found
        return len(self.found) == 1 and self.found[0] in self.accepted

    @property
    def detected(self) -> bool:
        """True if the bug was reported, whatever else was."""
        return any(name in self.accepted for name in self.found)

    @property
    def line_right(self) -> bool:
        """True if the reported line is the line of the bug."""
        return self.line is not None and self.found_line == self.line

    def complaint(self) -> str:
        """Return what is wrong with the report, with the proofs in it; "" if nothing is wrong."""
        if self.right and (self.line is None or self.line_right):
            return ""
        proofs = [f"      {proof[:260]}" for proof in self.proofs or ("nothing found",)]
        headline = f"{self.expected or 'correct'}, line {self.line}, {self.name}"
        return "\n".join([("" if self.right else "WRONG ") + headline, *proofs, ""])

    def fix_complaint(self) -> str:
        """Return what is wrong with the fix of a mutant; "" if nothing is wrong."""
        if not self.expected or (self.fixed and self.difference <= ROUNDING):
            return ""
        if not self.fixed:
            return f"NO FIX {self.expected}, line {self.line}, {self.name}\n"
        return f"WRONG FIX by {self.difference:.2g}, {self.expected}, {self.name}\n{self.diff}\n"


def judge_mutant(number: int, fixes: bool = False) -> Verdict:
    """Check one mutant, which is written to a file of its own, and look for fixes if they are asked for."""
    torch.set_num_threads(1)
    mutant: Mutant = MUTANTS[number]
    with tempfile.TemporaryDirectory() as folder:
        definition = built(mutant, Path(folder))
        start = time.process_time()
        try:
            report = check(definition, **OPTIONS[mutant.base])
            seconds = time.process_time() - start
            if fixes:
                report = check(definition, **OPTIONS[mutant.base], fix=True)
        except HeedfulError as error:
            return _verdict_without_check(mutant.title, mutant.bug, mutant.names, error)
        difference = _difference_from_base(mutant, report, Path(folder))
    matching = [bug for bug in report.bugs if bug.name in mutant.names] or list(report.bugs)
    place = matching[0].place if matching else None
    return Verdict(
        name=mutant.title,
        expected=mutant.bug,
        accepted=mutant.names,
        line=mutant.line,
        found=tuple(bug.name for bug in report.bugs),
        found_line=None if place is None else place.line,
        seconds=seconds,
        proofs=_proofs(report),
        fixed=bool(report.fixes) and not report.unfixed,
        difference=difference,
        diff="".join(fix.diff for fix in report.fixes or ()),
    )


def _difference_from_base(mutant: Mutant, report: Report, folder: Path) -> float:
    """Return how far the outputs of a fixed mutant differ from those of its base; 0 without a fix."""
    if not report.fixes:
        return 0.0
    path = folder / f"fixed_{mutant.base}.py"
    path.write_text(report.fixes[-1].after)
    base = load(BASES / f"{mutant.base}.py")
    return largest_difference(base, load(path), OPTIONS[mutant.base])


def judge_correct(name: str) -> Verdict:
    """Check one correct attention."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target, options = CORRECT[name]()
    start = time.process_time()
    try:
        report = check(target, **options)
    except HeedfulError as error:
        return _verdict_without_check(name, "", (), error)
    return Verdict(
        name=name,
        expected="",
        accepted=(),
        line=None,
        found=tuple(bug.name for bug in report.bugs),
        found_line=None,
        seconds=time.process_time() - start,
        proofs=_proofs(report),
    )


def _proofs(report: Report) -> tuple[str, ...]:
    return tuple(f"{bug.name}: {bug.proof} [{bug.place and bug.place.line}]" for bug in report.bugs)


def _verdict_without_check(
    name: str, bug: str, accepted: tuple[str, ...], error: HeedfulError
) -> Verdict:
    """Return the verdict on a target that could not be checked."""
    return Verdict(name, bug, accepted, None, ("not checked",), None, 0.0, (str(error),))


def measure(only: str = "", fixes: bool = False) -> list[Verdict]:
    """Check everything whose base, bug or name contains a text, in several processes, with fixes if asked for."""
    mutants = [n for n, mutant in enumerate(MUTANTS) if only in f"{mutant.base} {mutant.bug}"]
    names = [name for name in CORRECT if only in name]
    context = multiprocessing.get_context("spawn")
    verdicts: list[Verdict] = []
    with context.Pool(WORKERS) as pool:
        for verdict in chain(
            pool.imap(partial(judge_mutant, fixes=fixes), mutants, chunksize=4),
            pool.imap(judge_correct, names),
        ):
            verdicts.append(verdict)
            print(end="\r" + verdict.complaint() + (verdict.fix_complaint() if fixes else ""))
            print(end=f"\r{len(verdicts)} of {len(mutants) + len(names)}", flush=True)
    print()
    return verdicts


# --- the page ----------------------------------------------------------------------------------------


def page(verdicts: Sequence[Verdict], fixes: bool = False) -> str:
    """Return the figures, the confusion matrix and every miss as Markdown."""
    mutants = [verdict for verdict in verdicts if verdict.expected]
    correct = [verdict for verdict in verdicts if not verdict.expected]
    misses = [
        f"- {verdict.expected}, `{verdict.name}`" for verdict in mutants if not verdict.detected
    ]
    alarms = [
        f"- {verdict.name}: {', '.join(verdict.found)}" for verdict in correct if verdict.found
    ]
    parts = [
        "# How well `heedful check` finds bugs",
        "`make conformance` writes this page; do not edit it. Each mutant is a correct attention from\n"
        "`tests/conformance/corpus/bases/` with one small edit from `tests/conformance/corpus/mutants.py`.\n"
        "The check is given only its class and what its user would state, such as `causal=True`.",
        _figures(mutants, correct),
        "## Confusion matrix",
        "Each row is a bug, with the number of its mutants in brackets. The last column names what the check reported\n"
        "first when it missed the bug.",
        _confusion_matrix(mutants),
        "## Bases",
        _bases(mutants),
        "## Missed bugs",
        "\n".join(misses or ["None."]),
        "## False alarms",
        "\n".join(alarms or ["None."]),
        *(_fixes(mutants) if fixes else ()),
        "## Correct attentions",
        "\n".join(f"- {verdict.name}" for verdict in correct),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(mutants: Sequence[Verdict], correct: Sequence[Verdict]) -> str:
    bugs = {verdict.expected for verdict in mutants}
    on_one_line = [verdict for verdict in mutants if verdict.line is not None]
    verdicts = [*mutants, *correct]
    slowest = max(verdicts, key=lambda verdict: verdict.seconds)
    middle = median(verdict.seconds for verdict in verdicts)
    rows = {
        "mutants": f"{len(mutants)}, of {len(bugs)} bugs, on {len(OPTIONS)} bases",
        "bug reported": _share([verdict.detected for verdict in mutants]),
        "bug reported, and nothing else": _share([verdict.right for verdict in mutants]),
        "right line, of bugs on one line": _share([verdict.line_right for verdict in on_one_line]),
        "correct attentions": len(correct),
        "false alarms": sum(bool(verdict.found) for verdict in correct),
        "processor seconds per check": f"median {middle:.2f}, maximum {slowest.seconds:.2f}",
        "the slowest": slowest.name,
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _confusion_matrix(mutants: Sequence[Verdict]) -> str:
    lines = ["| bug | reported | otherwise |", "|---|--:|---|"]
    for bug in dict.fromkeys(verdict.expected for verdict in mutants):
        verdicts = [verdict for verdict in mutants if verdict.expected == bug]
        misses = [verdict for verdict in verdicts if not verdict.detected]
        others = Counter(miss.found[0] if miss.found else "nothing" for miss in misses)
        named = ", ".join(f"{name} {count}" for name, count in others.most_common())
        lines.append(f"| {bug} ({len(verdicts)}) | {len(verdicts) - len(misses)} | {named} |")
    return "\n".join(lines)


def _bases(mutants: Sequence[Verdict]) -> str:
    lines = ["| base | mutants | bug reported |", "|---|--:|--:|"]
    for base in dict.fromkeys(verdict.name.split(":")[0] for verdict in mutants):
        verdicts = [verdict for verdict in mutants if verdict.name.startswith(f"{base}:")]
        detected = sum(verdict.detected for verdict in verdicts)
        lines.append(f"| {base} | {len(verdicts)} | {detected} |")
    return "\n".join(lines)


def _fixes(mutants: Sequence[Verdict]) -> list[str]:
    """Return the section about fixes."""
    on_one_line = [verdict for verdict in mutants if verdict.line is not None]
    fixed = [verdict for verdict in mutants if verdict.fixed]
    wrong = [verdict for verdict in fixed if not verdict.difference <= ROUNDING]
    lines = ["| bug | on one line | fixed | on several lines | fixed |", "|---|--:|--:|--:|--:|"]
    for bug in dict.fromkeys(verdict.expected for verdict in mutants):
        counts: list[int] = []
        for one_line in (True, False):
            group = [v for v in mutants if v.expected == bug and (v.line is not None) == one_line]
            counts += [len(group), sum(verdict.fixed for verdict in group)]
        lines.append(f"| {bug} | {' | '.join(str(count) for count in counts)} |")
    return [
        "## Fixes",
        "`heedful check --fix` shows a diff only if it was applied and checked again. Here each fixed mutant is also\n"
        "compared with its base: plain, padded and with a cache, on the same inputs and weights. The decoder computes\n"
        "its scores in float32, so that differences below 1e-6 are rounding.",
        "| | |\n|---|---|\n"
        f"| fixed, of bugs on one line | {_share([verdict.fixed for verdict in on_one_line])} |\n"
        f"| fixed, of all | {_share([verdict.fixed for verdict in mutants])} |\n"
        f"| equal to the base within {ROUNDING:g}, of fixed | {len(fixed) - len(wrong)} of {len(fixed)} |",
        "\n".join(lines),
        "### Fixes that differ from the base",
        "\n".join(
            [f"- {v.expected}, `{v.name}`: by {v.difference:.2g}" for v in wrong] or ["None."]
        ),
        "### Bugs on one line without a fix",
        "\n".join([f"- {v.expected}, `{v.name}`" for v in on_one_line if not v.fixed] or ["None."]),
    ]


def _share(flags: Sequence[bool]) -> str:
    return f"{sum(flags)} of {len(flags)}, {sum(flags) / max(len(flags), 1):.1%}"


def main() -> None:
    """Measure the corpus, or a part of it, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="also write the results to this Markdown file")
    parser.add_argument(
        "--only", default="", help="check only what contains this text in its base, bug or name"
    )
    parser.add_argument("--fixes", action="store_true", help="look for fixes, too")
    options = parser.parse_args()
    planted = page(measure(options.only, options.fixes), options.fixes)
    parts = [planted, upstream_section(measure_upstream(options.only))]
    results = "\n".join(parts) + "\n"
    print(results)
    if options.page is not None:
        options.page.write_text(results)


if __name__ == "__main__":
    main()
