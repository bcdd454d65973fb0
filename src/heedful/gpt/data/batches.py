"""Windows of a corpus, in batches: shuffled for training, in order for validation."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.gpt.data.corpus import Split

IGNORED = -100  # the target that F.cross_entropy leaves out


class Batch(NamedTuple):
    """Windows: all int64 (B, T).

    Attributes:
        inputs: token ids.
        targets: the token after each; `IGNORED` where `sweep` has counted it before.
        documents: the document of each input, non-decreasing along T, for `Documents`.
    """

    inputs: Tensor
    targets: Tensor
    documents: Tensor


class Batches:
    """Shuffled windows for training, for ever: each epoch in a new order, from a new first token.

    In an epoch windows start at every multiple of the stride, counted from a start drawn for the epoch, so that the
    borders between windows fall elsewhere each time. Order and start follow from the seed and the epoch alone: how many
    windows were drawn is all that has to be saved, and it holds for any batch size (with the same numpy).

    Args:
        split: what to train on.
        batch_size: B.
        context_length: T.
        stride: from one window's start to the next one's; T by default: each token once an epoch.
        seed: of the order.

    Raises:
        ArgumentError: fewer than T + 1 tokens.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        context_length: int,
        *,
        stride: int | None = None,
        seed: int = 0,
    ) -> None:
        _check_counts(batch_size=batch_size, context_length=context_length)
        stride = context_length if stride is None else stride
        _check_counts(stride=stride)
        possible_starts = len(split) - context_length  # a window needs the token after it too
        if possible_starts < 1:
            raise ArgumentError(
                "context_length",
                expected=f"at most {len(split) - 1}, for the books have {len(split)} tokens for training",
                received=str(context_length),
                remedy="Take a shorter context, or more books.",
            )
        self._split, self._batch_size, self._length = split, batch_size, context_length
        self._stride, self._seed = stride, seed
        self._first_starts = min(stride, possible_starts)
        self.windows_per_epoch = (possible_starts - self._first_starts) // stride + 1
        self._drawn = 0
        self._epoch, self._starts = -1, np.empty(0, np.int64)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        starts = [self._start(self._drawn + row) for row in range(self._batch_size)]
        self._drawn += self._batch_size
        return _windows(self._split, starts, self._length)

    def state_dict(self) -> dict[str, int]:
        """What `load_state_dict` needs to go on with the window that comes next."""
        return self._identity | {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another one of the same corpus, context length, stride and seed stood.

        Raises:
            ArgumentError: the state is of another corpus, context length, stride or seed.
        """
        if state != self._identity | {"drawn": state.get("drawn")}:
            raise ArgumentError(
                "state",
                expected=f"that of batches with {self._identity}",
                received=str(state),
                remedy="Resume with the books and settings that the run was started with.",
            )
        self._drawn = state["drawn"]

    @property
    def _identity(self) -> dict[str, int]:
        return {
            "tokens": len(self._split),
            "context_length": self._length,
            "stride": self._stride,
            "seed": self._seed,
        }

    def _start(self, number: int) -> int:
        """Where the window of that number starts, counted over all epochs."""
        epoch, place = divmod(number, self.windows_per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng((self._seed, epoch))
            first = generator.integers(self._first_starts)
            self._epoch = epoch
            self._starts = first + self._stride * generator.permutation(self.windows_per_epoch)
        return int(self._starts[place])


def sweep(split: Split, batch_size: int, context_length: int) -> Iterator[Batch]:
    """Every token of a split but the first, as a target exactly once, always in the same order.

    Windows of T tokens stand side by side; the last is moved back to end with the split, and what the one before had as
    targets is `IGNORED` in it. A split shorter than a window is one shorter window. The last batch may have fewer rows.

    Args:
        split: what to go through.
        batch_size: B.
        context_length: T.

    Raises:
        ArgumentError: a batch or a context of less than 1.
    """
    _check_counts(batch_size=batch_size, context_length=context_length)
    targets = len(split) - 1
    T = min(context_length, targets)
    starts = [*range(0, targets - T, T), targets - T]
    for first in range(0, len(starts), batch_size):
        batch = _windows(split, starts[first : first + batch_size], T)
        if first + batch_size >= len(starts):
            batch.targets[-1, : -targets % T] = IGNORED
        yield batch


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ArgumentError(
                name, expected="at least 1", received=str(count), remedy="Count in tokens or rows."
            )


def _windows(split: Split, starts: Sequence[int], T: int) -> Batch:
    """The windows of T tokens that start there, with the token after each."""
    taken = np.stack([split.tokens[start : start + T + 1] for start in starts]).astype(np.int64)
    positions = np.asarray(starts)[:, None] + np.arange(T)
    documents = np.searchsorted(split.starts, positions, side="right").astype(np.int64) - 1
    inputs, targets = taken[:, :-1].copy(), taken[:, 1:].copy()  # apart: sweep writes into targets
    return Batch(*map(torch.from_numpy, (inputs, targets, documents)))
