"""What `heedful check` is to look at: a class, function or instance in a file or an installed module."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from heedful.errors import ArgumentError

OFFERED = 20  # names in an error
DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@contextmanager
def loaded(target: str) -> Iterator[Any]:
    """Import what a target names, with the folder of its file importable as long as the block lasts.

    Args:
        target: "path/to/file.py:Name" or "package.module:Name", where Name may have dots; without a name, the one
            nn.Module that the file defines. The file is imported, not run: `if __name__ == "__main__"` is skipped.

    Raises:
        ArgumentError: there is no such file, it cannot be imported, or it holds nothing of that name.
    """
    location, separator, name = target.rpartition(":")
    if not separator or not DOTTED.fullmatch(name):
        location, name = target, ""
    before = list(sys.path)
    try:
        module = _imported(location)
        found = _named(module, name, target) if name else _only_module(module, target)
        yield found
    finally:
        sys.path[:] = before


def _imported(location: str) -> ModuleType:
    path = Path(location)
    if path.suffix == ".py" or path.exists():
        if not path.is_file():
            raise ArgumentError(
                "TARGET",
                expected="an existing file, or the name of a module",
                received=location,
                remedy="Write path/to/file.py:Name or package.module:Name.",
            )
        return _import_file(path.resolve())
    if not DOTTED.fullmatch(location):
        raise ArgumentError(
            "TARGET",
            expected="path/to/file.py:Name or package.module:Name",
            received=repr(location),
            remedy="Name a file of Python code, or a module that can be imported.",
        )
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    return _guarded(location, lambda: importlib.import_module(location))


def _import_file(path: Path) -> ModuleType:
    """A file of a package under its dotted name, for its relative imports; any other under a private name."""
    root = path.parent
    while (root / "__init__.py").exists():
        root = root.parent
    sys.path.insert(0, str(root))
    if root != path.parent:
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        return _guarded(str(path), lambda: importlib.import_module(name))
    return _guarded(str(path), lambda: _import_alone(path))


def _import_alone(path: Path) -> ModuleType:
    """Under a name that hides no other module."""
    name = f"_heedful_checked_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no Python source: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _guarded(location: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Import, and say at which line of the user's it failed."""
    try:
        return load()
    except (
        Exception,
        SystemExit,
    ) as error:  # importing runs the user's code, which may raise anything
        said = traceback.format_exception_only(error)[-1].strip()
        raise ArgumentError(
            "TARGET",
            expected="a module that can be imported",
            received=f"{said}{_line(error)}",
            remedy=_remedy(error, location),
        ) from error


def _line(error: BaseException) -> str:
    """The innermost line of the user's own code that was being imported."""
    if isinstance(error, SyntaxError) and error.filename:
        return f", at {error.filename}:{error.lineno}: {(error.text or '').strip()}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        inner = frame.filename.startswith("<") or frame.filename == __file__
        if not inner and "importlib" not in Path(frame.filename).parts:
            return f", at {frame.filename}:{frame.lineno}: {frame.line}"
    return ""


def _remedy(error: BaseException, location: str) -> str:
    match error:
        case ModuleNotFoundError(name=name) if name and location.partition(".")[0] == name:
            return "Name a file (path/to/file.py:Name), or a module that is installed."
        case ModuleNotFoundError(name=name):
            return f"Install {name} beside heedful, or check from an environment that has it."
        case SystemExit():
            return 'Move what runs as a script below `if __name__ == "__main__":`.'
    return "Make it importable first; `python` run on the file shows the whole traceback."


def _named(module: ModuleType, name: str, target: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise _no_such_name(module, found, part, target)
        found = getattr(found, part)
    if not callable(found):
        raise ArgumentError(
            "TARGET",
            expected="a class, a function, or an instance of a module",
            received=f"{target}, which is of type {type(found).__name__}",
            remedy=_offer(module),
        )
    return found


def _no_such_name(module: ModuleType, holder: Any, part: str, target: str) -> ArgumentError:
    close = difflib.get_close_matches(part, dir(holder), n=3)
    near = f" Near it: {', '.join(close)}." if close else ""
    return ArgumentError(
        "TARGET",
        expected="a name that the file holds",
        received=f"{target}, where there is no {part!r}",
        remedy=f"{_offer(module)}{near}",
    )


def _only_module(module: ModuleType, target: str) -> Any:
    classes = [name for name in candidates(module) if inspect.isclass(getattr(module, name))]
    modules = [name for name in classes if issubclass(getattr(module, name), nn.Module)]
    if len(modules) == 1:
        return getattr(module, modules[0])
    raise ArgumentError(
        "TARGET",
        expected=f"a name behind the colon, {target}:Name, where a file does not define exactly one nn.Module",
        received=f"{len(modules)} of them",
        remedy=_offer(module),
    )


def candidates(module: ModuleType) -> list[str]:
    """The public names that may be checked: functions and classes of modules that it or its parts define, instances."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and _may_be_checked(value, module)
    ]


def _may_be_checked(value: Any, module: ModuleType) -> bool:
    if isinstance(value, nn.Module):
        return True
    is_class = inspect.isclass(value) and issubclass(value, nn.Module)
    home = getattr(value, "__module__", None)
    return (is_class or inspect.isfunction(value)) and f"{home}.".startswith(f"{module.__name__}.")


def _offer(module: ModuleType) -> str:
    names = candidates(module)
    if not names:
        return "It defines no nn.Module and no function."
    more = ", …" if len(names) > OFFERED else ""
    return f"It has: {', '.join(names[:OFFERED])}{more}."
