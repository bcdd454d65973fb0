"""A training run on disk: how it begins, what it saves, and how it is opened again.

run.json                                  the configuration, the books and the number of steps
tokenizer.json, tokenizer_config.json     the tokenizer, as `Tokenizer.save` writes it
corpus.json, tokens.npy                   the tokens, as `Corpus.build` writes them
training.safetensors                      everything that the next step depends on, weights included, and the digests of
                                          the files above and of losses.csv, which are verified before a run is resumed;
                                          on many ranks, a folder training-… in its place (see sharded_state.py)
config.json, model.safetensors            the model, as `checkpoint.save` writes it and `heedful generate` reads it
losses.csv, losses.png, report.txt        the results
run.lock                                  the process that trains it, or did so last
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError
from heedful.gpt import checkpoint
from heedful.gpt.data.books import Book, training_sample
from heedful.gpt.data.corpus import INDEX, TOKENS, Corpus
from heedful.gpt.tokenizer import CONFIG as TOKENIZER
from heedful.gpt.tokenizer import VOCABULARY, Tokenizer, load_tokenizer, make_tokenizer
from heedful.gpt.train.config import TrainingConfig
from heedful.gpt.train.fingerprint import fingerprint, is_unchanged
from heedful.gpt.train.history import StepLosses, history_digest, read_history, write_history
from heedful.gpt.train.plan import plan_steps
from heedful.gpt.train.progress import Clock
from heedful.gpt.train.ranks import OneRank
from heedful.gpt.train.sharded_state import (
    check_shards,
    load_facts,
    load_shards,
    newest_shards,
    remove_shards,
    save_shards,
)
from heedful.gpt.train.state import load_state, save_state
from heedful.gpt.train.trainer import Trainer, build_trainer, check_mesh, resolve_precision
from heedful.reading import read_json
from heedful.writing import new_folder, reserved

RECORD, STATE, HISTORY = "run.json", "training.safetensors", "losses.csv"
INPUTS = (RECORD, VOCABULARY, TOKENIZER, INDEX, TOKENS)  # written once, before the first step


@dataclass(frozen=True)
class RunRecord:
    """The settings that a run was started with. They do not change when the run is resumed.

    Attributes:
        config: the configuration as requested.
        precision: the precision that "auto" stands for on the machine that began the run.
        steps: the number of steps that the budget allows.
        books: the SHA-256 digest and the name of each book, in the format of sha256sum.
    """

    config: TrainingConfig
    precision: str
    steps: int
    books: list[str]

    def save(self, folder: Path) -> None:
        """Write the record into the run's folder.

        Raises:
            ArgumentError: the file cannot be written.
        """
        with reserved(folder / RECORD, "--out") as write:
            write(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RunRecord:
        """Read the record in a run's folder.

        Raises:
            ArgumentError: there is no record, or the file is damaged.
        """
        try:
            fields = read_json(folder / RECORD)
            fields["config"] = TrainingConfig(**fields["config"])
            return cls(**fields)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise _no_run(folder, str(error)) from error

    def check_unchanged(self, books: Sequence[Book], changes: Mapping[str, Any]) -> None:
        """Raise `ArgumentError` if the books or the changes, where there are any, differ from the run's own."""
        if books and [book.digest for book in books] != self.books:
            raise ArgumentError(
                "BOOK",
                expected="with --resume, either no book or exactly the books that the run was started with",
                received=f"books other than {', '.join(line.split()[1] for line in self.books)}",
                remedy="To train on other books, start a new run in another folder with --out.",
            )
        requested = self.config.changed(changes)
        differing = [key for key in changes if getattr(requested, key) != getattr(self.config, key)]
        if differing:
            raise ArgumentError(
                ", ".join(differing),
                expected="with --resume, the run's own values: "
                + ", ".join(f"{key}={getattr(self.config, key)!r}" for key in differing),
                received=", ".join(f"{getattr(requested, key)!r}" for key in differing),
                remedy="Leave the option out, or start a new run in another folder with --out.",
            )


def begin_run(folder: Path, books: Sequence[Book], config: TrainingConfig) -> None:
    """Create the folder of a run before its first step, completely or not at all.

    Args:
        folder: must not exist yet, or be empty.
        books: the texts to train on.
        config: the configuration as requested.

    Raises:
        ArgumentError: the folder exists or cannot be written, or the model or its context does not fit.
        MissingExtraError: the tokenizer needs an extra that is not installed.
    """
    clock = Clock()
    with new_folder(folder, "--out") as unfinished:
        with clock.spending("preparing"):
            tokenizer = make_tokenizer(config.tokenizer, training_sample(books), config.vocab_size)
            tokenizer.save(unfinished)
            corpus = Corpus.build(books, tokenizer, unfinished)
        precision = resolve_precision(config.precision)
        resolved = dataclasses.replace(config, precision=precision)
        trial = build_trainer(resolved, tokenizer.vocab_size, corpus.train, steps=1)
        steps = plan_steps(config, trial, clock)
        record = RunRecord(config, precision, steps, [book.digest for book in books])
        record.save(unfinished)
        trainer = build_trainer(resolved, tokenizer.vocab_size, corpus.train, steps)
        inputs = {
            name: fingerprint(unfinished / name) for name in INPUTS if (unfinished / name).exists()
        }
        Run(unfinished, record, tokenizer, corpus, trainer, clock, [], inputs).save_state()


