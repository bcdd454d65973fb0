"""Token matrices: the built-in sentence, or a matrix from a file."""

import csv
import math
import pickletools
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.reading import open_file
from heedful.screen import visible

MAX_TOKENS: int = 512  # every step is shown, and most steps are tokens × tokens
MAX_FEATURES: int = 16_384
MAX_BYTES: int = 1 << 28  # of a .npy or .csv file: the largest matrix as text
# A .pt file may hold a large storage of which the tensor is a part; it is mapped.
MAX_PT_BYTES: int = 1 << 36
MAX_PICKLE_BYTES: int = 1 << 16
MAX_PICKLE_REFERENCES: int = 8  # each can double the time of hashing a nested tuple
MAX_LINES: int = 4 * MAX_TOKENS  # of a .csv file, blank ones included
MAX_LINE: int = 32 * MAX_FEATURES  # characters
MAX_ENTRY: float = 1e6  # dot products of larger entries come close to the largest float32

# What the pickles of tensors of every kind refer to; whether the kind can be used is seen afterwards.
ALLOWED: re.Pattern[str] = re.compile(
    r"torch\._utils\._rebuild_(tensor_v2|tensor_v3|parameter)|torch\.storage\.UntypedStorage"
    r"|torch\.[A-Z][A-Za-z0-9]*Storage|torch\.[a-z]+[0-9]+|collections\.OrderedDict"
)

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
        first_attention: The weights and the number of heads of the attention that a model applies to them; None if
            they are no model's.
    """

    matrix: Tensor
    labels: tuple[str, ...]
    origin: str
    first_attention: tuple[Mapping[str, Tensor], int] | None = None


def sentence() -> Tokens:
    """Return a sentence of six words with three features each, small enough to check every step by hand."""
    return Tokens(torch.tensor(EMBEDDINGS), WORDS, f"the sentence “{' '.join(WORDS)}”")


def read_tokens(path: Path, labels: str | None = None) -> Tokens:
    """Read a matrix and convert it to float32.

    Args:
        path: A .npy, .csv or .pt file.
        labels: A word for each token, separated by spaces. None: the tokens are labelled by position.

    Raises:
        ArgumentError: The file cannot be read, or does not contain a matrix of finite numbers, or its matrix is too
            large; or there is another number of labels.
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
    words = map(str, range(len(matrix))) if labels is None else map(visible, labels.split())
    tokens = Tokens(matrix, tuple(words), f"the matrix in {visible(str(path))}")
    if len(tokens.labels) != len(matrix):
        raise ArgumentError(
            "--labels",
            expected=f"{len(matrix)} words, one for each row of the matrix",
            received=f"{len(tokens.labels)} words",
            remedy="Separate them by spaces, within quotation marks.",
        )
    return tokens


def _read_npy(path: Path) -> Tensor:
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    with open_file(path, MAX_BYTES) as file:
        try:
            version = np.lib.format.read_magic(file)
            shape, columns_first, dtype = headers[version](file)
        except Exception as error:  # NumPy parses the header as Python, with any of Python's errors
            received = f"a file that NumPy cannot read: {error}"
            raise _unusable(path, received, "an array saved by numpy.save") from error
        if dtype.kind not in "fiub":
            raise _unusable(path, f"entries of dtype {dtype}")
        shape = tuple(map(int, shape))  # True is a size as well
        if min(shape, default=0) < 0:
            raise _unusable(path, f"the negative shape {shape}")
        _check_shape(shape, path)
        size = math.prod(shape) * dtype.itemsize
        content = file.read(size)
    if len(content) < size:
        received = f"a file that NumPy cannot read: {len(content)} of {size} bytes"
        raise _unusable(path, received, "an array saved by numpy.save")
    array = np.frombuffer(content, dtype).reshape(shape, order="F" if columns_first else "C")
    return torch.from_numpy(array.astype(np.float64, order="C"))


