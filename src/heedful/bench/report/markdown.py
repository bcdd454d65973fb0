"""The report as a Markdown page, such as docs/benchmarks.md."""

from __future__ import annotations

import itertools

from heedful.bench.peaks import DESCRIPTIONS
from heedful.bench.report.report import BenchReport
from heedful.bench.report.rows import (
    faults,
    judgements_without_peer,
    measured_title,
    rate,
    share_of_peak,
    table_rows,
)
from heedful.bench.results import NOT_MEASURED, CaseResult

HEAD: str = """\
# Benchmarks

This page is written by `heedful bench --page`; do not edit it.

Times are medians of runs that take turns in one process. Other frameworks run in a process of their own, with the
same number of threads. “Times as fast” is the other's median divided by ours, with the quartiles of single turns in
brackets. Before anything is timed, every result and gradient is compared with float64: its error may be 1.5 times
that of PyTorch's kernel on the same inputs. The column “error” shows this factor, the largest of output and gradients.
“Of peak” is the share of the machine's limit that the necessary work reaches. The limits are measured in the same run.
"""
JUDGED: str = """\
“Required” is the target that the case should reach, from the file that `--targets` names.
"""


def as_markdown(report: BenchReport) -> str:
    """Return the whole report as Markdown: the machine, every case, and the targets that were missed."""
    parts = [HEAD, *((JUDGED,) if report.judged else ()), _machine(report)]
    for group, results in itertools.groupby(report.results, key=lambda result: result.case.group):
        table = _table(list(results), judged=report.judged)
        parts.append(f"## {group[0].upper()}{group[1:]}\n\n{table}")
    parts += _faults(report)
    if report.not_installed:
        lines = "".join(f"- {peer}: {reason}\n" for peer, reason in report.not_installed.items())
        parts.append(f"## Not compared\n\n{lines}")
    return "\n".join(parts)


def _machine(report: BenchReport) -> str:
    machine = report.machine
    rows = {
        "processor": machine.processor,
        "cores, threads": f"{machine.cores}, {machine.threads}",
        "torch": machine.torch,
        "our kernel": machine.isa or f"missing: {machine.missing}",
        **{f"peak: {DESCRIPTIONS[name]}": rate(name, peak) for name, peak in report.peaks.items()},
    }
    lines = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return f"## Machine\n\n| | |\n|---|---|\n{lines}"


def _table(results: list[CaseResult], *, judged: bool) -> str:
    workloads = {result.case.name.rpartition("-")[0]: _workload(result) for result in results}
    legend = "".join(f"- `{name}`: {workload}\n" for name, workload in workloads.items())
    judging = ("required | | ", "--:|---|") if judged else ("", "")
    measured = measured_title(results)
    head = f"| case | against | ours ms | theirs ms | {measured} | {judging[0]}of peak | error |\n"
    head += f"|---|---|--:|--:|--:|{judging[1]}--:|--:|\n"
    return f"{legend}\n{head}{''.join(_lines(result, judged=judged) for result in results)}"


def _workload(result: CaseResult) -> str:
    """Describe the workload without its dtype."""
    isa = f", {result.case.isa}" if result.case.isa else ""
    return f"{result.workload}{isa}"


def _lines(result: CaseResult, *, judged: bool) -> str:
    """Return the rows of a case. What they have in common stands in the first one."""
    name, share, error = f"`{result.case.name}`", share_of_peak(result), _error(result)
    lines = ""
    for row in table_rows(result):
        cells = [name, row.against, row.ours, row.theirs, row.measured]
        cells += [row.required, row.verdict] if judged else []
        lines += f"| {' | '.join((*cells, share, error))} |\n"
        name = share = error = ""
    return lines


def _error(result: CaseResult) -> str:
    """Return the largest ratio of our error to the baseline's, or '' if no baseline has an error."""
    factors = [check.error / check.baseline for check in result.checks if check.baseline > 0]
    return f"{max(factors):.2f}" if factors else ""


def _faults(report: BenchReport) -> list[str]:
    """Return the sections on wrong results and missed targets. Without targets there is no section on these."""
    wrong = "".join(f"- {fault}\n" for result in report.wrong for fault in faults(result))
    if not report.judged:
        return [f"## Wrong\n\n{wrong}"] if wrong else []
    missed = "".join(f"- {fault}\n" for result in report.missed for fault in faults(result))
    missed += "".join(
        f"- {result.case.name}: not measured: {judgement.measured}\n"
        for result in report.results
        for judgement in judgements_without_peer(result)
        if judgement.verdict == NOT_MEASURED
    )
    return [f"## Missed\n\n{wrong + missed or 'Nothing: every target was reached.'}"]
