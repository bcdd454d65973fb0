"""The structs of native/heedful.h, packed into bytes.

Letters of the formats: q int64, Q uint64, i int32, f float, d double, P pointer.
"""

from collections.abc import Callable
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
    + "PPqi"  # range_start, range_stop, range_batch, key_ranges
    + 2 * _PLANE  # mask, bias
    + "P"  # sinks
    + "dQ"  # dropout_p, seed
    + "P"  # parallel_for
)
_GRADIENT = (
    _PROBLEM  # forward
    + "P"  # grad_lse
    + 4 * _TENSOR  # grad_output, grad_query, grad_key, grad_value
    + _PLANE  # grad_bias
    + "P"  # grad_sinks
)
_SUMMARY = (
    _PROBLEM  # attention
    + "Pq"  # lse, shift
    + "5P"  # mass, entropy, largest, distance, received
    + "qPP"  # top_k, top_weights, top_keys
    + "qqPPP"  # regions, region_batch, region_start, region_stop, region_mass
    + "4qPP"  # cell_queries, cell_keys, query_offset, key_offset, cell_sums, cell_maxima
)
PROBLEM = Struct(_PROBLEM)
_ROWS = Struct(4 * "P24s")  # query, key, value, output: the address and the packed strides of each
_ROWS_AT = Struct("7qiff0P").size  # where they are in a heedful_problem
GRADIENT = Struct(_GRADIENT)
SUMMARY = Struct(_SUMMARY)

DTYPES: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_NO_PLANE = (0, 0, 0, 0, 0)
_NO_KEY_RANGES = (0, 0, 0, 0)
# Unlike `Tensor.data_ptr`, it copies no lazily cloned tensor. Results are new tensors, which are never lazily cloned.
# Older versions of PyTorch have only the second function, which is slower.
_address: Callable[[Tensor], int] = getattr(
    Tensor,
    "const_data_ptr",
    torch._C._data_address,  # pyright: ignore[reportAttributeAccessIssue]
)


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
    """Pack a heedful_problem. The caller keeps the tensors alive."""
    B, Hq, Tq, D = query.shape
    _, Hkv, Tk, Dv = value.shape
    return PROBLEM.pack(
        *(B, Hq, Hkv, Tq, Tk, D, Dv),
        *(DTYPES[query.dtype], scale, softcap),
        *(*_pack_rows(query), *_pack_rows(key), *_pack_rows(value), *_pack_rows(output)),
        0 if lse is None else _address(lse),
        *(_NO_KEY_RANGES if start is None or stop is None else _pack_key_ranges(start, stop)),
        *(_NO_PLANE if mask is None else _pack_plane(mask, (B, Hq, Tq, Tk))),
        *(_NO_PLANE if bias is None else _pack_plane(bias, (B, Hq, Tq, Tk))),
        0 if sinks is None else _address(sinks),
        *(dropout_p, seed),
        parallel_for,
    )


