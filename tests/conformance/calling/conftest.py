"""The fixture that plants a bug in a module of a file of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[ModuleType, str, str, str], type]:
    """Return a function that returns a class of a file in which one text of that class is replaced."""

    def edit(file: ModuleType, name: str, right: str, wrong: str) -> type:
        source = Path(file.__file__ or "").read_text()
        start = source.index(f"class {name}(")
        assert right in source[start:]
        path = tmp_path / "edited.py"
        path.write_text(source[:start] + source[start:].replace(right, wrong, 1))
        spec = spec_from_file_location("edited", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["edited"] = made = module_from_spec(spec)
        spec.loader.exec_module(made)
        return getattr(made, name)

    return edit
