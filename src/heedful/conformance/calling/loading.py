"""Load the target that a command line names: a class, function or instance in a file or an installed module."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from heedful.conformance.calling.isolation import unforked
from heedful.errors import ArgumentError
from heedful.reading import open_file

MAX_SUGGESTED = 20  # names in an error message
MAX_SOURCE = 1 << 24  # bytes; a hundred times the largest file of transformers
MAX_QUOTED = 200  # characters of a line in an error message
DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@contextmanager
def loaded(target: str) -> Iterator[Any]:
    """Import a target; the folder of its file stays importable as long as the block lasts.

    Args:
        target: "path/to/file.py:Name" or "package.module:Name", where Name may contain dots; without a name, the only
            nn.Module that the file defines. The file is imported, not run: `if __name__ == "__main__"` is skipped.

    Raises:
        ArgumentError: There is no such file or name, or the file cannot be imported.
    """
    location, separator, name = target.rpartition(":")
    if not separator or not DOTTED_NAME.fullmatch(name):
        location, name = target, ""
    path_before = list(sys.path)
    try:
        module = _import(location)
        yield _named(module, name, target) if name else _only_module(module, target)
    finally:
        sys.path[:] = path_before


def names_beside(target: str) -> Mapping[str, Any]:
    """Return the names that the file or module of a loaded target defines."""
    location, separator, name = target.rpartition(":")
    if not separator or not DOTTED_NAME.fullmatch(name):
        location = target
    file = str(Path(location).resolve())
    modules = [it for it in list(sys.modules.values()) if getattr(it, "__file__", None) == file]
    return vars(modules[0] if modules else sys.modules[location])


def _import(location: str) -> ModuleType:
    """Import a file or a module; both become importable from their folders."""
    path = Path(location)
    if path.suffix == ".py" or path.exists():
        try:
            open_file(path, MAX_SOURCE).close()
        except OSError as error:
            raise ArgumentError(
                "TARGET",
                expected="an existing file of Python code, or the name of a module",
                received=f"{location} ({error.strerror})",
                remedy="Write path/to/file.py:Name or package.module:Name.",
            ) from error
        return _import_file(path.resolve())
    if not DOTTED_NAME.fullmatch(location):
        raise ArgumentError(
            "TARGET",
            expected="path/to/file.py:Name or package.module:Name",
            received=repr(location),
            remedy="Name a file of Python code, or a module that can be imported.",
        )
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    return _guarded(location, lambda: importlib.import_module(location))


def _import_file(path: Path) -> ModuleType:
    """Import a file of a package under its dotted name, for its relative imports; any other under a private name."""
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    sys.path.insert(0, str(root))
    if root == path.parent:
        return _guarded(str(path), lambda: _import_alone(path))
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return _guarded(str(path), lambda: importlib.import_module(name))


def _import_alone(path: Path) -> ModuleType:
    """Import a file under a name that hides no other module."""
    name = f"_heedful_checked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not Python source: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, because dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def _guarded(location: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Import a module; an `ArgumentError` names the line of the user's code that failed."""
    try:
        with unforked():
            return load()
    except (Exception, SystemExit) as error:  # the user's code runs and may raise anything
        message = traceback.format_exception_only(error)[-1].strip()
        raise ArgumentError(
            "TARGET",
            expected="a module that can be imported",
            received=f"{message}{_failing_line(error)}",
            remedy=_remedy(error, location),
        ) from error


def _failing_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code that was being imported, or nothing."""
    if isinstance(error, SyntaxError) and error.filename:
        return f", at {error.filename}:{error.lineno}: {_quoted(error.text)}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        internal = frame.filename.startswith("<") or frame.filename == __file__
        if not internal and "importlib" not in Path(frame.filename).parts:
            return f", at {frame.filename}:{frame.lineno}: {_quoted(frame.line)}"
    return ""


def _quoted(line: str | None) -> str:
    """Return a line as far as an error message has room for it."""
    text = (line or "").strip()
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]} …"


def _remedy(error: BaseException, location: str) -> str:
    match error:
        case ModuleNotFoundError(name=name) if name and location.partition(".")[0] == name:
            return "Name a file (path/to/file.py:Name), or a module that is installed."
        case ModuleNotFoundError(name=name):
            return f"Install {name} beside heedful, or run the check in an environment that has it."
        case SystemExit():
            return 'Move the code that runs as a script below `if __name__ == "__main__":`.'
    return "Make the file importable first; running it with `python` shows the whole traceback."


def _named(module: ModuleType, name: str, target: str) -> Any:
    """Return what a dotted name refers to in a module.

    Raises:
        ArgumentError: There is no such name, or it refers to something that cannot be called.
    """
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise _no_such_name(module, value, part, target)
        value = getattr(value, part)
    if not callable(value):
        raise ArgumentError(
            "TARGET",
            expected="a class, a function, or an instance of a module",
            received=f"{target}, which is of type {type(value).__name__}",
            remedy=_suggestion(module),
        )
    return value


def _no_such_name(module: ModuleType, holder: Any, part: str, target: str) -> ArgumentError:
    similar = difflib.get_close_matches(part, dir(holder), n=3)
    hint = f" Similar names: {', '.join(similar)}." if similar else ""
    return ArgumentError(
        "TARGET",
        expected="a name that the file defines",
        received=f"{target}, but {part!r} does not exist",
        remedy=f"{_suggestion(module)}{hint}",
    )


def _only_module(module: ModuleType, target: str) -> Any:
    """Return the only nn.Module class that a file defines."""
    classes = [name for name in candidates(module) if inspect.isclass(getattr(module, name))]
    modules = [name for name in classes if issubclass(getattr(module, name), nn.Module)]
    if len(modules) == 1:
        return getattr(module, modules[0])
    raise ArgumentError(
        "TARGET",
        expected=f"a name after a colon, {target}:Name, unless the file defines exactly one nn.Module",
        received=f"{len(modules)} of them",
        remedy=_suggestion(module),
    )


def candidates(module: ModuleType) -> list[str]:
    """Return the public names that can be checked: module classes and functions defined here or below, instances."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and _can_be_checked(value, module)
    ]


def _can_be_checked(value: Any, module: ModuleType) -> bool:
    if isinstance(value, nn.Module):
        return True
    is_module_class = inspect.isclass(value) and issubclass(value, nn.Module)
    home = f"{getattr(value, '__module__', None)}."
    return (is_module_class or inspect.isfunction(value)) and home.startswith(f"{module.__name__}.")


def _suggestion(module: ModuleType) -> str:
    names = candidates(module)
    if not names:
        return "The file defines no nn.Module and no function."
    more = ", …" if len(names) > MAX_SUGGESTED else ""
    return f"Available names: {', '.join(names[:MAX_SUGGESTED])}{more}."
