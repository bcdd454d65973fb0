"""The same training on two attention kernels, step by step in turn: are the losses the same, and which is faster?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from heedful.gpt.train.clock import Clock
from heedful.gpt.data.corpus import Book
from heedful.gpt.train.plan import steps_in_budget, tokenize
from heedful.gpt.train.run import new_trainer
from heedful.gpt.train.trainer import Trainer
from heedful.gpt.train.config import TrainingConfig

OURS = "native"
STEPS = 200
EVERY = 10  # steps: the losses that are compared
TOLERANCE = (
    1e-3  # nats per token: rounding grows from step to step; what is wrong differs in the first
)


@dataclass(frozen=True)
class Turn:
    """One step on both kernels: nats per token, and seconds."""

    losses: tuple[float, float]
    seconds: tuple[float, float]


@dataclass(frozen=True)
class KernelComparison:
    """The same steps on our kernel and on another."""

    kernel: str
    turns: list[Turn]

    @property
    def shown(self) -> dict[int, tuple[float, float]]:
        """The losses of every tenth step, counted from 1."""
        return {n: self.turns[n - 1].losses for n in range(EVERY, len(self.turns) + 1, EVERY)}

    @property
    def difference(self) -> float:
        """The largest, of the losses shown."""
        return max(abs(ours - theirs) for ours, theirs in self.shown.values())

    @property
    def agrees(self) -> bool:
        """Whether the losses are the same but for rounding."""
        return self.difference <= TOLERANCE

    @property
    def speedup(self) -> float:
        """The median of their seconds over ours, of the same step."""
        return median(theirs / ours for ours, theirs in (turn.seconds for turn in self.turns))

    def __str__(self) -> str:
        ours, theirs = (sum(turn.seconds[k] for turn in self.turns) for k in (0, 1))
        rows = [f"{n:6d}  {a:.6f}  {b:.6f}  {abs(a - b):.1e}" for n, (a, b) in self.shown.items()]
        return "\n".join(
            [
                f"{'step':>6}  {OURS:8}  {self.kernel}",
                *rows,
                f"largest difference {self.difference:.1e}, at most {TOLERANCE:.0e}: "
                + ("the same" if self.agrees else "NOT the same"),
                f"{len(self.turns)} steps in {ours:.1f} s on {OURS}, {theirs:.1f} s on {self.kernel}; "
                f"end to end {OURS} is {self.speedup:.2f} × as fast (median of the steps, taken in turn)",
            ]
        )


def compare(
    books: Sequence[Book],
    config: TrainingConfig,
    kernel: str,
    steps: int,
    announce: Callable[[Turn], None],
) -> KernelComparison:
    """Take the first steps of a run twice, from the same weights, in float32 and without dropout.

    Args:
        books: what is read.
        config: how. The rates are those of the whole run: a short run's would rise too fast to compare by.
        kernel: the other one's name.
        steps: how many.
        announce: told of each step.

    Raises:
        KernelError: one of the kernels cannot run here.
    """
    config = config.changed({"precision": "float32"})
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, corpus = tokenize(books, config, Path(folder))
        planned = steps_in_budget(config, new_trainer(config, tokenizer, corpus, steps), Clock())
        trainers = [
            new_trainer(config, tokenizer, corpus, planned, kernel=name, dropout=0.0)
            for name in (OURS, kernel)
        ]
        turns = []
        for _ in range(steps):
            turns.append(_turn(*trainers))
            announce(turns[-1])
        return KernelComparison(kernel, turns)


def _turn(first: Trainer, second: Trainer) -> Turn:
    (a, seconds_a), (b, seconds_b) = _timed(first), _timed(second)
    return Turn((a, b), (seconds_a, seconds_b))


def _timed(trainer: Trainer) -> tuple[float, float]:
    began = time.perf_counter()
    return trainer.take_step(), time.perf_counter() - began
