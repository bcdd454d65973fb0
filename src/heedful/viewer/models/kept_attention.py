"""The queries and keys of a model's attentions in a temporary file, and the tiles of weights that follow from them."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks import Dense, KeyRanges
from heedful.problem import AttentionProblem
from heedful.summaries import Summary, summarize

ALIGNMENT = 64
LARGE_FILES = "/var/tmp"  # on a disk, where /tmp may be memory


class Tile(NamedTuple):
    """The weights in blocks of a rectangle of queries and keys.

    Attributes:
        mean: (rows, columns), float32, the mean weight of each block; hidden keys count as 0.
        maximum: (rows, columns), likewise.
    """

    mean: Tensor
    maximum: Tensor


class _Place(NamedTuple):
    """Where a tensor lies in the file."""

    offset: int
    dtype: torch.dtype
    stored: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Layer:
    """One attention of the model."""

    tensors: dict[str, _Place]
    intervals: Intervals | None
    scale: float | None
    softcap: float | None


class KeptAttention:
    """The attentions of a model over one text, whose tiles are computed when they are asked for.

    The file has no name, so that the system removes it however the process ends.

    Args:
        size: The number of bytes that will be kept, at most; `size_of` computes it.

    Raises:
        ArgumentError: The disk has no room.

    Examples:
        >>> from heedful import Causal, summarize
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> with KeptAttention(size=1000) as kept:
        ...     kept.add(AttentionProblem(x, x, x, Causal()), summarize(x, x, Causal()))
        ...     kept.tile(layer=0, head=0, rows=(0, 4), columns=(0, 2), cells=2).mean
        tensor([[0.7500, 0.2500],
                [0.2917, 0.2917]])
    """

    def __init__(self, size: int) -> None:
        self.folder: Path = _folder()
        free = shutil.disk_usage(self.folder).free
        if free < size:
            raise _no_room(self.folder, f"{in_megabytes(size)} free", in_megabytes(free))
        self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed by __exit__
        self._layers: list[_Layer] = []
        self._mapped: mmap.mmap | None = None

    def __enter__(self) -> KeptAttention:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._mapped is not None:
            with suppress(BufferError):  # a tensor of a tile still lies in it
                self._mapped.close()
        self._file.close()

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """For each attention, its numbers of heads, queries and keys."""
        found = []
        for layer in self._layers:
            query, key = layer.tensors["query"].shape, layer.tensors["key"].shape
            found.append((query[1], query[2], key[2]))
        return found

    def add(self, problem: AttentionProblem, summary: Summary) -> None:
        """Keep an attention of one text.

        Args:
            problem: Its queries and keys (1, H, T, D), mask and options.
            summary: Its summary, which has the log-sum-exp.

        Raises:
            ArgumentError: The disk is full.
        """
        tensors = {"query": problem.query, "key": problem.key, "lse": summary.lse}
        if problem.bias is not None:
            tensors["bias"] = problem.bias.expand(*problem.query.shape[:3], problem.key.shape[2])
        if problem.intervals is None and problem.dense_mask is not None:
            tensors["mask"] = problem.dense_mask
        try:
            places = {name: self._write(tensor) for name, tensor in tensors.items()}
        except OSError as error:
            raise _no_room(
                self.folder, "room for another layer", error.strerror or str(error)
            ) from error
        intervals = None if problem.intervals is None else problem.intervals.clone()
        self._layers.append(_Layer(places, intervals, problem.scale, problem.softcap))

    def _write(self, tensor: Tensor) -> _Place:
        """Append a tensor, without entries that it repeats.

        Writing into a map of the file would end the process when the disk is full; this raises `OSError`.
        """
        once = tensor.detach()
        for axis, stride in enumerate(tensor.stride()):
            if stride == 0:
                once = once.narrow(axis, 0, 1)
        offset = self._file.seek(0, os.SEEK_END)
        offset = self._file.seek(-(-offset // ALIGNMENT) * ALIGNMENT)
        packed = torch.empty(once.shape, dtype=once.dtype).copy_(once)
        self._file.write(packed.view(-1).view(torch.uint8).numpy().data)
        return _Place(offset, tensor.dtype, tuple(once.shape), tuple(tensor.shape))

    def _read(self, place: _Place) -> Tensor:
        if self._mapped is None:
            self._file.flush()
            self._mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        count = torch.Size(place.stored).numel()
        flat = torch.frombuffer(self._mapped, dtype=place.dtype, count=count, offset=place.offset)
        return flat.view(place.stored).expand(place.shape)

    def tile(
        self, *, layer: int, head: int, rows: tuple[int, int], columns: tuple[int, int], cells: int
    ) -> Tile:
        """Compute a rectangle of the weights of one head, in blocks of equal size.

        Args:
            layer: The index of the attention among those kept.
            head: The index of the query head.
            rows: The queries (first, last + 1).
            columns: The keys, likewise.
            cells: The number of rows and of columns of blocks, at most. Where it is enough, a block is one weight.
        """
        kept = self._layers[layer]
        (a, b), (c, d) = rows, columns
        query, key, lse = (self._read(kept.tensors[name]) for name in ("query", "key", "lse"))
        key_head = head // (query.shape[1] // key.shape[1])
        bias = mask = None
        if "bias" in kept.tensors:
            bias = self._read(kept.tensors["bias"])[:, head : head + 1, a:b, c:d]
        if kept.intervals is not None:
            mask = KeyRanges(kept.intervals.part(a, b - a, c, d - c))
        elif "mask" in kept.tensors:
            dense = self._read(kept.tensors["mask"]).expand(1, query.shape[1], query.shape[2], -1)
            mask = Dense(dense[:, head : head + 1, a:b, c:d])
        summary = summarize(
            query[:, head : head + 1, a:b],
            key[:, key_head : key_head + 1, c:d],
            mask,
            bias=bias,
            scale=kept.scale,
            softcap=kept.softcap,
            lse=lse[:, head : head + 1, a:b],
            for_each_query=False,
            for_each_key=False,
            pool=cells,
        )
        assert summary.pooled_mean is not None
        assert summary.pooled_max is not None
        return Tile(summary.pooled_mean[0, 0].float(), summary.pooled_max[0, 0].float())


def _folder() -> Path:
    """Return the folder for large temporary files; TMPDIR names another."""
    if "TMPDIR" not in os.environ and os.access(LARGE_FILES, os.W_OK):
        return Path(LARGE_FILES)
    return Path(tempfile.gettempdir())


def in_megabytes(size: int) -> str:
    """Return a number of bytes as text.

    >>> in_megabytes(1_500_000_001)
    '1,501 MB'
    """
    return f"{-(-size // 10**6):,} MB"


def _no_room(folder: Path, expected: str, received: str) -> ArgumentError:
    return ArgumentError(
        "--serve",
        expected=f"{expected} in {folder}, for the queries and keys",
        received=received,
        remedy="Choose fewer by --layers, --heads or --tokens, or another folder by the variable TMPDIR.",
    )
