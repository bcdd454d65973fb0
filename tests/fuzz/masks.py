"""Masks drawn at random, each with the Boolean array that it stands for, defined a second time in numpy."""

import operator
import sys

import numpy as np
import torch

from fuzz.memory import place
from heedful.intervals import Intervals
from heedful.masks import (
    Band,
    Causal,
    Dense,
    Documents,
    KeyRanges,
    Mask,
    Padding,
    Prefix,
    Sinks,
    Window,
)

Drawn = tuple[Mask, np.ndarray]  # the array broadcasts to (B, Hq, Tq, Tk), True = attend
HUGE = (10**12, sys.maxsize, 2**64)


class MaskDrawer:
    """Draws masks for one problem, all with the same alignment."""

    def __init__(self, rng: np.random.Generator, B: int, Hq: int, Tq: int, Tk: int) -> None:
        self.rng = rng
        self.B, self.Hq, self.Tq, self.Tk = B, Hq, Tq, Tk
        aligns = ["start", "end", None] if Tq == Tk else ["start", "end"]
        self.align = aligns[rng.integers(len(aligns))]
        shift = Tk - Tq if self.align == "end" else 0
        self.i = np.arange(shift, shift + Tq)[:, None]
        self.j = np.arange(Tk)

    def mask(self) -> Drawn:
        """Draw a mask of any class, or a combination of two."""
        mask, shown = self._single()
        if self.rng.random() < 0.4:
            other, also_shown = self._single()
            combine = operator.and_ if self.rng.random() < 0.5 else operator.or_
            mask, shown = combine(mask, other), combine(shown, also_shown)
        return mask, shown.reshape((1,) * (4 - shown.ndim) + shown.shape)

    def _single(self) -> Drawn:
        kinds = (
            *(self._causal, self._window, self._band, self._sinks, self._prefix),
            *(self._padding, self._documents, self._key_ranges, self._dense),
        )
        return kinds[self.rng.integers(len(kinds))]()

    def _number(self) -> int:
        """Draw a number of keys, which is far too large at times."""
        if self.rng.random() < 0.05:
            return HUGE[self.rng.integers(len(HUGE))]
        return int(self.rng.integers(max(self.Tq, self.Tk) + 3))

    def _lengths(self) -> tuple[torch.Tensor | int, np.ndarray]:
        """Draw a length for each batch entry, or one for all; also as an array (B or 1, 1, 1, 1)."""
        lengths = self.rng.integers(self.Tk + 1, size=self.B)
        if self.rng.random() < 0.7:
            return torch.from_numpy(lengths), lengths[:, None, None, None]
        return int(lengths[0]), lengths[:1, None, None, None]

    def _causal(self) -> Drawn:
        return Causal(self.align), self.j <= self.i

    def _window(self) -> Drawn:
        size = 1 + self._number()
        seen = (self.j <= self.i) & (self.i - self.j < min(size, sys.maxsize))
        return Window(size, self.align), seen

    def _band(self) -> Drawn:
        before, after = self._number(), self._number()
        seen = (self.i - self.j <= min(before, sys.maxsize)) & (
            self.j - self.i <= min(after, sys.maxsize)
        )
        return Band(before, after, self.align), seen

    def _sinks(self) -> Drawn:
        count = self._number()
        return Sinks(count), np.broadcast_to(self.j < min(count, sys.maxsize), (self.Tq, self.Tk))

    def _prefix(self) -> Drawn:
        lengths, each = self._lengths()
        return Prefix(lengths, self.align), (self.j <= self.i) | (self.j < each)

    def _padding(self) -> Drawn:
        lengths, each = self._lengths()
        if self.rng.random() < 0.5:
            return Padding(lengths, "right"), self.j < each
        return Padding(lengths, "left"), self.Tk - 1 - self.j < each

    def _documents(self) -> Drawn:
        rows = self.B if self.rng.random() < 0.7 else 1
        ids = np.sort(self.rng.integers(4, size=(rows, self.Tk)), axis=1)
        seen = np.zeros((rows, 1, self.Tq, self.Tk), dtype=bool)
        for row, i in enumerate(self.i[:, 0]):
            if 0 <= i < self.Tk:
                seen[:, 0, row] = ids == ids[:, i : i + 1]
        return Documents(torch.from_numpy(ids), self.align), seen

    def _key_ranges(self) -> Drawn:
        rows = self.B if self.rng.random() < 0.7 else 1
        start, stop = self.rng.integers(-2, self.Tk + 3, size=(2, rows, self.Tq))
        seen = (start[..., None] <= self.j) & (self.j < stop[..., None])
        ranges = Intervals.single(torch.from_numpy(start), torch.from_numpy(stop), self.Tk)
        return KeyRanges(ranges), seen[:, None]

    def _dense(self) -> Drawn:
        shape = tuple(
            n if self.rng.random() < 0.7 else 1 for n in (self.B, self.Hq, self.Tq, self.Tk)
        )
        share = self.rng.choice([0.05, 0.5, 0.95])
        tensor = place(self.rng, shape, torch.bool, lambda n: self.rng.random(n) < share)
        return Dense(tensor), tensor.numpy()
