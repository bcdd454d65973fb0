"""Which calls of PyTorch's attention were computed by which kernel."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from heedful.problem import FEW_QUERIES
from heedful.screen import aligned
from heedful.tables import table


class CallKind(NamedTuple):
    """The properties by which calls of PyTorch's attention are counted.

    Attributes:
        direction: "forward" or "backward".
        dtype: the dtype, such as "float32".
        tokens: "Tq ≤ 8" (decoding), or otherwise "Tq = Tk" or "Tq ≠ Tk".
        mask: "none", "causal", "key ranges" (a mask tensor that was read as key ranges) or "tensor".
        passed_on: the reason why PyTorch's kernel computed the call; empty if heedful's did.
    """

    direction: str
    dtype: str
    tokens: str
    mask: str
    passed_on: str


_HEADER = ("calls", *CallKind._fields[:-1], "computed by")


@dataclass(frozen=True, repr=False)
class AccelerationReport:
    """The calls that the native kernel computed, and those that it passed on. `print(report)` shows a table.

    Attributes:
        calls: each kind of call with its count, the most frequent first.
    """

    calls: tuple[tuple[CallKind, int], ...]

    @property
    def served(self) -> int:
        """The number of calls that heedful's kernel computed."""
        return sum(count for call, count in self.calls if not call.passed_on)

    @property
    def passed_on(self) -> int:
        """The number of calls that PyTorch's kernel computed."""
        return sum(count for call, count in self.calls if call.passed_on)

    def __str__(self) -> str:
        if not self.calls:
            return self._summary
        return f"{self._summary}\n{aligned([_HEADER, *self._rows()])}"

    def __repr__(self) -> str:
        return f"AccelerationReport({self._summary})"

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return table(self._rows(), header=_HEADER if self.calls else (), caption=self._summary)

    @property
    def _summary(self) -> str:
        return f"{self.served} calls served, {self.passed_on} passed on to PyTorch's kernel"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(count),
                *call[:-1],
                f"PyTorch: {call.passed_on}" if call.passed_on else "heedful",
            )
            for call, count in self.calls
        ]


_lock: threading.Lock = threading.Lock()
_tally: Counter[CallKind] = Counter()  # since the process started


def count_call(
    direction: str, query: Tensor, key: Tensor, mask: str, passed_on: str | None = None
) -> None:
    """Count a call. Query and key have their tokens in dimension −2; the rest is as in `CallKind`."""
    Tq, Tk = query.shape[-2:-1], key.shape[-2:-1]  # there are none in a tensor of one dimension
    few = Tq <= (FEW_QUERIES,)
    tokens = f"Tq ≤ {FEW_QUERIES}" if few else "Tq = Tk" if Tq == Tk else "Tq ≠ Tk"
    dtype = str(query.dtype).removeprefix("torch.")
    with _lock:
        _tally[CallKind(direction, dtype, tokens, mask, passed_on or "")] += 1


def counted_calls() -> Counter[CallKind]:
    """Return the numbers of calls since the process started."""
    with _lock:
        return _tally.copy()
