"""Token matrices: the built-in sentence, or a matrix from a file."""

import csv
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.screen import visible

MAX_TOKENS: int = 512  # every step is shown, and most steps are tokens × tokens
MAX_FEATURES: int = 16_384
MAX_ENTRY: float = 1e6  # dot products of larger entries come close to the largest float32

WORDS: tuple[str, ...] = ("Your", "journey", "starts", "with", "one", "step")
EMBEDDINGS: tuple[tuple[float, ...], ...] = (
    (0.43, 0.15, 0.89),
    (0.55, 0.87, 0.66),
    (0.57, 0.85, 0.64),
    (0.22, 0.58, 0.33),
    (0.77, 0.25, 0.10),
    (0.05, 0.80, 0.55),
)


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens that the tour attends to.

    Attributes:
        matrix: (T, d), float32, one row per token.
        labels: T words, or the positions of the tokens.
        origin: Where the matrix comes from, as a phrase.
    """

    matrix: Tensor
    labels: tuple[str, ...]
    origin: str


def sentence() -> Tokens:
    """Return a sentence of six words with three features each, small enough to check every step by hand."""
    return Tokens(torch.tensor(EMBEDDINGS), WORDS, f"the sentence “{' '.join(WORDS)}”")


def read_tokens(path: Path) -> Tokens:
    """Read a matrix and convert it to float32. Its tokens are labelled by position.

    Args:
        path: A .npy, .csv or .pt file.

    Raises:
        ArgumentError: The file cannot be read, or does not contain a matrix of finite numbers, or its matrix is too
            large.
    """
    readers = {".npy": _read_npy, ".csv": _read_csv, ".pt": _read_pt}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise _unusable(path, f"the suffix {path.suffix!r}", expected="a .npy, .csv or .pt file")
    try:
        array = reader(path)
    except OSError as error:
        raise _unusable(path, f"{error.strerror or error}", "a readable file") from error
    matrix = _checked(array, path)
    return Tokens(
        matrix, tuple(map(str, range(len(matrix)))), f"the matrix in {visible(str(path))}"
    )


def _read_npy(path: Path) -> Tensor:
    try:
        # A memory map reads no data before the shape is known.
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, EOFError) as error:
        received = f"a file that NumPy cannot read: {error}"
        raise _unusable(path, received, "an array saved by numpy.save") from error
    if array.dtype.kind not in "fiub":
        raise _unusable(path, f"entries of dtype {array.dtype}")
    return torch.from_numpy(array.astype(np.float64))


def _read_csv(path: Path) -> Tensor:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file, strict=True)
            rows = [(lines.line_num, row) for row in lines if any(cell.strip() for cell in row)]
    except (csv.Error, UnicodeDecodeError) as error:
        raise _unusable(path, f"text that is not CSV: {error}") from error
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
        # The unpickler may raise any exception on a file that is not an archive of torch.save.
        if not zipfile.is_zipfile(file):
            raise _unusable(path, "a different kind of file", "a tensor saved by torch.save")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        received = f"a file that torch.load refuses: {reason}"
        raise _unusable(path, received, "a tensor saved by torch.save") from error
    if not isinstance(loaded, Tensor):
        raise _unusable(path, f"a {type(loaded).__name__}", "one tensor saved by torch.save")
    if (
        loaded.layout != torch.strided
        or loaded.is_quantized
        or loaded.is_complex()
        or loaded.is_meta
    ):
        description = f"dtype {loaded.dtype} and layout {loaded.layout} on {loaded.device}"
        raise _unusable(path, f"a tensor of {description}")
    return loaded.detach().double()


def _checked(array: Tensor, path: Path) -> Tensor:
    """Return the array as float32.

    Raises:
        ArgumentError: It is not a matrix that the tour can attend to.
    """
    shape = tuple(array.shape)
    if array.numel() == 0:
        raise _unusable(path, f"the empty shape {shape}")
    if array.dim() != 2:
        raise _unusable(path, f"the {array.dim()}-dimensional shape {shape}")
    if shape[0] > MAX_TOKENS or shape[1] > MAX_FEATURES:
        raise ArgumentError(
            "--input",
            expected=f"at most {MAX_TOKENS} tokens with {MAX_FEATURES} features, because every step is shown",
            received=f"{shape[0]} tokens with {shape[1]} features in {path}",
            remedy=f"Pass a part of the matrix: matrix[:{MAX_TOKENS}, :{MAX_FEATURES}].",
        )
    unusable = (~array.isfinite() | (array.abs() > MAX_ENTRY)).nonzero()
    if len(unusable):
        row, column = unusable[0].tolist()
        raise ArgumentError(
            "--input",
            expected=f"finite numbers from -{MAX_ENTRY:g} to {MAX_ENTRY:g}",
            received=f"{array[row, column].item()} at [{row}, {column}] of {path} "
            f"(entries of this kind: {len(unusable)})",
            remedy="Correct or rescale the data.",
        )
    return array.float()


def _unusable(
    path: Path, received: str, expected: str = "a matrix of real numbers with one row per token"
) -> ArgumentError:
    return ArgumentError(
        "--input",
        expected=expected,
        received=f"{received} ({path})",
        remedy="Save a (tokens, features) matrix with numpy.save or torch.save, or as comma-separated numbers.",
    )
