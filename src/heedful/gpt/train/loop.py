"""A run, from where it stands to its end: steps, and now and then an evaluation, a sample and a checkpoint."""

from __future__ import annotations

import math
import signal
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from heedful.gpt.sampling import Choice
from heedful.gpt.train.progress import Display
from heedful.gpt.train.loss import mean_loss
from heedful.gpt.generation import generate
from heedful.gpt.train.history import Losses
from heedful.gpt.train.run import Run

LAST_CALL = (
    0.95  # of the minutes: what is planned too tightly stops here, and has time for its report
)
TEMPERATURE = 0.8  # of samples: as varied as the model's text is, less its worst guesses


def go_on(run: Run, display: Display) -> bool:
    """Train until the run's last step, saving as it goes; False if Ctrl-C came first, which saves too.

    Raises:
        ArgumentError: something cannot be written; the last checkpoint stays whole.
    """
    every = math.ceil(run.record.steps / run.record.config.evaluations)
    with interruption() as interrupted:
        while not over(run) and not interrupted():
            _step(run, display)
            if run.trainer.step % every == 0 or over(run):
                _evaluate(run, display)
                _save(run)
        if not over(run):
            _save(run)
            return False
    return True


def over(run: Run) -> bool:
    """Whether its last step is done, or its time is up."""
    minutes = run.record.config.minutes
    late = minutes is not None and run.clock.seconds > minutes * 60 * LAST_CALL
    return late or run.trainer.step >= run.record.steps


def _step(run: Run, display: Display) -> None:
    rate = run.trainer.rate
    with run.clock.spending("steps"):
        loss = run.trainer.take_step()
    run.history.append(Losses(run.trainer.step, run.tokens, rate, loss))
    display.stepped(loss, run.tokens / run.clock.spent["steps"])


def _evaluate(run: Run, display: Display) -> None:
    """Measure the validation loss of some of its tokens, and show what the model writes."""
    trainer, config = run.trainer, run.trainer.config
    with run.clock.spending("validation"):
        validation = mean_loss(
            trainer.model,
            run.corpus.validation,
            config.batch_size,
            config.precision,
            config.evaluation_batches,
        )
    last = run.history[-1]
    run.history[-1] = Losses(last.step, last.tokens, last.learning_rate, last.training, validation)
    with run.clock.spending("samples"):
        text = sample(run)
    display.print(
        f"step {last.step}/{run.record.steps}   training {last.training:.3f}   validation {validation:.3f}   "
        f"{run.tokens / run.clock.spent['steps']:,.0f} tokens/s"
    )
    display.print(textwrap.indent(text, "  │ "))


def sample(run: Run) -> str:
    """How the model begins a text; torch's random state is left alone, for the next step depends on it."""
    config, end = run.trainer.config, run.tokenizer.end_of_text
    assert end is not None  # the corpus has it between books
    (ids,) = generate(
        run.trainer.model,
        [[end]],
        tokens=config.sample_tokens,
        choice=Choice(TEMPERATURE, seed=config.seed + run.trainer.step),
        stop=end,
    )
    return run.tokenizer.decode(ids)


def _save(run: Run) -> None:
    with run.clock.spending("saving"):
        run.save()


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is noted, to be heeded between two steps; a second one interrupts at once."""
    noted = Event()

    def note(*_) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, before)
