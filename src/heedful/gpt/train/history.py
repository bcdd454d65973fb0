"""The losses of a run, as a table that any program reads and as a curve."""

# What is imported here comes with the extra:
# pyright: reportMissingImports=false
import csv
import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.errors import ArgumentError
from heedful.writing import reserved


@dataclass(frozen=True)
class Losses:
    """What one step cost: a line of the table."""

    step: int  # counted from 1
    tokens: int  # read so far
    learning_rate: float
    training: float  # nats per token, of the step's own batch before it
    validation: float | None = None  # nats per token, where it was measured after the step


def write_table(path: Path, history: Sequence[Losses]) -> None:
    """Write a CSV file with a line a step.

    Raises:
        ArgumentError: it cannot be written.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(Losses))
    writer.writerows(dataclasses.astuple(losses) for losses in history)
    with reserved(path, "--out") as write:
        write(table.getvalue())


def read_table(path: Path, steps: int) -> list[Losses]:
    """The first lines of a table of `write_table`, one for each of `steps`.

    Raises:
        ArgumentError: they are not all there.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            history = [_losses(row) for row in csv.DictReader(file)][:steps]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unusable(path, steps, str(error)) from error
    if [losses.step for losses in history] != list(range(1, steps + 1)):
        raise _unusable(path, steps, f"{len(history)} of them")
    return history


def _losses(row: dict[str, str]) -> Losses:
    return Losses(
        int(row["step"]),
        int(row["tokens"]),
        float(row["learning_rate"]),
        float(row["training"]),
        float(row["validation"]) if row["validation"] else None,
    )


def _unusable(path: Path, steps: int, received: str) -> ArgumentError:
    return ArgumentError(
        "--resume",
        expected=f"the losses of {steps} steps in {path}",
        received=received,
        remedy="Put back a copy of it, or start anew in another folder with --out.",
    )


def write_curve(path: Path, history: Sequence[Losses], bigram: float) -> None:
    """Draw training and validation loss over the tokens read, beside the bigram model's, as PNG.

    Raises:
        ArgumentError: it cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [row.tokens for row in history],
        [row.training for row in history],
        linewidth=0.6,
        alpha=0.5,
        label="training, each step's batch",
    )
    measured = [(row.tokens, row.validation) for row in history if row.validation is not None]
    axes.plot(
        *zip(*measured, strict=True),
        "o-",
        markersize=3,
        label="validation",
    )
    axes.axhline(
        bigram, color="gray", linestyle="--", label="interpolated bigram model, validation"
    )
    axes.set_xlabel("tokens read")
    axes.set_ylabel("loss, nats per token")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    with reserved(path, "--out") as write:
        write(drawn.getvalue())
