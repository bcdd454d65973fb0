"""Measures `heedful check` on the attention modules of published packages, each in a process of its own.

PYTHONPATH=tests/conformance .venv/bin/python -m packages.measure --page docs/conformance-packages.md
PYTHONPATH=tests/conformance .venv/bin/python -m packages.measure --only timm                          # a part
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from heedful.conformance import check
from heedful.errors import ArgumentError
from packages.capture import Case
from packages.page import LEFT_OUT, Result, listing, page
from packages.sources import all_sources, cases_of

SECONDS = 120
MEMORY = 8 * 2**30
"""The bytes that a worker may allocate, and each process in which it checks a module."""
WORKERS = 2


def checked(case: Case) -> Result:
    """Check one module with its captured arguments, or with guessed ones."""
    torch.set_num_threads(1)
    call = "guessed" if case.module is None else "captured"
    start = time.perf_counter()
    try:
        report = check(
            case.target, module=case.module, example=case.example, arguments=case.arguments
        )
    except ArgumentError as error:
        return Result(case.name, case.source, call, "not callable", str(error))
    findings = tuple(
        (
            finding.level,
            finding.name,
            finding.proof,
            ""
            if finding.place is None
            else f"{Path(finding.place.file).name}:{finding.place.line}",
        )
        for finding in report.findings
    )
    seconds = time.perf_counter() - start
    return Result(case.name, case.source, call, "checked", "", findings, seconds)


def in_own_process(case: Case) -> Result:
    """Check one module in a forked process with a time limit, unless it is left out."""
    if case.left_out:
        return Result(case.name, case.source, "", LEFT_OUT, case.left_out)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(SECONDS)
        try:
            outcome = asdict(checked(case))
        except BaseException as error:  # noqa: BLE001 - whatever the check lets through is a result, too
            text = "".join(traceback.format_exception(error)[-2:])
            outcome = asdict(Result(case.name, case.source, "", "checker failed", text))
        with os.fdopen(writing, "w") as pipe:
            json.dump(outcome, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        return Result(case.name, case.source, "", "not finished", f"within {SECONDS} s")
    return Result(**json.loads(answer))


def results_of(source: str, out: Path | None, seen: MutableMapping[str, str]) -> list[Result]:
    """Return the results of the modules that a source is the first to yield, and append each to a file.

    Args:
        source: The name of the source.
        out: The file; None for none.
        seen: The sources of the modules that were checked so far, by name, which the workers share.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    try:
        cases = cases_of(source, frozenset(seen.keys()))
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return [_written(Result("", source, "", "not built", reason), out)]
    new = (it for it in cases if it.left_out or seen.setdefault(it.name, source) == source)
    return [_written(in_own_process(case), out) for case in new]


def _written(result: Result, out: Path | None) -> Result:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
    return result


def measure(only: str, out: Path | None, workers: int) -> Iterator[Result]:
    """Yield one result for each class in the sources that match a pattern, and one for each source that fails.

    Classes are built alone only if no model runs them.
    """
    sources = [source for source in all_sources() if re.search(only, source)]
    alone = [source for source in sources if source.startswith("classes:")]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(workers, maxtasksperchild=40) as pool:
        task = partial(results_of, out=out, seen=manager.dict())
        for part in ([source for source in sources if source not in alone], alone):
            yield from chain.from_iterable(pool.imap(task, part))


def read(files: Sequence[Path]) -> Iterator[Result]:
    """Yield the results of earlier runs, the first one for each class; what was captured comes before the rest."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    seen: set[str] = set()
    for row in sorted(rows, key=lambda row: row["call"] == "guessed"):
        if row["name"] not in seen:
            row["findings"] = tuple(map(tuple, row["findings"]))
            yield Result(**row)
        if row["name"]:
            seen.add(row["name"])


def main() -> None:
    """Measure everything, or a part, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only sources whose names match this pattern")
    parser.add_argument("--json", type=Path, help="append each result to this file")
    parser.add_argument(
        "--read", type=Path, nargs="+", help="read earlier results instead of measuring"
    )
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many modules at a time")
    parser.add_argument("--page", type=Path, help="write the results to this Markdown file")
    parser.add_argument("--list", type=Path, help="write what became of each module to this file")
    options = parser.parse_args()
    results = []
    for result in (
        read(options.read) if options.read else measure(options.only, options.json, options.workers)
    ):
        results.append(result)
        print(f"{result.source} {result.name} {result.status} {result.seconds:.1f} s", flush=True)
        for name, place, proof in result.bugs:
            print(f"     {name} {place} {proof[:240]}")
    if options.page is not None:
        options.page.write_text(page(results))
    if options.list is not None:
        options.list.write_text(listing(results))


if __name__ == "__main__":
    main()
