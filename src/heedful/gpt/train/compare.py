"""The same training steps on two attention kernels, taken in turn, to compare their losses and their speed."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from heedful.gpt.data.books import Book, training_sample
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import make_tokenizer
from heedful.gpt.train.config import TrainingConfig
from heedful.gpt.train.plan import plan_steps
from heedful.gpt.train.progress import Clock
from heedful.gpt.train.trainer import Trainer, build_trainer
from heedful.timing import Budget, iterate_turns, time_runs

OURS = "native"
DEFAULT_STEPS = 200
INTERVAL = 10  # every tenth step's losses are compared

# In nats per token. Rounding errors grow from step to step; a wrong kernel differs from the first step on.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class ComparedStep:
    """One step on both kernels, ours first.

    Attributes:
        losses: in nats per token.
        seconds: the time that the step took.
    """

    losses: tuple[float, float]
    seconds: tuple[float, float]


@dataclass(frozen=True)
class KernelComparison:
    """The same steps on our kernel and on another one.

    Attributes:
        kernel: the name of the other kernel.
        steps: the steps, in their order.
    """

    kernel: str
    steps: list[ComparedStep]

    @property
    def compared(self) -> dict[int, tuple[float, float]]:
        """The losses of every tenth step, by the number of the step, counted from 1."""
        return {n: self.steps[n - 1].losses for n in range(INTERVAL, len(self.steps) + 1, INTERVAL)}

    @property
    def difference(self) -> float:
        """The largest difference of the compared losses."""
        return max(abs(ours - theirs) for ours, theirs in self.compared.values())

    @property
    def agrees(self) -> bool:
        """True if the losses differ by rounding errors only."""
        return self.difference <= TOLERANCE

    @property
    def speedup(self) -> float:
        """The median over all steps of the other kernel's time divided by ours."""
        return median(theirs / ours for ours, theirs in (step.seconds for step in self.steps))

    def __str__(self) -> str:
        ours, theirs = (sum(step.seconds[k] for step in self.steps) for k in (0, 1))
        rows = [
            f"{n:6d}  {a:.6f}  {b:.6f}  {abs(a - b):.1e}" for n, (a, b) in self.compared.items()
        ]
        return "\n".join(
            [
                f"{'step':>6}  {OURS:8}  {self.kernel}",
                *rows,
                f"largest difference {self.difference:.1e}, at most {TOLERANCE:.0e}: "
                + ("the same" if self.agrees else "NOT the same"),
                f"{len(self.steps)} steps in {ours:.1f} s on {OURS}, {theirs:.1f} s on {self.kernel}; "
                f"end to end {OURS} is {self.speedup:.2f} × as fast (median of the steps, taken in turn)",
            ]
        )


def compare_kernels(
    books: Sequence[Book],
    config: TrainingConfig,
    kernel: str,
    steps: int,
    announce: Callable[[ComparedStep], None],
) -> KernelComparison:
    """Take the first steps of a run twice, from the same weights, in float32 and without dropout.

    Args:
        books: the texts to train on.
        config: the configuration. The learning rates are those of the whole run, because those of a short run would
            rise too steeply for a comparison.
        kernel: the name of the other kernel.
        steps: the number of steps to take.
        announce: called after each step.

    Raises:
        ArgumentError: the configuration does not fit the books.
        KernelError: one of the kernels cannot run here.
    """
    config = dataclasses.replace(config, precision="float32")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_tokenizer(config.tokenizer, training_sample(books), config.vocab_size)
        corpus = Corpus.build(books, tokenizer, folder)
        trial = build_trainer(config, tokenizer.vocab_size, corpus.train, steps)
        planned = plan_steps(config, trial, Clock())
        ours, theirs = (
            build_trainer(
                config, tokenizer.vocab_size, corpus.train, planned, kernel=name, dropout=0.0
            )
            for name in (OURS, kernel)
        )
        compared = []
        for step in _take_steps(ours, theirs, steps):
            compared.append(step)
            announce(step)
        return KernelComparison(kernel, compared)


def _take_steps(ours: Trainer, theirs: Trainer, steps: int) -> Iterator[ComparedStep]:
    """Take the same steps with both trainers in turns, and time them."""
    trainers, losses = {"ours": ours, "theirs": theirs}, {}

    def timed_step(name: str, repeats: int) -> float:
        def take_step() -> None:
            losses[name] = trainers[name].take_step()

        return time_runs(take_step, repeats)

    contenders = {name: partial(timed_step, name) for name in trainers}
    for seconds in iterate_turns(contenders, Budget(0.0, min_turns=steps, max_turns=steps)):
        yield ComparedStep((losses["ours"], losses["theirs"]), (seconds["ours"], seconds["theirs"]))
