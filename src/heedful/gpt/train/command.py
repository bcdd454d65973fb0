"""The commands `heedful train` and `heedful train --against`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.errors import MissingExtraError
from heedful.gpt.data.books import Book, read_books, sample_share, sonnets
from heedful.gpt.train.compare import DEFAULT_STEPS, compare_kernels
from heedful.gpt.train.config import preset, read_changes
from heedful.gpt.train.lock import locked
from heedful.gpt.train.loop import train_to_end
from heedful.gpt.train.progress import Clock, display
from heedful.gpt.train.report import write_report
from heedful.gpt.train.run import Run, begin_run, check_folder, open_run
from heedful.screen import print_out


def train(
    books: Sequence[Path],
    out: Path,
    *,
    config: Path | None,
    options: Mapping[str, Any],
    resume: bool,
) -> bool:
    """Train a GPT on books and keep the run in a folder.

    Args:
        books: UTF-8 files, or folders of .txt files. Without any, a new run reads Shakespeare's sonnets, and a resumed
            run reads the books that it was started with.
        out: the run's folder. It must not exist yet; with `resume` it must hold a run.
        config: a TOML file that changes the defaults.
        options: values from the command line, which take precedence over the file's; None leaves a value alone.
        resume: whether to continue from the last checkpoint in `out`.

    Returns:
        True if the run is finished, False if Ctrl-C ended it early.

    Raises:
        ArgumentError: an argument cannot be used; nothing is overwritten.
        MissingExtraError: the extra "train" is not installed.
    """
    _check_extra()
    texts = read_books(books) if books else []
    changes = read_changes(config, options)
    if not resume:
        texts = texts or [sonnets()]
        settings = preset(sum(book.size for book in texts)).changed(changes)
        begin_run(out, texts, settings)
        if settings.tokenizer == "bpe" and sample_share(texts) < 1:
            print_out(
                f"The tokenizer was trained on a random {sample_share(texts):.0%} of the text."
            )
    check_folder(out)
    with locked(out):
        return _continue(out, texts, changes, resume)


def _continue(out: Path, texts: Sequence[Book], changes: Mapping[str, Any], resume: bool) -> bool:
    """Train the run in a folder from its last checkpoint to its end, and return False if Ctrl-C ended it early."""
    run = open_run(out, Clock())
    if resume:
        run.record.check_unchanged(texts, changes)
        if run.trainer.step:
            run.save_model()  # a kill after the checkpoint leaves the model before it
    print_out(_introduction(run))
    with display(run.trainer.step, run.record.steps) as progress:
        finished = train_to_end(run, progress)
    if not finished:
        print_out(
            f"Interrupted, and saved after step {run.trainer.step}. Continue with: heedful train --resume --out {out}"
        )
        return False
    print_out(
        f"\n{write_report(run)}\n\nWritten to {out}: the model, losses.csv, losses.png and report.txt"
    )
    return True


def compare(
    books: Sequence[Path], kernel: str, *, config: Path | None, options: Mapping[str, Any]
) -> bool:
    """Train the same steps on heedful's attention kernel and on another one, and write nothing.

    Args:
        books: as in `train`.
        kernel: the name of the other kernel.
        config: as in `train`.
        options: as in `train`; `steps` is the number of steps to compare, 200 by default.

    Returns:
        Whether the two losses agree.

    Raises:
        ArgumentError: an argument cannot be used.
        KernelError: one of the kernels cannot run here.
        MissingExtraError: the extra "train" is not installed.
    """
    steps = options.get("steps") or DEFAULT_STEPS
    texts = read_books(books) if books else [sonnets()]
    changes = read_changes(config, {**options, "steps": None})
    settings = preset(sum(book.size for book in texts)).changed(changes)
    with display(0, steps) as progress:
        comparison = compare_kernels(
            texts, settings, kernel, steps, lambda step: progress.advance(step.losses[0], 0)
        )
    print_out(str(comparison))
    return comparison.agrees


def _introduction(run: Run) -> str:
    """Return what the run trains, in two lines."""
    model = run.trainer.model
    finished = f", {run.trainer.step:,} of them done" if run.trainer.step else ""
    return (
        f"{len(run.corpus.train):,} tokens of {len(run.record.books)} book(s) for training, "
        f"{len(run.corpus.validation):,} for validation; vocabulary {run.tokenizer.vocab_size:,}\n"
        f"{model.parameter_count:,} parameters, context {model.config.context_length}; "
        f"{run.record.steps:,} steps in {run.record.precision}{finished}"
    )


def _check_extra() -> None:
    """Fail now rather than at the end of the run, if a package is missing."""
    try:
        import matplotlib  # noqa: F401  # pyright: ignore[reportMissingImports]
        import safetensors  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("heedful train", "train") from error
