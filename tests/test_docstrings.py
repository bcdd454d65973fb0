"""Docstrings: every example runs, and everything public documents its arguments, result and errors."""

import dataclasses
import doctest
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful import intervals, scores

PACKAGE = Path(heedful.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PUBLIC = {name: getattr(heedful, name) for name in heedful.__all__} | {
    "intervals.Intervals": intervals.Intervals,
    "scores.alibi": scores.alibi,
    "scores.alibi_slopes": scores.alibi_slopes,
    "scores.soft_cap": scores.soft_cap,
    "scores.softmax_with_sinks": scores.softmax_with_sinks,
}
FUNCTIONS = {name: public for name, public in PUBLIC.items() if inspect.isfunction(public)}
CLASSES = {name: public for name, public in PUBLIC.items() if inspect.isclass(public)}
NEVER_RAISES = {"scores.soft_cap", "scores.softmax_with_sinks"}


def modules_with_examples() -> list[str]:
    """Return the names of heedful's modules whose source contains an example."""
    paths = (path for path in PACKAGE.rglob("*.py") if ">>>" in path.read_text(encoding="utf-8"))
    parts = (path.relative_to(PACKAGE.parent).with_suffix("").parts for path in paths)
    return sorted(".".join(part for part in names if part != "__init__") for names in parts)


def section(docstring: str, title: str) -> str:
    """Return the indented text below a title such as "Args:"; empty if there is no such section."""
    found = re.search(rf"^{title}:\n((?:[ \t]+.*\n?|\n)+)", docstring, flags=re.MULTILINE)
    return found.group(1) if found else ""


def documented_names(docstring: str) -> set[str]:
    """Return the names that the sections Args and Attributes describe; one entry may describe several names."""
    entries = section(docstring, "Args") + section(docstring, "Attributes")
    heads = re.findall(r"^ {4}([*\w, ]+):", entries, flags=re.MULTILINE)
    return {name.strip(" *") for head in heads for name in head.split(",")}


def parameters(function: Callable[..., object]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "cls"}


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, attempted = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert attempted > 0
    assert failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_an_example(name):
    assert ">>>" in (inspect.getdoc(PUBLIC[name]) or "")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_document_arguments_result_and_errors(name):
    function = FUNCTIONS[name]
    docstring = inspect.getdoc(function) or ""
    assert parameters(function) <= documented_names(docstring)
    returns = inspect.signature(function).return_annotation
    assert (
        returns in (None, "None") or section(docstring, "Returns") or section(docstring, "Yields")
    )
    assert name in NEVER_RAISES or section(docstring, "Raises")


@pytest.mark.parametrize("name", CLASSES)
def test_public_classes_document_their_fields_and_errors(name):
    public = CLASSES[name]
    docstring = inspect.getdoc(public) or ""
    if dataclasses.is_dataclass(public):
        fields = {field.name for field in dataclasses.fields(public)}
        assert {field for field in fields if not field.startswith("_")} <= documented_names(
            docstring
        )
    elif hasattr(public, "_fields"):
        assert set(public._fields) <= documented_names(docstring)
    elif "__init__" in vars(public):
        assert parameters(public.__init__) <= documented_names(docstring)
    if "__post_init__" in vars(public):
        assert section(docstring, "Raises")