class PackedCall:
    """A packed heedful_problem that also serves other tensors of the same shapes and strides.

    Args:
        problem: what `pack_problem` returned.
        kept: tensors, other than query, key, value and output, to which it points.
    """

    def __init__(self, problem: bytes, *kept: Tensor | None) -> None:
        self._before, self._after = problem[:_ROWS_AT], problem[_ROWS_AT + _ROWS.size :]
        _, self._query, _, self._key, _, self._value, _, self._output = _ROWS.unpack_from(
            problem, _ROWS_AT
        )
        self._kept = kept

    def with_tensors(self, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> bytes:
        """Return the heedful_problem of other tensors, which the caller keeps alive."""
        rows = _ROWS.pack(
            *(_address(query), self._query, _address(key), self._key),
            *(_address(value), self._value, _address(output), self._output),
        )
        return self._before + rows + self._after


def pack_sizes(sizes: tuple[int, ...], dtype: torch.dtype) -> bytes:
    """Pack a heedful_problem of these sizes (B, Hq, Hkv, Tq, Tk, D, Dv) without tensors."""
    return Struct("7qi").pack(*sizes, DTYPES[dtype]).ljust(PROBLEM.size, b"\0")


def pack_gradient(
    problem: bytes,
    Tk: int,
    grad_lse: Tensor | None,
    grad_output: Tensor,
    grad_query: Tensor,
    grad_key: Tensor,
    grad_value: Tensor,
    grad_bias: Tensor | None,
    grad_sinks: Tensor | None,
) -> bytes:
    """Pack a heedful_gradient around a packed heedful_problem. The caller keeps the tensors alive."""
    B, Hq, Tq, _ = grad_output.shape
    return GRADIENT.pack(
        *PROBLEM.unpack(problem),
        0 if grad_lse is None else _address(grad_lse),
        *(*_pack_rows(grad_output), *_pack_rows(grad_query)),
        *(*_pack_rows(grad_key), *_pack_rows(grad_value)),
        *(_NO_PLANE if grad_bias is None else _pack_plane(grad_bias, (B, Hq, Tq, Tk))),
        0 if grad_sinks is None else _address(grad_sinks),
    )


def pack_summary(
    problem: bytes,
    lse: Tensor | None,
    shift: int,
    results: tuple[Tensor | None, ...],
    top: tuple[int, Tensor, Tensor],
    regions: tuple[Tensor, Tensor, Tensor] | None,
    cell: list[int],
    cells: tuple[Tensor, Tensor],
) -> bytes:
    """Pack a heedful_summary around a packed heedful_problem. The caller keeps the tensors alive.

    Args:
        problem: the packed heedful_problem.
        lse: the given normalizers.
        shift: the place of query 0 among the keys.
        results: mass, entropy, largest, distance and received; None: not computed.
        top: top_k, top_weights, top_keys.
        regions: start and stop (B or 1, Tq, R), and the tensor for their masses.
        cell: the queries and keys of a cell, and their offsets; empty: there is no map.
        cells: the tensors for sums and maxima.
    """
    top_k, *top_tensors = top
    start, stop, masses = regions or (None, None, None)
    return SUMMARY.pack(
        *PROBLEM.unpack(problem),
        *(_address_or_null(lse), shift),
        *map(_address_or_null, results),
        *(top_k, *map(_address_or_null, top_tensors)),
        *(0 if start is None else start.shape[2], _batch_stride(start)),
        *map(_address_or_null, (start, stop, masses)),
        *(cell or (0, 0, 0, 0)),
        *(map(_address_or_null, cells) if cell else (0, 0)),
    )


def _address_or_null(tensor: Tensor | None) -> int:
    return 0 if tensor is None else _address(tensor)


def _batch_stride(ranges: Tensor | None) -> int:
    """Return the stride of the batch entries of contiguous ranges (B or 1, Tq, R); 0 if they share them."""
    return 0 if ranges is None or ranges.shape[0] == 1 else ranges.stride(0)


def _pack_rows(tensor: Tensor) -> tuple[int, int, int, int]:
    """Return the fields of a heedful_tensor: a tensor (B, H, T, size) whose last dimension is contiguous."""
    batch, head, token, _ = tensor.stride()
    return _address(tensor), batch, head, token


def _pack_plane(tensor: Tensor, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int, int]:
    """Return the fields of a heedful_plane: a tensor broadcast to (B, Hq, Tq, Tk), with stride 0 along new axes."""
    batch, head, query, key = tensor.expand(shape).stride()
    return _address(tensor), batch, head, query, key


def _pack_key_ranges(start: Tensor, stop: Tensor) -> tuple[int, int, int, int]:
    """Return range_start, range_stop, range_batch and key_ranges of contiguous tensors (B or 1, Tq, key_ranges)."""
    return _address(start), _address(stop), _batch_stride(start), start.shape[2]
