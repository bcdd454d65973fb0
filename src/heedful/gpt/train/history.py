"""The history of a run: the losses of each step, in a CSV file."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heedful.errors import ArgumentError
from heedful.reading import open_file
from heedful.writing import reserved

MAX_HISTORY = 1 << 30  # bytes; ten million steps


@dataclass(frozen=True)
class StepLosses:
    """The losses of one step: a row of the file.

    Attributes:
        step: the number of the step, counted from 1.
        tokens: the number of training tokens read so far.
        learning_rate: the rate of the step.
        training: the loss of the step's own batch before it, in nats per token.
        validation: the loss of validation tokens after the step, in nats per token, if it was measured.
    """

    step: int
    tokens: int
    learning_rate: float
    training: float
    validation: float | None = None


def write_history(path: Path, history: Sequence[StepLosses]) -> None:
    """Write a CSV file with one row per step.

    Raises:
        ArgumentError: the file cannot be written.
    """
    with reserved(path, "--out") as write:
        write(_table(history))


def history_digest(history: Sequence[StepLosses]) -> str:
    """Return the SHA-256 digest of the file that `write_history` would write."""
    return hashlib.sha256(_table(history).encode()).hexdigest()


def read_history(path: Path, steps: int, digest: str) -> list[StepLosses]:
    """Read the first rows of a file that `write_history` wrote.

    Args:
        path: the file.
        steps: the number of rows to read; the file may have more.
        digest: their `history_digest`.

    Raises:
        ArgumentError: the file cannot be read, has fewer rows, or was changed.
    """
    try:
        with (
            open_file(path, MAX_HISTORY) as binary,
            io.TextIOWrapper(binary, "utf-8", newline="") as file,
        ):
            history = [_parse(row) for row in itertools.islice(csv.DictReader(file), steps)]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise _unusable(path, steps, str(error)) from error
    if [losses.step for losses in history] != list(range(1, steps + 1)):
        raise _unusable(path, steps, f"{len(history)} rows")
    if history_digest(history) != digest:
        raise _unusable(path, steps, "other values than heedful train wrote")
    return history


def _table(history: Sequence[StepLosses]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(StepLosses))
    writer.writerows(dataclasses.astuple(losses) for losses in history)
    return table.getvalue()


def _parse(row: dict[str, str]) -> StepLosses:
    return StepLosses(
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
        remedy="Restore a copy of the file, or start a new run in another folder with --out.",
    )
