"""What the options of `heedful plan` mean: numbers with units, dtypes and masks."""

from __future__ import annotations

import math
import re
from itertools import cycle

import torch

from heedful.errors import ArgumentError
from heedful.masks import Causal, Documents, Mask, Window

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}
MOST_TOKENS: int = 2**30
_PREFIXES: str = "KMGTP"
_NUMBER: re.Pattern[str] = re.compile(r"(\d+(?:\.\d+)?|\d*\.\d+)\s*([KMGTP]?)", re.IGNORECASE)


def read_count(option: str, text: str) -> int:
    """Return a number of tokens, whose K and M are powers of 1024.

    Raises:
        ArgumentError: it is no whole number, or out of range.

    Examples:
        >>> read_count("--tokens", "128K")
        131072
    """
    number = _read(text, "", 1024)
    if number is None or not 1 <= number <= MOST_TOKENS or number != int(number):
        raise ArgumentError(
            option,
            expected="a whole number from 1 to 1G, such as 8192, 128K or 1M",
            received=repr(text),
            remedy="K is 1024, and M is 1024 K.",
        )
    return int(number)


def read_amount(option: str, text: str, unit: str) -> float:
    """Return an amount per second, whose K, M, G, T and P are powers of 1000.

    Args:
        option: its name, for errors.
        text: a number, with or without a prefix and the unit.
        unit: the unit, "B/s" or "FLOP/s".

    Raises:
        ArgumentError: it is no number above 0, or it has another unit.

    Examples:
        >>> read_amount("--bandwidth", "50GB/s", "B/s")
        50000000000.0
    """
    number = _read(text, unit, 1000)
    if number is None or not 0 < number < math.inf:
        raise ArgumentError(
            option,
            expected=f"a number above 0, such as 50G{unit}",
            received=repr(text),
            remedy=f"The unit is {unit}; G is 10^9, and T is 10^12.",
        )
    return number


def _read(text: str, unit: str, base: int) -> float | None:
    """Return a number with a prefix; None if it is none."""
    text = text.strip()
    if unit and text.lower().endswith(unit.lower()):
        text = text[: -len(unit)]
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    prefix = match[2].upper()
    return float(match[1]) * (base ** (1 + _PREFIXES.index(prefix)) if prefix else 1)


def read_dtype(text: str) -> torch.dtype:
    """Return the dtype of a short name.

    Raises:
        ArgumentError: the name is another one.
    """
    if text not in DTYPES:
        raise ArgumentError(
            "--dtype",
            expected=", ".join(DTYPES),
            received=repr(text),
            remedy="It is the dtype of query, key and value.",
        )
    return DTYPES[text]


def read_mask(text: str, tokens: int) -> Mask | None:
    """Return the mask of `--mask`.

    Args:
        text: "causal", "full", "window:SIZE", or "documents:LENGTH,…", packed documents whose lengths repeat.
        tokens: how many tokens there are.

    Raises:
        ArgumentError: it is something else.

    Examples:
        >>> read_mask("window:4K", 8192)
        Window(4096)
    """
    kind, _, numbers = text.partition(":")
    if text == "causal":
        return Causal()
    if text == "full":
        return None
    if kind == "window" and numbers:
        return Window(read_count("--mask window", numbers))
    if kind == "documents" and numbers:
        lengths = [read_count("--mask documents", number) for number in numbers.split(",")]
        return Causal() & Documents(_documents(lengths, tokens))
    raise ArgumentError(
        "--mask",
        expected="causal, full, window:SIZE or documents:LENGTH,…",
        received=repr(text),
        remedy="For example window:4096; documents:8K,2K are documents of 8192 and 2048 tokens in turn.",
    )


def _documents(lengths: list[int], tokens: int) -> torch.Tensor:
    """Return the document of each token: int64 (tokens,). The last one may be cut."""
    counts: list[int] = []
    left = tokens
    for length in cycle(lengths):
        counts.append(min(length, left))
        left -= counts[-1]
        if not left:
            break
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
