"""The results of the packages as a page and as a list."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from pathlib import Path
from statistics import median

from packages.discovery import Found, find_attentions
from packages.sources import NOT_INSTALLED, PACKAGES, SKIPPED

LEFT_OUT = "left out"
CONFIRMED = Path(__file__).with_name("confirmed.toml")


@dataclass(frozen=True)
class Result:
    """What became of one attention module.

    Attributes:
        name: The full name of its class; "" if its source failed.
        source: The model or the package that it came from.
        call: "captured" or "guessed": whose arguments it was called with.
        status: "checked", "not callable", "not built", "not finished", "checker failed" or "left out".
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

    @property
    def package(self) -> str:
        """The package that defines the class."""
        return self.name.partition(".")[0]

    @property
    def bugs(self) -> list[tuple[str, str, str]]:
        """The name, line and proof of each finding at level "bug"."""
        return [
            (name, place, proof) for level, name, proof, place in self.findings if level == "bug"
        ]


def page(results: Sequence[Result]) -> str:
    """Return the figures, the genuine bugs and every failure by name, as Markdown."""
    confirmed = _confirmed()
    modules = [result for result in results if result.name and result.status != LEFT_OUT]
    genuine, alarms = [], []
    for result in modules:
        for name, place, proof in result.bugs:
            known = confirmed.get((result.name, name))
            line = f"- `{result.name}`, {place}: {name}. {known or proof}"
            (alarms if known is None else genuine).append(line)
    failed = [
        f"- `{result.name}`: {result.status}: {_first_line(result.reason)}"
        for result in modules
        if result.status != "checked"
    ]
    parts = [
        "# `heedful check` on published packages",
        "`make conformance-packages` writes this page; do not edit it. Each module is called with the inputs\n"
        "that it gets in a small random model of its package, or is built alone and called with guessed inputs.\n"
        "`tests/conformance/packages/modules.tsv` lists every module that was found, and why some\n"
        "were left out.",
        _table(modules, confirmed),
        "## Genuine bugs",
        "\n".join(genuine or ["None."]),
        "## False alarms",
        "\n".join(alarms or ["None."]),
        "## Not callable",
        "\n".join(failed or ["None."]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(modules: Sequence[Result], confirmed: Mapping[tuple[str, str], str]) -> str:
    lines = [
        "| package | modules | captured | not callable | with genuine bugs | with false alarms | median seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    packages = sorted({result.package for result in modules})
    for package in [*packages, ""]:
        own = [result for result in modules if package in ("", result.package)]
        unknown = [[bug for bug in it.bugs if (it.name, bug[0]) not in confirmed] for it in own]
        known = [[bug for bug in it.bugs if (it.name, bug[0]) in confirmed] for it in own]
        seconds = [result.seconds for result in own if result.status == "checked"]
        cells = (
            f"{package} {_version(package)}" if package else "all",
            len(own),
            sum(result.call == "captured" for result in own),
            sum(result.status != "checked" for result in own),
            sum(map(bool, known)),
            sum(map(bool, unknown)),
            f"{median(seconds or [0.0]):.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def listing(results: Sequence[Result]) -> str:
    """Return one line for each module that was found: its class, what became of it, and why it was left out."""
    checked_last = sorted(results, key=lambda result: result.status != LEFT_OUT)
    by_name = {result.name: result for result in checked_last if result.name}
    lines = ["class\tstatus\treason"]
    for package in PACKAGES:
        found = find_attentions(package, SKIPPED)
        lines += _lines_of(found, by_name)
    lines += [f"{name}\t{LEFT_OUT}\t{reason}" for name, reason in NOT_INSTALLED.items()]
    return "\n".join(lines) + "\n"


def _lines_of(found: Found, by_name: Mapping[str, Result]) -> list[str]:
    lines = []
    for name in found.classes:
        result = by_name.get(name)
        if result is None:
            lines.append(f"{name}\t{LEFT_OUT}\tno small model of ours runs it")
        else:
            lines.append(f"{name}\t{result.status}\t{_first_line(result.reason) or result.source}")
    lines += [f"{name}\t{LEFT_OUT}\t{reason}" for name, reason in found.left_out.items()]
    return lines


def _first_line(text: str) -> str:
    return text.replace("\t", " ").partition("\n")[0][:300]


def _version(package: str) -> str:
    """Return the version of the distribution that provides a package."""
    distributions = packages_distributions().get(package, [])
    return version(distributions[0]) if distributions else ""


def _confirmed() -> dict[tuple[str, str], str]:
    """Return the proofs of the genuine bugs, by class and finding."""
    bugs = tomllib.loads(CONFIRMED.read_text())["bug"]
    return {(bug["class"], bug["finding"]): bug["proof"] for bug in bugs}
