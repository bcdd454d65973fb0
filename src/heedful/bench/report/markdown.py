"""The report as docs/benchmarks.md."""

from __future__ import annotations

import itertools

from heedful.bench import wording
from heedful.bench.judging import OPEN
from heedful.bench.report import Report
from heedful.bench.running import Found

HEAD = """\
# Benchmarks

Written by `make bench`, which is `heedful bench --page docs/benchmarks.md`; do not edit.

Times are medians of runs that take turns in one process (other frameworks: in one of their own, on as many threads).
“Times as fast” is the other's median divided by ours; in brackets the quartiles of single turns. Before it is timed,
every result and gradient is held to float64: its error may be 1.5 times that of PyTorch's kernel on the same inputs;
the column “error” is that factor, the largest of output and gradients. “Of peak” is the share of the machine's limit,
measured in the same run, that the needed work reaches.
"""


def as_markdown(report: Report) -> str:
    """Machine, peaks, every case with what it must reach and what it did, then what was missed."""
    parts = [HEAD, _machine(report)]
    for group, rows in itertools.groupby(report.found, key=lambda found: found.case.group):
        parts.append(f"## {group[0].upper()}{group[1:]}\n\n{_table(list(rows))}")
    parts.append(_faults(report))
    if report.left_out:
        lines = "".join(f"- {peer}: {why}\n" for peer, why in report.left_out.items())
        parts.append(f"## Not compared\n\n{lines}")
    return "\n".join(parts)


def _machine(report: Report) -> str:
    machine = report.machine
    ours = machine.isa or f"missing: {machine.missing}"
    rows = {
        "processor": machine.processor,
        "cores, threads": f"{machine.cores}, {machine.threads}",
        "torch": machine.torch,
        "our kernel": ours,
        **{
            f"peak: {wording.PEAKS[name]}": wording.rate(name, limit)
            for name, limit in report.limits.items()
        },
    }
    lines = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    return f"## Machine\n\n| | |\n|---|---|\n{lines}"


def _table(rows: list[Found]) -> str:
    settings = {found.case.name.rpartition("-")[0]: _without_dtype(found) for found in rows}
    what = "".join(f"- `{name}`: {setting}\n" for name, setting in settings.items())
    head = (
        "| case | against | ours ms | theirs ms | times as fast | required | | of peak | error |\n"
    )
    head += "|---|---|--:|--:|--:|--:|---|--:|--:|\n"
    return f"{what}\n{head}{''.join(map(_lines, rows))}"


def _without_dtype(found: Found) -> str:
    isa = f", {found.case.isa}" if found.case.isa else ""
    return f"{found.setting}{isa}"


def _lines(found: Found) -> str:
    """What is said once of a case stands in its first line."""
    name, share, error = f"`{found.case.name}`", wording.share(found), _error(found)
    lines = ""
    for row in wording.rows(found):
        cells = (name, row.against, row.ours, row.theirs, row.reached, row.required, row.verdict)
        lines += f"| {' | '.join((*cells, share, error))} |\n"
        name = share = error = ""
    return lines


def _error(found: Found) -> str:
    """Our error divided by the baseline's, the largest; '' where there is no baseline with an error."""
    factors = [check.error / check.baseline for check in found.checks if check.baseline > 0]
    return f"{max(factors):.2f}" if factors else ""


def _faults(report: Report) -> str:
    lines = [fault for found in (*report.wrong, *report.missed) for fault in wording.faults(found)]
    unmeasured = [
        f"{found.case.name}: not measured: {judgement.measured}"
        for found in report.found
        for judgement in wording.beside(found)
        if judgement.verdict == OPEN
    ]
    text = "".join(f"- {line}\n" for line in lines + unmeasured)
    return f"## Missed\n\n{text or 'Nothing: every number required was reached.'}"