def open_run(folder: Path, clock: Clock, ranks: OneRank | None = None) -> Run:
    """Open a run at its last checkpoint, or at its beginning.

    Args:
        folder: the run's folder.
        clock: receives the time that earlier processes have spent.
        ranks: the ranks to go on with, which may be others than before; None: one process.

    Returns:
        The run; its next step is the same to the bit as without the interruption.

    Raises:
        ArgumentError: the folder holds no run, or its files are damaged, changed or missing.
    """
    ranks = ranks or OneRank()
    ranks.first_does(lambda: check_folder(folder))
    shards = _newest_shards(folder)
    if shards is None:
        tensors, facts = load_state(folder / STATE)
    else:
        ranks.first_does(lambda: check_shards(shards))
        tensors, facts = {}, load_facts(shards)
    inputs = facts["inputs"]
    ranks.first_does(lambda: _check_inputs(folder, inputs))
    record = RunRecord.load(folder)
    ranks.first_does(lambda: check_mesh(ranks.mesh, record.config))
    config = dataclasses.replace(record.config, precision=record.precision)
    tokenizer, corpus = load_tokenizer(folder), Corpus.load(folder)
    trainer = build_trainer(config, tokenizer.vocab_size, corpus.train, record.steps, ranks)
    if shards is not None:
        tensors = load_shards(shards, trainer.weights)
    trainer.load_state(tensors, facts)
    checkpoint.check_free(trainer.model, folder)
    history: list[StepLosses] = []
    if trainer.step:  # the file appears with the first checkpoint after a step
        history = read_history(folder / HISTORY, trainer.step, facts["history"])
    clock.add(facts["spent"])
    return Run(folder, record, tokenizer, corpus, trainer, clock, history, inputs)


def _newest_shards(folder: Path) -> Path | None:
    """Return the checkpoint of many ranks, unless one process has written a newer one and was killed then."""
    shards = newest_shards(folder)
    if shards is None or not (folder / STATE).exists():
        return shards
    newer = load_facts(shards)["step"] >= load_state(folder / STATE)[1]["step"]
    return shards if newer else None


def check_folder(folder: Path) -> None:
    """Raise `ArgumentError` unless a folder has a run's settings and no symbolic links, before any work."""
    _check_links(folder)
    if not (folder / RECORD).is_file():
        raise _no_run(folder, f"no {RECORD}")


def _check_inputs(folder: Path, saved: Mapping[str, str]) -> None:
    """Raise `ArgumentError` unless the inputs of a run are those that its checkpoint was saved with."""
    changed = [name for name in INPUTS if not is_unchanged(folder / name, saved.get(name))]
    if changed:
        raise ArgumentError(
            "--resume",
            expected=f"the files that the run was started with, whose digests are in {STATE}",
            received=f"changed or missing files in {folder}: {', '.join(changed)}",
            remedy="Restore copies of them, or start a new run in another folder with --out.",
        )


def _no_run(folder: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--resume",
        expected="a folder that heedful train wrote",
        received=f"{folder}: {received}",
        remedy="Name it with --out, or start a new run without --resume.",
    )


def _check_links(folder: Path) -> None:
    """Raise `ArgumentError` if a file of a run is a symbolic link, before any work: it could not be written."""
    links = sorted(path.name for path in folder.glob("*") if path.is_symlink())
    if links:
        raise ArgumentError(
            "--resume",
            expected="a folder without symbolic links, as heedful train writes it",
            received=f"links in {folder}: {', '.join(links)}",
            remedy="Replace each link by a copy of the file that it points to; nothing was written.",
        )


@dataclass
class Run:
    """A run and its progress so far.

    Attributes:
        inputs: the sizes and digests of the files that the run was started with, by name.
    """

    folder: Path
    record: RunRecord
    tokenizer: Tokenizer
    corpus: Corpus
    trainer: Trainer
    clock: Clock
    history: list[StepLosses]
    inputs: dict[str, str]

    @property
    def ranks(self) -> OneRank:
        """The ranks that train."""
        return self.trainer.ranks

    @property
    def tokens(self) -> int:
        """The number of training tokens read so far."""
        return self.trainer.step * self.trainer.tokens_per_step

    def save(self) -> None:
        """Write everything that a resumed run needs, and then the model.

        Raises:
            ArgumentError: a file cannot be written, for example on a full disk; the last checkpoint stays intact.
        """
        # The history comes first: a reader ignores surplus lines, but cannot do without missing ones.
        self.ranks.first_does(lambda: write_history(self.folder / HISTORY, self.history))
        self.save_state()
        self.save_model()

    def save_model(self) -> None:
        """Write the model as it is now, for `heedful generate`. All ranks call it, as they call `save`.

        Raises:
            ArgumentError: a file cannot be written, or the folder holds another model.
        """
        self.trainer.with_whole_model(lambda model: checkpoint.save(model, self.folder))

    def save_state(self) -> None:
        """Write everything that the next step depends on, and the digests of the files that a resumed run reads.

        A checkpoint of one process and one of many ranks replace each other.

        Raises:
            ArgumentError: the file cannot be written.
        """
        tensors, facts = self.trainer.state()
        run_facts = {
            "spent": self.clock.spent,
            "inputs": self.inputs,
            "history": history_digest(self.history),
        }
        if self.ranks.mesh.ranks == 1:
            save_state(self.folder / STATE, tensors, facts | run_facts)
            remove_shards(self.folder)
        else:
            save_shards(self.folder, tensors, facts | run_facts, self.ranks)
            self.ranks.first_does(lambda: (self.folder / STATE).unlink(missing_ok=True))
