"""The location of a source line, written as a user would type it."""

from __future__ import annotations

import sys
from pathlib import Path

from heedful.conformance.recording.source import SourceLine


def location_of(place: SourceLine) -> str:
    """Return a line as "file:line", with the path as short as possible."""
    return f"{short_path(place.file)}:{place.line}"


def short_path(file: str) -> str:
    """Return a path relative to the working folder or to a folder of packages, if it lies in one of them."""
    path = Path(file)
    folders = sorted(map(Path, filter(None, sys.path)), key=lambda folder: -len(folder.parts))
    for folder in (Path.cwd(), *folders):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file
