"""The location of a source line, written as a user would type it."""

from __future__ import annotations

import sys
from pathlib import Path

from heedful.conformance.recording.source import SourceLine


def location_of(place: SourceLine) -> str:
    """Return a line as "file:line", with the path as short as possible; in a notebook, as "cell In[3]:line"."""
    return f"{_cell(place.file) or short_path(place.file)}:{place.line}"


def _cell(file: str) -> str | None:
    """Return the cell of a notebook that was run from a temporary file; None if a file is none of a notebook's."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    name = None if shell is None else shell.compile.format_code_name(file)
    return None if name is None else f"cell {name[1]}"


def short_path(file: str) -> str:
    """Return a path relative to the working folder or to a folder of packages, if it lies in one of them."""
    path = Path(file)
    folders = sorted(map(Path, filter(None, sys.path)), key=lambda folder: -len(folder.parts))
    for folder in (Path.cwd(), *folders):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file
