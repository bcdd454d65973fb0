"""`heedful train` as the command line gives it: from options to a run in a folder, or to a comparison of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError, MissingExtraError
from heedful.gpt import kernel_comparison, training_config
from heedful.gpt.train.clock import Clock
from heedful.gpt.data.corpus import Book, read_books, sonnets
from heedful.gpt.train.progress import display
from heedful.gpt.train.plan import prepare
from heedful.gpt.train.run import Record, Run, digests, open_run
from heedful.gpt.train.report import report
from heedful.gpt.train.loop import go_on
from heedful.gpt.train.config import BUDGETS, TrainingConfig
from heedful.screen import print_out


def train(
    books: Sequence[Path],
    out: Path,
    *,
    config: Path | None,
    options: Mapping[str, Any],
    resume: bool,
) -> bool:
    """Train a GPT on books, in a folder of its own; False if Ctrl-C came before the end.

    Args:
        books: UTF-8 files, or folders of them; none: the sonnets in the package, or with `resume` those of the run.
        out: the folder: must not exist, or with `resume` be a run's.
        config: a TOML file that changes the defaults.
        options: changes that the command line names, which go before the file's.
        resume: go on where the run in the folder was saved last.

    Raises:
        ArgumentError: something given cannot be used; nothing is overwritten.
        MissingExtraError: the extra "train" is not installed.
    """
    _check_extra()
    clock = Clock()
    changes = read_changes(config, options)
    if resume:
        _check_same(Record.load(out), books, changes)
    else:
        texts = read_texts(books)
        prepare(out, texts, config_for(texts, changes), clock)
    run = open_run(out, clock)
    print_out(_introduction(run))
    with display(run.trainer.step, run.record.steps) as shown:
        finished = go_on(run, shown)
    if not finished:
        print_out(
            f"Interrupted, and saved after step {run.trainer.step}. Go on: heedful train --resume --out {out}"
        )
        return False
    print_out(f"\n{report(run)}\n\nin {out}: report.txt, losses.csv, losses.png, and the model")
    return True


def compare(
    books: Sequence[Path], kernel: str, *, config: Path | None, options: Mapping[str, Any]
) -> bool:
    """Train the same steps on our attention kernel and another, writing nothing; say whether the losses are the same.

    Args:
        books, config, options: as in `train`; without steps among the options: 200 steps.
        kernel: the other one.

    Raises:
        ArgumentError: something given cannot be used.
        KernelError: one of the kernels cannot run here.
        MissingExtraError: the extra "train" is not installed.
    """
    texts = read_texts(books)
    steps = options.get("steps") or kernel_comparison.STEPS
    settings = config_for(texts, read_changes(config, {**options, "steps": None}))
    with display(0, steps) as shown:
        found = kernel_comparison.compare(
            texts, settings, kernel, steps, lambda turn: shown.stepped(turn.losses[0], 0)
        )
    print_out(str(found))
    return found.agrees


def read_texts(books: Sequence[Path]) -> list[Book]:
    """The books named, or the sonnets where none is."""
    return read_books(books) if books else [sonnets()]


def read_changes(config: Path | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """What file and command line say, the command line going before."""
    changes = {} if config is None else training_config.read(config)
    named = {key: value for key, value in options.items() if value is not None}
    if any(name in named for name in BUDGETS):
        changes = {key: value for key, value in changes.items() if key not in BUDGETS}
    return changes | named


def config_for(books: Sequence[Book], changes: Mapping[str, Any]) -> TrainingConfig:
    """What suits the books' size, changed."""
    size = sum(len(book.text.encode()) for book in books)
    return training_config.preset(size).changed(changes)


def _check_same(record: Record, books: Sequence[Path], changes: Mapping[str, Any]) -> None:
    """Raise unless the run was started with these books and values, as far as any are named."""
    if books and digests(read_books(books)) != record.books:
        raise ArgumentError(
            "BOOK",
            expected="with --resume, the books that the run was started with, or none named",
            received=f"others than {', '.join(line.split()[1] for line in record.books)}",
            remedy="A run on other books is another run: give it a folder with --out.",
        )
    asked = record.config.changed(changes)
    if asked != record.config:
        differing = [key for key in changes if getattr(asked, key) != getattr(record.config, key)]
        raise ArgumentError(
            ", ".join(differing),
            expected="with --resume, "
            + ", ".join(f"{key}={getattr(record.config, key)!r}" for key in differing)
            + ", as the run was started",
            received=", ".join(f"{getattr(asked, key)!r}" for key in differing),
            remedy="Leave it out; a run with another configuration is another run: give it a folder with --out.",
        )


def _introduction(run: Run) -> str:
    parameters = sum(parameter.numel() for parameter in run.trainer.model.parameters())
    context = run.trainer.model.config.context_length
    return (
        f"{len(run.corpus.train):,} tokens of {len(run.record.books)} book(s) for training, "
        f"{len(run.corpus.validation):,} for validation; vocabulary {run.tokenizer.vocab_size:,}\n"
        f"{parameters:,} parameters, context {context}; {run.record.steps:,} steps in {run.record.precision}"
        + (f", {run.trainer.step:,} of them done" if run.trainer.step else "")
    )


def _check_extra() -> None:
    """Find out now what would be missing at the end."""
    try:
        import matplotlib  # noqa: F401  # pyright: ignore[reportMissingImports]
        import safetensors  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("heedful train", "train") from error
