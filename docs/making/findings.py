"""A page for each finding of `heedful check`, from the catalogue, the exercises and the bugs of public projects."""

import ast
import contextlib
import difflib
import re
import shutil
import sys
import tempfile
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import torch

from heedful.conformance import check
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.options import literal
from heedful.conformance.practising.exercise import WITHOUT_EXERCISE, Exercise, exercises
from heedful.conformance.reporting.catalogue import CATALOGUE, CatalogueEntry
from heedful.conformance.reporting.text import finding_as_text
from making.markdown import code_block, escaped

TESTS = Path(__file__).parents[2] / "tests" / "conformance"


def write_findings(folder: Path) -> None:
    """Write the pages of all findings, and the table of them, into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for entry in CATALOGUE.values():
        (folder / f"{entry.name}.md").write_text(page_of(entry), encoding="utf-8")
    (folder / "table.txt").write_text(table(), encoding="utf-8")


def table() -> str:
    """Return all findings as a Markdown table with links to their pages."""
    rows = [
        f"| [{entry.name}](findings/{entry.name}.md) | {entry.level} | {escaped(entry.meaning)} "
        f"| {len(met_in_projects()[entry.name]) + len(met_in_packages()[entry.name]) or ''} |"
        for entry in CATALOGUE.values()
    ]
    return "\n".join(["| finding | level | what is wrong | met |", "|---|---|---|--:|", *rows])


def page_of(entry: CatalogueEntry) -> str:
    """Return the page of a finding."""
    parts = [
        f"# {entry.name}",
        f"*Level: {entry.level}.* {escaped(entry.meaning)}",
        *_example(entry),
        f"## How it is proved\n\n{escaped(entry.proof)}",
        f"## What to write instead\n\n{escaped(entry.remedy)}",
        f"## In public code\n\n{_met(entry.name)}",
    ]
    return "\n\n".join(parts) + "\n"


def _example(entry: CatalogueEntry) -> list[str]:
    exercise = exercises().get(entry.name)
    if exercise is None:
        return [f"There is no example of it. {WITHOUT_EXERCISE[entry.name]}"]
    return [
        f"## Wrong\n\n{_excerpt(exercise.source, exercise.right)}",
        f"## Right\n\n{_excerpt(exercise.right, exercise.source)}",
        "## What the check says\n\nThe check ran on the wrong code when this page was made, and found:",
        code_block(said_of(exercise), "text"),
        "You can look for the bug yourself, in a file of your own:",
        code_block(f"heedful practise {entry.name}", "sh"),
    ]


def _excerpt(source: str, other: str) -> str:
    """Return the function of a source that differs from the other one, with the differing lines emphasized."""
    lines, others = source.splitlines(), other.splitlines()
    changes = [
        (first, last)
        for tag, first, last, *_ in difflib.SequenceMatcher(None, lines, others).get_opcodes()
        if tag != "equal"
    ]
    start, stop = changes[0][0] + 1, max(changes[-1][1], changes[0][0] + 1)  # counted from 1
    first, last = _function_around(source, start)
    changed = range(start - first + 1, stop - first + 2)
    return code_block("\n".join(lines[first - 1 : last]), emphasized=changed)


def _function_around(source: str, line: int) -> tuple[int, int]:
    """Return the first and last line of the outermost function around a line, or of the source."""
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return min(spans, default=(1, len(source.splitlines())))


def said_of(exercise: Exercise) -> str:
    """Check the wrong code of an exercise, and return what the check says about its bug."""
    torch.manual_seed(0)
    arguments = {name: literal(text) for name, text in exercise.arguments.items()}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path(exercise.file).write_text(exercise.source, encoding="utf-8")
        with loaded(f"{exercise.file}:{exercise.entry}") as definition:
            report = check(definition, arguments=arguments, **exercise.options)
        (found,) = (it for it in report.findings if it.name == exercise.finding)
        return finding_as_text(found)  # with the file's name as it is seen from its folder


def _met(name: str) -> str:
    projects, packages = met_in_projects()[name], met_in_packages()[name]
    if not projects and not packages:
        return "It is in none of the bugs of public projects that we know."
    sentences = []
    if projects:
        links = ", ".join(_link(reference) for reference in projects)
        sentences.append(
            f"{len(projects)} of the {projects_in_all()} bugs of public projects that the check is measured by "
            f"are of this kind: {links}."
        )
    if packages:
        places = "\n".join(f"- `{name}`: {escaped(proof)}" for name, proof in packages)
        sentences.append(f"In published packages, the check found:\n\n{places}")
    return "\n\n".join(sentences)


def _link(reference: str) -> str:
    """Return an issue or pull request as a link, if its name says where it is."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", reference)
    if found is None:
        return escaped(reference)
    return f"[{escaped(reference)}](https://github.com/{found[1]}/issues/{found[2]})"


@cache
def met_in_projects() -> dict[str, list[str]]:
    """Return the issues of public projects by the finding that describes them."""
    met = defaultdict(list)
    for case in _cases():
        met[case.bug].append(case.reference)
    return met


def projects_in_all() -> int:
    """Return the number of bugs of public projects."""
    return len(_cases())


@cache
def _cases() -> tuple:
    sys.path.insert(0, str(TESTS))
    try:
        from upstream.held_out import HELD_OUT
        from upstream.known import KNOWN
    finally:
        sys.path.remove(str(TESTS))
    return (*KNOWN, *HELD_OUT)


@cache
def met_in_packages() -> dict[str, list[tuple[str, str]]]:
    """Return the confirmed bugs of published packages, each with its class and proof, by finding."""
    met = defaultdict(list)
    confirmed = (TESTS / "packages" / "confirmed.toml").read_text(encoding="utf-8")
    for bug in tomllib.loads(confirmed)["bug"]:
        met[bug["finding"]].append((bug["class"], bug["proof"]))
    return met
