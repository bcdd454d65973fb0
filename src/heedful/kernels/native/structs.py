"""The structs of native/heedful.h as bytes. Format letters: q int64, i int32, f float, d double, P pointer, Q uint64."""

from struct import Struct

import torch
from torch import Tensor

_TENSOR = "P3q"  # data; strides of batch, head, token
_PLANE = "P4q"  # data; strides of batch, head, query, key
_PROBLEM = (
    "7q"  # B, Hq, Hkv, Tq, Tk, D, Dv
    "iff"  # dtype, scale, softcap
    + 4 * _TENSOR  # query, key, value, output
    + "P"  # lse
    + "PPqi"  # start, stop, runs_batch, runs
    + 2 * _PLANE  # mask, bias
    + "P"  # sinks
    + "dQ"  # dropout_p, seed
    + "P"  # parallel_for
)
_problem = Struct(_PROBLEM)

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NO_PLANE = (0, 0, 0, 0, 0)
_NO_RUNS = (0, 0, 0, 0)


def pack_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    seed: int,
    parallel_for: int,
) -> bytes:
    """A heedful_problem. The caller keeps the tensors alive."""
    B, Hq, Tq, D = query.shape
    _, Hkv, Tk, Dv = value.shape
    return _problem.pack(
        *(B, Hq, Hkv, Tq, Tk, D, Dv),
        *(DTYPES[query.dtype], scale, softcap),
        *(*_rows(query), *_rows(key), *_rows(value), *_rows(output)),
        0 if lse is None else lse.data_ptr(),
        *(_NO_RUNS if start is None or stop is None else _runs(start, stop)),
        *(_NO_PLANE if mask is None else _plane(mask, (B, Hq, Tq, Tk))),
        *(_NO_PLANE if bias is None else _plane(bias, (B, Hq, Tq, Tk))),
        0 if sinks is None else sinks.data_ptr(),
        *(dropout_p, seed),
        parallel_for,
    )


def _rows(tensor: Tensor) -> tuple[int, int, int, int]:
    """A (B, H, T, size) tensor whose last dimension is contiguous."""
    batch, head, token, _ = tensor.stride()
    return tensor.data_ptr(), batch, head, token


def _plane(tensor: Tensor, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int, int]:
    """A tensor that broadcasts to (B, Hq, Tq, Tk): stride 0 along what all share."""
    batch, head, query, key = tensor.expand(shape).stride()
    return tensor.data_ptr(), batch, head, query, key


def _runs(start: Tensor, stop: Tensor) -> tuple[int, int, int, int]:
    """Runs of keys, contiguous (B or 1, Tq, R): start, stop, runs_batch, runs."""
    batch = start.stride(0) if start.shape[0] > 1 else 0
    return start.data_ptr(), stop.data_ptr(), batch, start.shape[2]
