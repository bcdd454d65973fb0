"""Errors that state what was expected, what was received, and what to do about it."""

from functools import partial
from typing import Any

MAX_QUOTED: int = 1000  # characters of a part of an error; a file may contain a value of any length


class HeedfulError(Exception):
    """The base class of all errors that heedful raises on purpose.

    Examples:
        >>> import heedful
        >>> try:
        ...     heedful.Window(0)
        ... except heedful.HeedfulError as error:
        ...     print(error)
        size: expected an integer of at least 1; received 0. Pass a number of keys.
    """


class ArgumentError(HeedfulError, ValueError):
    """An argument cannot be used because of its shape, dtype, device or value.

    Args:
        argument: the argument's name, as the caller wrote it.
        expected: what would have been accepted.
        received: what was passed instead. Of a text of more than 1000 characters, here as in `expected`, the middle
            is left out.
        remedy: what the caller can do about it.

    Examples:
        >>> error = ArgumentError("heads", expected="at least 1", received="0", remedy="Pass 1.")
        >>> str(error)
        'heads: expected at least 1; received 0. Pass 1.'
    """

    def __init__(self, argument: str, *, expected: str, received: str, remedy: str) -> None:
        expected, received = _shortened(expected), _shortened(received)
        super().__init__(f"{argument}: expected {expected}; received {received}. {remedy}")
        self.argument: str = argument
        self.expected: str = expected
        self.received: str = received
        self.remedy: str = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as a call that builds it again."""
        parts = {"expected": self.expected, "received": self.received, "remedy": self.remedy}
        return partial(type(self), self.argument, **parts), ()


def _shortened(text: str) -> str:
    shown = text if text.isprintable() else repr(text)[1:-1]  # as terminals show control characters
    half = MAX_QUOTED // 2 - 2
    return text if len(shown) <= MAX_QUOTED else f"{shown[:half]} … {shown[-half:]}"


class KernelError(HeedfulError, RuntimeError):
    """No kernel can run the problem, or the one requested by name cannot. The message has the reasons.

    Examples:
        >>> import torch
        >>> from heedful import attention
        >>> query = torch.zeros(1, 1, 2, 4)
        >>> try:
        ...     attention(query, query, query, softcap=5.0, kernel="torch_sdpa")
        ... except KernelError as error:
        ...     print(str(error).split(".")[0])
        kernel 'torch_sdpa' cannot run this problem: PyTorch's SDPA has no soft-cap
    """


class RankError(HeedfulError, RuntimeError):
    """A rank of a group disagrees with the others, does not answer, or has ended.

    Args:
        rank: the rank at fault, in the numbering of all processes.
        cause: what is wrong with it.

    Examples:
        >>> str(RankError(2, "it has ended"))
        'rank 2: it has ended'
    """

    def __init__(self, rank: int, cause: str) -> None:
        super().__init__(f"rank {rank}: {cause}")
        self.rank: int = rank
        self.cause: str = cause

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as a call that builds it again."""
        return type(self), (self.rank, self.cause)


class MissingExtraError(HeedfulError, ImportError):
    """An optional package is missing. The message has the command that installs it.

    Args:
        purpose: what needs the package.
        extra: the name of heedful's extra that installs it.

    Examples:
        >>> str(MissingExtraError("Training", "train")).split(". ")[1]
        "Install it with: pip install 'heedful[train]'"
    """

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed. "
            f"Install it with: pip install 'heedful[{extra}]'"
        )
        self.purpose: str = purpose
        self.extra: str = extra

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as a call that builds it again."""
        return type(self), (self.purpose, self.extra)
