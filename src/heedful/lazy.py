"""Values computed at first use: a property that `torch.compile` can trace, and the names of a package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - used as a decorator, like property
    """A property computed once: `functools.cached_property`, but it also works on frozen dataclasses.

    It stores the value in the instance's `__dict__` by `object.__setattr__`, and takes no lock, which
    `torch.compile` could not trace.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute: Callable[[Any], T] = compute
        self.name: str = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value = self.compute(instance)
        object.__setattr__(instance, self.name, value)  # later look-ups find this value first
        return value


def importing_names(
    package: str, names: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, which import each name when it is first used.

    `import heedful` thus takes no time: PyTorch takes a second to import, and `heedful --help` does not need it.

    Args:
        package: the package's name.
        names: the names that the package re-exports, by the module in it that has them.
    """
    homes = {name: home for home, those in names.items() for name in those}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
            setattr(sys.modules[package], name, value)  # later look-ups find it there
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, listed
