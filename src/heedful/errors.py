"""Errors that say what was expected, what was received, and what to do about it."""

from functools import partial
from typing import Any


class HeedfulError(Exception):
    """The base of every error that heedful raises on purpose."""


class ArgumentError(HeedfulError, ValueError):
    """An argument that cannot be used: a shape, a dtype, a device, a value.

    Args:
        argument: the argument's name, as the caller wrote it.
        expected: what would have been accepted.
        received: what came instead.
        remedy: what the caller can do about it.
    """

    def __init__(self, argument: str, *, expected: str, received: str, remedy: str) -> None:
        super().__init__(f"{argument}: expected {expected}; received {received}. {remedy}")
        self.argument, self.expected, self.received, self.remedy = (
            argument,
            expected,
            received,
            remedy,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """From one process to another an exception travels as what builds it anew."""
        parts = {"expected": self.expected, "received": self.received, "remedy": self.remedy}
        return partial(type(self), self.argument, **parts), ()


class KernelError(HeedfulError, RuntimeError):
    """No kernel, or not the kernel asked for by name, can run the problem; the reasons are in the text."""


class MissingExtraError(HeedfulError, ImportError):
    """Something needs an optional package; the text says which command installs it."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed. "
            f"Install it with: pip install 'heedful[{extra}]'"
        )
        self.purpose, self.extra = purpose, extra

    def __reduce__(self) -> tuple[Any, ...]:
        """From one process to another an exception travels as what builds it anew."""
        return type(self), (self.purpose, self.extra)
