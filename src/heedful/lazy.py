"""Values looked at late: a property computed once, and a question that tracing leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - used as a decorator, like property
    """As `functools.cached_property`, but without its lock, which `torch.compile` cannot trace."""

    def __init__(self, compute: Callable[..., T]) -> None:
        self.compute = compute
        self.name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value = self.compute(instance)
        object.__setattr__(instance, self.name, value)  # found first from now on
        return value


def any_set(flags: Tensor, *, when_tracing: bool) -> bool:
    """Whether any of the Boolean flags is set; `when_tracing` under `torch.compile`, which knows no values."""
    return when_tracing if torch.compiler.is_compiling() else bool(flags.any())
