"""The origin of a target: the file that defines it, which can be loaded again with an edited source."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from heedful.errors import ArgumentError

TEMPORARY = "_heedful_fixed_"


@dataclass(frozen=True)
class Origin:
    """The file that defines a target.

    Attributes:
        module: The module that was imported from it.
        file: The path of the file.
        name: The dotted name of the target in the module.
        text: The source.
    """

    module: ModuleType
    file: str
    name: str
    text: str

    @contextmanager
    def edited(self, text: str) -> Iterator[tuple[Any, str]]:
        """Yield the target as another source defines it, and the temporary file that holds this source.

        The source is imported as a neighbor of the original module, so that relative imports work, and nothing is
        written to the folder of the original.
        """
        package = self.module.__package__
        path = Path(self.file)
        stem = f"{TEMPORARY}{path.stem}"
        name = f"{package}.{stem}" if package else stem
        with TemporaryDirectory(prefix="heedful-") as folder:
            copy = Path(folder, path.name)
            copy.write_text(text, encoding="utf-8", newline="")
            spec = importlib.util.spec_from_file_location(name, copy)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
                value: Any = module
                for part in self.name.split("."):
                    value = getattr(value, part)
                yield value, str(copy)
            finally:
                sys.modules.pop(name, None)


def origin_of(target: Any) -> Origin:
    """Return the origin of a target.

    Raises:
        ArgumentError: The target is no class, function or global instance of a file that can be read.
    """
    definition = target if inspect.isclass(target) or inspect.isfunction(target) else type(target)
    module = sys.modules.get(definition.__module__)
    file = None if module is None else getattr(module, "__file__", None)
    name = _name_in(module, target)
    if module is None or file is None or name is None or not Path(file).is_file():
        raise _unfixable(f"{definition.__qualname__} of {definition.__module__}")
    if module.__name__.rpartition(".")[2].startswith(TEMPORARY):
        raise _unfixable(f"{definition.__qualname__}, while a fix of it is being proved")
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            text = stream.read()
    except UnicodeDecodeError as error:
        raise _unfixable(f"{file}, which is not in UTF-8") from error
    return Origin(module, file, name, text)


def _name_in(module: ModuleType | None, target: Any) -> str | None:
    """Return the dotted name by which a module can be asked for a target."""
    if inspect.isclass(target) or inspect.isfunction(target):
        return None if "<locals>" in target.__qualname__ else target.__qualname__
    names = (
        [] if module is None else [name for name, held in vars(module).items() if held is target]
    )
    return names[0] if names else None


def _unfixable(received: str) -> ArgumentError:
    return ArgumentError(
        "fix",
        expected="a target that a file of Python code defines at its top level, so that it can be defined again",
        received=received,
        remedy="Save the code to a file and check the class there, or check without fix=True.",
    )
