"""What a run is, on disk: its record, its corpus and tokenizer, and what it saves as it goes.

run.json                                  what was asked for: configuration, books, steps
tokenizer.json, tokenizer_config.json     as `tokenizer.save` writes them
corpus.json, tokens.npy                   as `Corpus.build` writes them
training.safetensors                      what the next step depends on; weights too, so that all is of one step
config.json, model.safetensors            the model, as `checkpoint.save` writes it and `heedful generate` reads it
losses.csv, losses.png, report.txt        what came of it
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from heedful.errors import ArgumentError
from heedful.gpt import checkpoint, losses, state_file
from heedful.gpt import tokenizer as tokenizers
from heedful.gpt.data.batches import Batches
from heedful.gpt.train.clock import Clock
from heedful.gpt.config import GPTConfig
from heedful.gpt.data.corpus import Book, Corpus
from heedful.gpt.train.history import Losses
from heedful.gpt.model import GPT
from heedful.gpt.tokenizer import Tokenizer
from heedful.gpt.train.trainer import Trainer
from heedful.gpt.train.config import TrainingConfig, check_keys
from heedful.writing import reserved

RECORD, STATE, TABLE = "run.json", "training.safetensors", "losses.csv"


@dataclass(frozen=True)
class Record:
    """What a run was started with, and goes on with."""

    config: TrainingConfig  # as it was asked for
    precision: str  # what "auto" came to
    steps: int  # what the budget came to
    books: list[str]  # SHA-256 and name of each, as sha256sum prints them

    def save(self, folder: Path) -> None:
        """Write it.

        Raises:
            ArgumentError: it cannot be written.
        """
        with reserved(folder / RECORD, "--out") as write:
            write(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Record:
        """Read it.

        Raises:
            ArgumentError: there is none, or it is no record.
        """
        try:
            fields = json.loads((folder / RECORD).read_bytes())
            return cls(**fields | {"config": TrainingConfig(**fields["config"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ArgumentError(
                "--resume",
                expected="a folder that heedful train wrote",
                received=f"{folder}: {error}",
                remedy="Name it with --out, or start anew without --resume.",
            ) from error


@dataclass
class Run:
    """A run as far as it has come."""

    folder: Path
    record: Record
    tokenizer: Tokenizer
    corpus: Corpus
    trainer: Trainer
    clock: Clock
    history: list[Losses]

    @property
    def tokens(self) -> int:
        """How many tokens were read so far."""
        return self.trainer.step * tokens_per_step(self.trainer)

    def save(self) -> None:
        """Write all that a resumed run needs, then the model for whoever uses it.

        Raises:
            ArgumentError: it cannot be written, as on a full disk; the last checkpoint stays whole.
        """
        losses.write_table(
            self.folder / TABLE, self.history
        )  # lines too many do not hurt, lines missing would
        tensors, facts = self.trainer.state()
        state_file.save(self.folder / STATE, tensors, facts | {"spent": self.clock.spent})
        checkpoint.save(self.trainer.model, self.folder)


def tokens_per_step(trainer: Trainer) -> int:
    """How many tokens a step reads."""
    config = trainer.config
    return config.batch_size * config.accumulation * trainer.model.config.context_length


def digests(books: Sequence[Book]) -> list[str]:
    """SHA-256 and name of each book."""
    return [f"{hashlib.sha256(book.text.encode()).hexdigest()}  {book.name}" for book in books]


def new_trainer(
    config: TrainingConfig, tokenizer: Tokenizer, corpus: Corpus, steps: int, **changes
) -> Trainer:
    """A trainer before its first step: the same for the same configuration and books.

    Args:
        config: "auto" resolved.
        tokenizer, corpus: of the run.
        steps: of the run.
        changes: to the model's configuration.

    Raises:
        ArgumentError: a model that there is not, or a context longer than the books.
    """
    shape = config.model | changes
    check_keys(shape, [f.name for f in dataclasses.fields(GPTConfig) if f.name != "vocab_size"])
    torch.manual_seed(config.seed)
    model = GPT(GPTConfig.llama(vocab_size=tokenizer.vocab_size, **shape))
    batches = Batches(
        corpus.train, config.batch_size, model.config.context_length, seed=config.seed
    )
    return Trainer(model, batches, config, steps)


def open_run(folder: Path, clock: Clock) -> Run:
    """The run in a folder, where it was saved last, or at its beginning.

    Args:
        folder: of the run.
        clock: counts on from what earlier processes had spent.

    Raises:
        ArgumentError: no run, or one whose files are damaged or do not fit together.
    """
    record = Record.load(folder)
    tokenizer, corpus = tokenizers.load(folder), Corpus.load(folder)
    config = record.config.changed({"precision": record.precision})
    trainer = new_trainer(config, tokenizer, corpus, record.steps)
    history: list[Losses] = []
    if (folder / STATE).exists():
        tensors, facts = state_file.load(folder / STATE)
        trainer.load_state(tensors, facts)
        history = losses.read_table(folder / TABLE, trainer.step)
        clock.add(facts["spent"])
    return Run(folder, record, tokenizer, corpus, trainer, clock, history)
