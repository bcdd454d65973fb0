"""Forward passes of a module that run within a context."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

from torch import nn


def run_within(module: nn.Module, context: Callable[..., AbstractContextManager[None]]) -> None:
    """Run every forward pass of a module within a new context. Deep copies of the module do so, too.

    Args:
        module: the module.
        context: makes the context of the keyword arguments that the module is called with.
    """
    forward = module.forward.__func__  # pyright: ignore[reportFunctionMemberAccess]

    @functools.wraps(forward)
    def forward_within(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with context(**kwargs):
            return forward(self, *args, **kwargs)

    module.forward = MethodType(forward_within, module)
