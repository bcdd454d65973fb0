"""Batches of windows of a corpus: in random order for training, in order for validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.gpt.data.corpus import Split

IGNORED = -100  # the target that F.cross_entropy ignores


class Batch(NamedTuple):
    """Windows of tokens; every tensor is int64 (B, T).

    Attributes:
        inputs: token ids.
        targets: the token after each input; `IGNORED` where `sweep` has counted it before.
        documents: the document of each input, non-decreasing along T, for `Documents`.
    """

    inputs: Tensor
    targets: Tensor
    documents: Tensor


class Batches:
    """An endless iterator over random batches for training.

    In each epoch the windows lie side by side, beginning at a token that is drawn for the epoch, so that their
    boundaries vary. The order and the first token depend on the seed and the epoch alone. So the number of windows
    drawn is the whole state, whatever the batch size (with the same version of NumPy).

    Args:
        split: the tokens to train on.
        batch_size: B, the number of windows in a batch.
        context_length: T, the number of tokens in a window.
        seed: the seed of the order.

    Attributes:
        windows_per_epoch: the number of windows in an epoch.

    Raises:
        ArgumentError: the split has fewer than T + 1 tokens, or a size is below 1.

    Examples:
        >>> split = Split(np.arange(10, dtype=np.uint16), starts=(0,), names=("numbers",))
        >>> batch = next(Batches(split, batch_size=2, context_length=4))
        >>> batch.inputs.shape
        torch.Size([2, 4])
        >>> bool((batch.targets == batch.inputs + 1).all())
        True
    """

    def __init__(
        self, split: Split, batch_size: int, context_length: int, *, seed: int = 0
    ) -> None:
        _check_counts(batch_size=batch_size, context_length=context_length)
        possible_starts = len(split) - context_length  # the last target needs one more token
        if possible_starts < 1:
            raise ArgumentError(
                "context_length",
                expected=f"at most {len(split) - 1}, because the books have {len(split)} tokens for training",
                received=str(context_length),
                remedy="Choose a shorter context, or add more books.",
            )
        self._split, self._batch_size, self._length = split, batch_size, context_length
        self._seed = seed
        self._first_starts = min(context_length, possible_starts)
        self.windows_per_epoch: int = (possible_starts - self._first_starts) // context_length + 1
        self._drawn = 0
        self._epoch, self._starts = -1, np.empty(0, np.int64)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        starts = [self._start(self._drawn + row) for row in range(self._batch_size)]
        self._drawn += self._batch_size
        return _windows(self._split, starts, self._length)

    def state_dict(self) -> dict[str, int]:
        """Return the state, from which `load_state_dict` continues with the next window."""
        return self._identity | {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a state of batches of the same corpus, context length and seed.

        Args:
            state: as `state_dict` returned it.

        Raises:
            ArgumentError: the state is of another corpus, context length or seed.
        """
        if state != self._identity | {"drawn": state.get("drawn")}:
            raise ArgumentError(
                "state",
                expected=f"the state of batches with {self._identity}",
                received=str(state),
                remedy="Resume with the books and settings that the run was started with.",
            )
        self._drawn = state["drawn"]

    @property
    def _identity(self) -> dict[str, int]:
        return {
            "tokens": len(self._split),
            "context_length": self._length,
            "stride": self._length,  # a part of the file format; windows lie side by side
            "seed": self._seed,
        }

    def _start(self, window: int) -> int:
        """Return the position of a window's first token; windows are numbered over all epochs."""
        epoch, index = divmod(window, self.windows_per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng((self._seed, epoch))
            first = generator.integers(self._first_starts)
            self._epoch = epoch
            self._starts = first + self._length * generator.permutation(self.windows_per_epoch)
        return int(self._starts[index])


def sweep(split: Split, batch_size: int, context_length: int) -> Iterator[Batch]:
    """Yield batches in which every token of a split but the first is a target exactly once.

    Windows of T tokens lie side by side, always in the same order. The last window is moved back so that it ends with
    the split; the targets that it shares with the window before are `IGNORED`. A split that is shorter than a window
    becomes one shorter window. The last batch may have fewer rows.

    Args:
        split: the tokens.
        batch_size: B, the number of windows in a batch.
        context_length: T, the number of tokens in a window.

    Raises:
        ArgumentError: a size is below 1.

    Examples:
        >>> split = Split(np.arange(6, dtype=np.uint16), starts=(0,), names=("numbers",))
        >>> [batch.targets.tolist() for batch in sweep(split, batch_size=1, context_length=3)]
        [[[1, 2, 3]], [[-100, 4, 5]]]
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
                name,
                expected="at least 1",
                received=str(count),
                remedy=f"Pass {name} as a positive int.",
            )


def _windows(split: Split, starts: Sequence[int], T: int) -> Batch:
    """Return the windows of T tokens at these positions, with the token after each."""
    windows = np.stack([split.tokens[start : start + T + 1] for start in starts]).astype(np.int64)
    positions = np.asarray(starts)[:, None] + np.arange(T)
    documents = np.searchsorted(split.starts, positions, side="right").astype(np.int64) - 1
    inputs, targets = windows[:, :-1].copy(), windows[:, 1:].copy()  # sweep writes into targets
    return Batch(*map(torch.from_numpy, (inputs, targets, documents)))
