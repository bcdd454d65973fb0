"""Source code as highlighted HTML, line by line, for pages that show values beside the lines that made them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

STYLE: str = """
.k, .kn, .kc, .ow { color: var(--py-keyword, #8839b0); }
.nf, .nc, .fm { color: var(--py-name, #1f5fa8); font-weight: 600; }
.s1, .s2, .sd, .sa { color: var(--py-string, #2c7a4b); } .mi, .mf { color: var(--py-number, #a1480c); }
.c1 { color: var(--py-comment, #667080); font-style: italic; }
"""
"""The CSS of highlighted code. Pages may set the colors that it names as variables."""


@dataclass(frozen=True)
class Listing:
    """Lines of a file.

    Attributes:
        title: The file and the function, as a heading.
        file: The file.
        lines: Line numbers, each with its line as HTML.
    """

    title: str
    file: str
    lines: tuple[tuple[int, Markup], ...]


def highlighted(source: str, first: int = 1) -> tuple[tuple[int, Markup], ...]:
    """Return the lines of source code as HTML, each with its number.

    Args:
        source: Python code, or a part of it.
        first: The number of its first line.

    Examples:
        >>> highlighted("x = 1")
        ((1, Markup('<span class="n">x</span> <span class="o">=</span> <span class="mi">1</span>')),)
    """
    lexer = PythonLexer(stripnl=False, ensurenl=False)
    lines = highlight(source, lexer, HtmlFormatter(nowrap=True)).split("\n")
    lines = lines[: source.count("\n") + 1]  # the formatter ends with a line break of its own
    return tuple((first + i, Markup(line)) for i, line in enumerate(lines))


def listings_of(places: Iterable[tuple[str, int]]) -> tuple[Listing, ...]:
    """Return the functions that contain lines of code, each once and without its docstring, in order of appearance.

    Args:
        places: Files and line numbers. A line outside every function is listed alone.
    """
    found: dict[tuple[str, int], Listing] = {}
    for file, line in dict.fromkeys(places):
        lines = [text.rstrip("\r\n") for text in linecache.getlines(file)]
        if not 1 <= line <= len(lines):
            continue
        name, first, last, docstring = _function_around("\n".join(lines), line)
        if (file, first) in found:
            continue
        source = "\n".join(lines[first - 1 : last])
        shown = tuple(it for it in highlighted(source, first) if it[0] not in docstring)
        title = " · ".join(part for part in (_short(file), name) if part)
        found[file, first] = Listing(title, file, shown)
    return tuple(found.values())


def _short(file: str) -> str:
    """Return a file with its folder; a cell of a notebook has a name that only Jupyter knows."""
    if file.startswith("<") or "ipykernel" in file:
        return "this notebook"
    return "/".join(PurePath(file).parts[-2:])


def _function_around(source: str, line: int) -> tuple[str, int, int, Sequence[int]]:
    """Return the name, the first and last line, and the docstring's lines of the innermost function around a line."""
    try:
        tree = ast.parse(source)
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # such as a file that has changed
        return "", line, line, ()
    found = ("", line, line, ())
    for name, definition in _definitions(tree, ""):
        last = definition.end_lineno or definition.lineno
        if definition.lineno <= line <= last:
            found = (name, definition.lineno, last, _docstring_lines(definition))
    return found


def _definitions(
    node: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name, outer ones first."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _definitions(child, name)


def _docstring_lines(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> Sequence[int]:
    if ast.get_docstring(definition, clean=False) is None:
        return ()
    docstring = definition.body[0]
    return range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
