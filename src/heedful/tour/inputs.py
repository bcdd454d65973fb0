"""Where the tour's token matrix comes from: the sentence in the package, a file, or a text's real embeddings."""

import csv
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError

MOST_TOKENS = 512  # every step is shown, and most steps are tokens × tokens
MOST_FEATURES = 16_384
LARGEST_ENTRY = 1e6  # dot products of larger entries come near the end of float32's range

WORDS = ("Your", "journey", "starts", "with", "one", "step")
EMBEDDINGS = (
    (0.43, 0.15, 0.89),
    (0.55, 0.87, 0.66),
    (0.57, 0.85, 0.64),
    (0.22, 0.58, 0.33),
    (0.77, 0.25, 0.10),
    (0.05, 0.80, 0.55),
)


@dataclass(frozen=True, eq=False)
class Tokens:
    """What the tour attends to.

    Attributes:
        matrix: (T, d), float32: one row a token.
        labels: T words, or the tokens' positions.
        origin: where the matrix came from, as a phrase.
    """

    matrix: Tensor
    labels: tuple[str, ...]
    origin: str


def sentence() -> Tokens:
    """Six words, three features each: small enough to check every step by hand."""
    return Tokens(torch.tensor(EMBEDDINGS), WORDS, f"the sentence “{' '.join(WORDS)}”")


def read(path: Path) -> Tokens:
    """The matrix in a .npy, .csv or .pt file, converted to float32 and labelled by position.

    Raises:
        ArgumentError: there is no such file, it holds no matrix of finite numbers, or one too large.
    """
    readers = {".npy": _read_npy, ".csv": _read_csv, ".pt": _read_pt}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise _unusable(
            path, f"a suffix {path.suffix!r}", expected="a file called .npy, .csv or .pt"
        )
    try:
        array = reader(path)
    except OSError as error:
        raise _unusable(path, f"{error.strerror or error}", "a file that can be read") from error
    matrix = _checked(array, path)
    return Tokens(matrix, tuple(map(str, range(len(matrix)))), f"the matrix in {path}")


def _read_npy(path: Path) -> Tensor:
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # reads nothing before the shape is known
    except (ValueError, EOFError) as error:
        raise _unusable(
            path, f"what NumPy refuses: {error}", "an array saved by numpy.save"
        ) from error
    if array.dtype.kind not in "fiub":
        raise _unusable(path, f"entries of dtype {array.dtype}")
    return torch.from_numpy(array.astype(np.float64))


def _read_csv(path: Path) -> Tensor:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            rows = [(lines.line_num, row) for row in lines if any(cell.strip() for cell in row)]
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unusable(path, f"text that is no CSV: {error}") from error
    if rows and not any(_is_number(cell) for cell in rows[0][1]):
        rows = rows[1:]  # a header
    numbers = [
        [_number(path, line, column, cell) for column, cell in enumerate(row, 1)]
        for line, row in rows
    ]
    for line, row in rows:
        first_line, first_row = rows[0]
        if len(row) != len(first_row):
            lengths = f"{len(row)} cells in row {line} and {len(first_row)} in row {first_line}"
            raise _unusable(path, lengths)
    return torch.tensor(numbers, dtype=torch.float64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(path: Path, line: int, column: int, cell: str) -> float:
    if not _is_number(cell):
        raise _unusable(path, f"{cell!r} in row {line}, column {column}")
    return float(cell)


def _read_pt(path: Path) -> Tensor:
    with path.open("rb") as file:
        # On what is no archive of torch.save's, its unpickler may raise anything.
        if not zipfile.is_zipfile(file):
            raise _unusable(path, "something else", "a tensor saved by torch.save")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise _unusable(
            path, f"what torch.load refuses: {reason}", "a tensor saved by torch.save"
        ) from error
    if not isinstance(loaded, Tensor):
        raise _unusable(path, f"a {type(loaded).__name__}", "one tensor saved by torch.save")
    if (
        loaded.layout != torch.strided
        or loaded.is_quantized
        or loaded.is_complex()
        or loaded.is_meta
    ):
        kind = f"a tensor of dtype {loaded.dtype} and layout {loaded.layout} on {loaded.device}"
        raise _unusable(path, kind)
    return loaded.detach().double()


def _checked(array: Tensor, path: Path) -> Tensor:
    """The array as float32, where it is a matrix that the tour can climb with."""
    shape = tuple(array.shape)
    if array.numel() == 0:
        raise _unusable(path, f"shape {shape} without a number")
    if array.dim() != 2:
        raise _unusable(path, f"{array.dim()}-dimensional shape {shape}")
    if shape[0] > MOST_TOKENS or shape[1] > MOST_FEATURES:
        raise ArgumentError(
            "--input",
            expected=f"at most {MOST_TOKENS} tokens of {MOST_FEATURES} features, as every step is shown",
            received=f"{shape[0]} tokens of {shape[1]} features in {path}",
            remedy=f"Pass a part of it: matrix[:{MOST_TOKENS}, :{MOST_FEATURES}].",
        )
    strange = (~array.isfinite() | (array.abs() > LARGEST_ENTRY)).nonzero()
    if len(strange):
        row, column = strange[0].tolist()
        raise ArgumentError(
            "--input",
            expected=f"finite numbers from -{LARGEST_ENTRY:g} to {LARGEST_ENTRY:g}",
            received=f"{array[row, column].item()} at [{row}, {column}] of {path}, {len(strange)} such in all",
            remedy="Mend or scale the data first.",
        )
    return array.float()


def _unusable(
    path: Path, received: str, expected: str = "a matrix of real numbers, one row a token"
) -> ArgumentError:
    return ArgumentError(
        "--input",
        expected=expected,
        received=f"{received} ({path})",
        remedy="Save a (tokens, features) matrix by numpy.save or torch.save, or as comma-separated numbers.",
    )
