"""The training loop: steps, with an evaluation, a sample and a checkpoint at regular intervals."""

from __future__ import annotations

import dataclasses
import math
import signal
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from heedful.gpt.generation import Sampling, generate
from heedful.gpt.model import GPT
from heedful.gpt.train.history import StepLosses
from heedful.gpt.train.loss import mean_loss
from heedful.gpt.train.progress import Display
from heedful.gpt.train.run import Run

# The share of the minutes after which the loop stops, planned steps or not, so that time is left for the report.
SHARE_OF_TIME = 0.95
TEMPERATURE = 0.8  # of samples: varied, but without the model's least likely guesses


def train_to_end(run: Run, display: Display) -> bool:
    """Train until the last step of a run, and save checkpoints on the way.

    Args:
        run: the run, which is changed.
        display: shows each step and each evaluation.

    Returns:
        True if the run is finished, False if Ctrl-C ended it early; both save a checkpoint.

    Raises:
        ArgumentError: a file cannot be written; the last checkpoint stays intact.
    """
    interval = math.ceil(run.record.steps / run.record.config.evaluations)
    with interruption() as interrupted:
        finished = run.ranks.any(is_finished(run))
        while not finished and not run.ranks.any(interrupted()):
            _step(run, display)
            finished = run.ranks.any(is_finished(run))
            if run.trainer.step % interval == 0 or finished:
                run.trainer.with_whole_model(lambda model: _evaluate(run, model, display))
                _save(run)
        if not finished:
            _save(run)
    return finished


def is_finished(run: Run) -> bool:
    """Check whether a run has taken its last step or used up its time, of which the first step needs none."""
    minutes, step = run.record.config.minutes, run.trainer.step
    late = minutes is not None and run.clock.seconds > minutes * 60 * SHARE_OF_TIME
    return (late and step > 0) or step >= run.record.steps


def _step(run: Run, display: Display) -> None:
    rate = run.trainer.learning_rate
    with run.clock.spending("steps"):
        loss = run.trainer.take_step()
    run.history.append(StepLosses(run.trainer.step, run.tokens, rate, loss))
    display.advance(loss, run.tokens / run.clock.spent["steps"])


def _evaluate(run: Run, model: GPT, display: Display) -> None:
    """Measure the loss on a part of the validation tokens, and show it with a sample."""
    config = run.trainer.config
    with run.clock.spending("validation"):
        validation = mean_loss(
            model,
            run.corpus.validation,
            config.batch_size,
            config.precision,
            config.evaluation_batches,
        )
    last = run.history[-1] = dataclasses.replace(run.history[-1], validation=validation)
    with run.clock.spending("samples"):
        text = sample(run, model)
    display.print(
        f"step {last.step}/{run.record.steps}   training {last.training:.3f}   validation {validation:.3f}   "
        f"{run.tokens / run.clock.spent['steps']:,.0f} tokens/s"
    )
    display.print(textwrap.indent(text, "  │ "))


def sample(run: Run, model: GPT) -> str:
    """Return the beginning of a text by a run's model, without touching torch's random state, which steps depend on."""
    config, end_of_text = run.trainer.config, run.tokenizer.end_of_text
    assert end_of_text is not None  # Corpus.build requires it
    (ids,) = generate(
        model,
        [[end_of_text]],
        tokens=config.sample_tokens,
        sampling=Sampling(TEMPERATURE, seed=config.seed + run.trainer.step),
        stop=end_of_text,
    )
    return run.tokenizer.decode(ids)


def _save(run: Run) -> None:
    with run.clock.spending("saving"):
        run.save()


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Postpone Ctrl-C inside the block, so that it takes effect between two steps; a second one interrupts at once.

    Yields:
        A function that returns whether Ctrl-C was pressed.
    """
    pressed = Event()

    def note(*_: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, previous)
