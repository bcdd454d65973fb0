"""A property that is computed once, and that `torch.compile` can trace."""

from __future__ import annotations

from collections.abc import Callable
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
