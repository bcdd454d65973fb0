"""The textbook's code without its docstrings, which the reference has."""

import ast
from pathlib import Path

import heedful.textbook

TEXTBOOK = Path(heedful.textbook.__file__).parent


def write_textbook(folder: Path) -> None:
    """Write each module of the textbook into a folder, without docstrings."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in TEXTBOOK.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        (folder / path.name).write_text(without_docstrings(source), encoding="utf-8")


def without_docstrings(source: str) -> str:
    """Return source code without the docstrings of its functions and classes.

    >>> print(without_docstrings("def f():\\n    'Return one.'\\n    return 1"))
    def f():
        return 1
    """
    removed: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            docstring = node.body[0]
            removed |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), 1)
    return "\n".join(line for number, line in lines if number not in removed)
