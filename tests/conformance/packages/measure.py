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
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heedful.conformance import check
from heedful.errors import ArgumentError
from packages.capture import Case, example_of
from packages.sources import SOURCES, cases_of

SECONDS = 120
WORKERS = 2


@dataclass(frozen=True)
class Result:
    """What became of one attention module.

    Attributes:
        name: The full name of its class.
        source: The model or the arguments that it came from.
        call: "captured" or "guessed": whose arguments it was called with.
        status: "checked", "not callable", "not built" or "not finished".
        reason: Why it was not checked.
        findings: Level, name, proof and line of each finding.
        seconds: The duration of the check.
    """

    name: str
    source: str
    call: str
    status: str
    reason: str = ""
    findings: tuple[tuple[str, str, str, str], ...] = ()
    seconds: float = 0.0


def checked(case: Case) -> Result:
    """Check one module with its captured arguments, or with guessed ones."""
    torch.set_num_threads(1)
    call = "guessed" if case.args is None else "captured"
    start = time.perf_counter()
    try:
        report = check(case.module, example=example_of(case), arguments=case.arguments)
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
    """Check one module in a forked process with a time limit."""
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


def results_of(source: str, out: Path | None) -> list[Result]:
    """Return the results of all modules that a source yields, and append each to a file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        cases = cases_of(source)
    except BaseException as error:  # noqa: BLE001 - foreign code may raise anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return [_written(Result("", source, "", "not built", reason), out)]
    return [_written(in_own_process(case), out) for case in cases]


def _written(result: Result, out: Path | None) -> Result:
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
    return result


def measure(only: str, out: Path | None, workers: int) -> Iterator[Result]:
    """Yield the results of all sources whose names contain a text; the first one counts for each class."""
    sources = [source for source in SOURCES() if re.search(only, source)]
    context = multiprocessing.get_context("spawn")
    seen: set[str] = set()
    with context.Pool(workers, maxtasksperchild=40) as pool:
        for results in pool.imap(partial(results_of, out=out), sources):
            for result in results:
                if result.name not in seen:
                    yield result
                if result.name:
                    seen.add(result.name)


def main() -> None:
    """Measure everything, or a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only sources whose names match this pattern")
    parser.add_argument("--json", type=Path, help="append each result to this file")
    parser.add_argument("--workers", type=int, default=WORKERS, help="how many modules at a time")
    options = parser.parse_args()
    for result in measure(options.only, options.json, options.workers):
        bugs = [finding for finding in result.findings if finding[0] == "bug"]
        print(
            result.source,
            result.name,
            result.call,
            result.status,
            result.reason[:200].replace("\n", " "),
            f"{result.seconds:.1f}",
        )
        for _, name, proof, place in bugs:
            print(f"     {name} {place} {proof[:240]}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