def _read_csv(path: Path) -> Tensor:
    with (
        open_file(path, MAX_BYTES) as binary,
        TextIOWrapper(binary, "utf-8-sig", newline="") as file,
    ):
        try:
            rows = _csv_rows(file, path)
        except (csv.Error, UnicodeDecodeError) as error:
            raise _unusable(path, f"text that is not CSV: {error}") from error
    return torch.tensor(np.array(rows)) if rows else torch.empty(0)


def _csv_rows(file: TextIO, path: Path) -> list[np.ndarray]:
    """Return the numbers of each row; reading ends at the first line that is unusable, however many follow."""
    rows: list[np.ndarray] = []
    is_first, first_line = True, 0
    for number in range(1, MAX_LINES + 2):
        line = file.readline(MAX_LINE + 1)
        if not line:
            return rows
        if number > MAX_LINES or len(line) > MAX_LINE or len(rows) > MAX_TOKENS:
            break
        for row in csv.reader([line], strict=True):
            if not any(cell.strip() for cell in row):
                continue
            is_header = is_first and not any(map(_is_number, row))
            is_first = False
            if is_header:
                continue
            rows.append(
                np.array(
                    [_number(path, number, column, cell) for column, cell in enumerate(row, 1)]
                )
            )
            first_line = first_line or number
            if len(row) != len(rows[0]):
                lengths = f"{len(row)} cells in row {number} and {len(rows[0])} in row {first_line}"
                raise _unusable(path, lengths)
    raise _unusable(
        path,
        f"more than {MAX_TOKENS} rows, {MAX_LINES} lines or {MAX_LINE} characters in a line",
        f"at most {MAX_TOKENS} tokens with {MAX_FEATURES} features",
    )


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
    try:
        _check_archive(path)
        # A mapped file takes no memory, and storages that are larger than the file are refused.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except zipfile.BadZipFile as error:
        received = "a different kind of file"
        raise _unusable(path, received, "a tensor saved by torch.save") from error
    except OSError:
        raise
    except Exception as error:  # the unpickler may raise any exception on a damaged archive
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
    _check_shape(tuple(loaded.shape), path)
    return loaded.detach().double()


def _check_archive(path: Path) -> None:
    """Refuse a .pt file that could take much time or memory before it is known whether it holds one tensor.

    torch.save compresses nothing, and the pickle of a tensor has about 40 operations.

    Raises:
        BadZipFile: The file is not an archive.
        ValueError: The archive holds something else than one tensor.
    """
    with open_file(path, MAX_PT_BYTES) as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("compressed entries")
        pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
            raise ValueError("no pickle of one tensor")
        operations = [
            (operation.name, argument)
            for operation, argument, _ in pickletools.genops(archive.read(pickles[0]))
        ]
    if sum(name.endswith("GET") for name, _ in operations) > MAX_PICKLE_REFERENCES:
        raise ValueError("more than one tensor")
    for name, argument in operations:
        function = str(argument).replace(" ", ".")
        if name in ("GLOBAL", "STACK_GLOBAL", "INST") and not ALLOWED.fullmatch(function):
            raise ValueError(f"{function} in its pickle")


def _check_shape(shape: tuple[int, ...], path: Path) -> None:
    """Raise `ArgumentError` unless this is the shape of a matrix that the tour can attend to."""
    if len(shape) != 2:
        empty = 0 in shape
        received = (
            f"the empty shape {shape}" if empty else f"the {len(shape)}-dimensional shape {shape}"
        )
        raise _unusable(path, received)
    if 0 in shape:
        raise _unusable(path, f"the empty shape {shape}")
    if shape[0] > MAX_TOKENS or shape[1] > MAX_FEATURES:
        raise ArgumentError(
            "--input",
            expected=f"at most {MAX_TOKENS} tokens with {MAX_FEATURES} features, because every step is shown",
            received=f"{shape[0]} tokens with {shape[1]} features in {path}",
            remedy=f"Pass a part of the matrix: matrix[:{MAX_TOKENS}, :{MAX_FEATURES}].",
        )


def _checked(array: Tensor, path: Path) -> Tensor:
    """Return the array as float32.

    Raises:
        ArgumentError: It is not a matrix that the tour can attend to.
    """
    _check_shape(tuple(array.shape), path)
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
