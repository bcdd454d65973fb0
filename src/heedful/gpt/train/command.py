"""The commands `heedful train` and `heedful train --against`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError, MissingExtraError
from heedful.gpt.data.books import Book, read_books, sample_share, sonnets
from heedful.gpt.model import GPT
from heedful.gpt.train.compare import DEFAULT_STEPS, compare_kernels
from heedful.gpt.train.config import preset, read_changes
from heedful.gpt.train.lock import locked
from heedful.gpt.train.loop import train_to_end
from heedful.gpt.train.mesh import Mesh
from heedful.gpt.train.processes import ranks_for
from heedful.gpt.train.progress import Clock, display
from heedful.gpt.train.ranks import OneRank
from heedful.gpt.train.report import write_report
from heedful.gpt.train.run import Run, begin_run, check_folder, open_run
from heedful.gpt.train.trainer import check_mesh
from heedful.screen import print_out


def train(
    books: Sequence[Path],
    out: Path,
    *,
    config: Path | None,
    options: Mapping[str, Any],
    resume: bool,
    mesh: str | None = None,
) -> bool:
    """Train a GPT on books and keep the run in a folder.

    Args:
        books: UTF-8 files, or folders of .txt files. Without any, a new run reads Shakespeare's sonnets, and a resumed
            run reads the books that it was started with.
        out: the run's folder. It must not exist yet; with `resume` it must hold a run.
        config: a TOML file that changes the defaults.
        options: values from the command line, which take precedence over the file's; None leaves a value alone.
        resume: whether to continue from the last checkpoint in `out`.
        mesh: the sizes of a mesh of ranks, such as "dp=2,cp=2,tp=1", each a process that torchrun has started; None:
            this process alone.

    Returns:
        True if the run is finished, False if Ctrl-C ended it early.

    Raises:
        ArgumentError: an argument cannot be used; nothing is overwritten.
        MissingExtraError: the extra "train" is not installed.
        RankError: another rank failed, has ended, or does not answer.
    """
    _check_extra()
    texts = read_books(books) if books else []
    changes = read_changes(config, options)
    with ranks_for(mesh) as ranks:
        if not resume:
            ranks.first_does(lambda: _begin(out, texts, changes, ranks.mesh))
        ranks.first_does(lambda: check_folder(out))
        with locked(out) if ranks.first else nullcontext():
            return _continue(out, texts, changes, resume, ranks)


def _begin(out: Path, texts: Sequence[Book], changes: Mapping[str, Any], mesh: Mesh) -> None:
    """Prepare a run in a folder."""
    texts = texts or [sonnets()]
    settings = preset(sum(book.size for book in texts)).changed(changes)
    check_mesh(mesh, settings)
    if mesh.ranks > 1 and settings.minutes is not None:
        raise ArgumentError(
            "minutes",
            expected="a budget of steps or tokens with --mesh",
            received=f"{settings.minutes:g} minutes",
            remedy="Pass --steps or --tokens: how long a step takes on many ranks is not known before.",
        )
    begin_run(out, texts, settings)
    if settings.tokenizer == "bpe" and sample_share(texts) < 1:
        print_out(f"The tokenizer was trained on a random {sample_share(texts):.0%} of the text.")


def _continue(
    out: Path, texts: Sequence[Book], changes: Mapping[str, Any], resume: bool, ranks: OneRank
) -> bool:
    """Train the run in a folder from its last checkpoint to its end, and return False if Ctrl-C ended it early."""
    run = open_run(out, Clock(), ranks)
    if resume:
        ranks.first_does(lambda: run.record.check_unchanged(texts, changes))
    if resume and run.trainer.step:
        run.save_model()  # a kill after the checkpoint leaves the model before it
    ranks.first_does(lambda: print_out(_introduction(run)))
    with display(run.trainer.step, run.record.steps, quiet=not ranks.first) as progress:
        finished = train_to_end(run, progress)
    run.trainer.with_whole_model(lambda model: print_out(_conclusion(run, model, out, finished)))
    return finished


def _conclusion(run: Run, model: GPT, out: Path, finished: bool) -> str:
    """Return the report of a finished run, which is written; of another, how to continue it."""
    if finished:
        report = write_report(run, model)
        return f"\n{report}\n\nWritten to {out}: the model, losses.csv, losses.png and report.txt"
    return f"Interrupted, and saved after step {run.trainer.step}. Continue with: heedful train --resume --out {out}"


def compare(
    books: Sequence[Path],
    kernel: str,
    *,
    config: Path | None,
    options: Mapping[str, Any],
    mesh: str | None = None,
) -> bool:
    """Train the same steps on heedful's attention kernel and on another one, and write nothing.

    Args:
        books: as in `train`.
        kernel: the name of the other kernel.
        config: as in `train`.
        options: as in `train`; `steps` is the number of steps to compare, 200 by default.
        mesh: must be None, because kernels are compared in one process.

    Returns:
        Whether the two losses agree.

    Raises:
        ArgumentError: an argument cannot be used.
        KernelError: one of the kernels cannot run here.
        MissingExtraError: the extra "train" is not installed.
    """
    if mesh is not None:
        raise ArgumentError(
            "--mesh",
            expected="none with --against, which compares kernels in one process",
            received=mesh,
            remedy="Leave one of the two options out.",
        )
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
    model, ranks = run.trainer.model, run.ranks.mesh
    over = f" on {ranks.ranks} ranks ({ranks})" if ranks.ranks > 1 else ""
    finished = f", {run.trainer.step:,} of them done" if run.trainer.step else ""
    return (
        f"{len(run.corpus.train):,} tokens of {len(run.record.books)} book(s) for training, "
        f"{len(run.corpus.validation):,} for validation; vocabulary {run.tokenizer.vocab_size:,}\n"
        f"{model.parameter_count:,} parameters, context {model.config.context_length}; "
        f"{run.record.steps:,} steps in {run.record.precision}{over}{finished}"
    )


def _check_extra() -> None:
    """Fail now rather than at the end of the run, if a package is missing."""
    try:
        import matplotlib  # noqa: F401  # pyright: ignore[reportMissingImports]
        import safetensors  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("Training", "train") from error
