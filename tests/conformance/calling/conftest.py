"""The fixture that plants a bug in a module of a file of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
import torch

from heedful import check
from heedful.conformance.calling.loading import loaded


@pytest.fixture
def bugs_of(tmp_path: Path) -> Iterator[Callable[[ModuleType, str, str, str], list[str]]]:
    """Return a function that names the bugs of a class of a file in which one text of that class is replaced."""
    with ExitStack() as stack:

        def named(file: ModuleType, name: str, right: str, wrong: str) -> list[str]:
            source = Path(file.__file__ or "").read_text()
            start = source.index(f"class {name}(")
            assert right in source[start:]
            path = tmp_path / "edited.py"
            path.write_text(source[:start] + source[start:].replace(right, wrong, 1))
            torch.manual_seed(0)
            target = stack.enter_context(loaded(f"{path}:{name}"))
            return [bug.name for bug in check(target()).bugs]

        yield named
