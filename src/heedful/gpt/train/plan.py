"""The beginning of a run: books become tokens, and a budget becomes a number of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from heedful.gpt import tokenizer as tokenizers
from heedful.gpt.train.clock import Clock
from heedful.gpt.data.corpus import Book, Corpus
from heedful.gpt.train.run import Record, digests, new_trainer, tokens_per_step
from heedful.gpt.tokenizer import Tokenizer
from heedful.gpt.train.trainer import Trainer
from heedful.gpt.train.config import TrainingConfig
from heedful.kernels.native import library
from heedful.writing import new_folder

SHARE_OF_STEPS = (
    0.84  # of the minutes; the rest is for validation, samples, saving, and steps that take longer
)
TIMED_STEPS = 5


def prepare(folder: Path, books: Sequence[Book], config: TrainingConfig, clock: Clock) -> None:
    """Make the folder of a run that has taken no step yet: whole, or not at all.

    Args:
        folder: must not exist yet, or be empty.
        books: what is read.
        config: how.
        clock: is told what this takes.

    Raises:
        ArgumentError: the folder is there already, or cannot be written; a model that there is not.
        MissingExtraError: the tokenizer needs an extra that is not installed.
    """
    with new_folder(folder, "--out") as unfinished:
        with clock.spending("preparing"):
            tokenizer, corpus = tokenize(books, config, unfinished)
        precision = resolved(config.precision)
        trainer = new_trainer(config.changed({"precision": precision}), tokenizer, corpus, steps=1)
        steps = steps_in_budget(config, trainer, clock)
        Record(config, precision, steps, digests(books)).save(unfinished)


def tokenize(
    books: Sequence[Book], config: TrainingConfig, folder: Path
) -> tuple[Tokenizer, Corpus]:
    """Train the tokenizer on what is trained on, and write it and the books' tokens into a folder."""
    texts = [book.training for book in books]
    tokenizer = tokenizers.make(config.tokenizer, texts, config.vocab_size)
    tokenizer.save(folder)
    return tokenizer, Corpus.build(books, tokenizer, folder)


def resolved(precision: str) -> str:
    """ "auto" is bfloat16 where the processor multiplies it, for elsewhere it is slower than float32."""
    if precision != "auto":
        return precision
    return "bfloat16" if library.isa == "avx512bf16" else "float32"


def steps_in_budget(config: TrainingConfig, trainer: Trainer, clock: Clock) -> int:
    """How many steps the budget comes to."""
    if config.steps is not None:
        return config.steps
    if config.tokens is not None:
        return math.ceil(config.tokens / tokens_per_step(trainer))
    assert config.minutes is not None  # there is one budget
    with clock.spending("preparing"):
        seconds = _seconds_per_step(trainer)
    left = config.minutes * 60 * SHARE_OF_STEPS - clock.seconds
    return max(int(left / seconds), 1)


def _seconds_per_step(trainer: Trainer) -> float:
    """What a step takes: the median of a few, on a trainer that is thrown away."""
    seconds = []
    for _ in range(1 + TIMED_STEPS):
        began = time.perf_counter()
        trainer.take_step()
        seconds.append(time.perf_counter() - began)
    return median(seconds[1:])  # the first one also finds its memory
