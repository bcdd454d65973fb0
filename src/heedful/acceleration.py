"""Use heedful's native kernel behind PyTorch's own `scaled_dot_product_attention`.

On CPUs, that function calls one operator for the forward pass and one for the backward pass. Both are replaced while
an `Acceleration` is active. They keep their meaning, including that of the log-sum-exp, so that the backward pass of
either kernel can follow the forward pass of the other.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful import dispatch
from heedful.errors import ArgumentError, KernelError
from heedful.kernels import native
from heedful.kernels.native import calls
from heedful.masks import MAX_KEY_RANGES, Causal
from heedful.problem import AttentionProblem
from heedful.screen import aligned

_FORWARD: str = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD: str = "_scaled_dot_product_flash_attention_for_cpu_backward"
_CAUSAL: Causal = Causal(align="start")
_HIDDEN: float = -1e29  # a value of the mask that leaves no weight beside any other score
_MIN_QUERIES_TO_READ_MASK: int = (
    64  # from here on, skipping hidden blocks saves more than reading the mask costs
)


def accelerate() -> Acceleration:
    """Use heedful's native kernel for PyTorch's `scaled_dot_product_attention` on CPUs, forward and backward.

    It applies to the whole process, in every thread, until `remove` is called or a ``with`` block ends::

        heedful.accelerate()                        # every model from now on

        with heedful.accelerate() as acceleration:  # or only in this block
            model(tokens)
        print(acceleration.report())

    Results keep PyTorch's meaning, dtypes and memory layout. If a mask of 0 and −∞ (PyTorch converts Boolean ones)
    leaves each query at most two key ranges, it is recognized, and hidden blocks are skipped. Calls that the kernel
    does not support, such as those in float64, are passed on to PyTorch's kernel, and the report states the reason.
    Several handles can be active at the same time. PyTorch's own kernels return when all of them are removed.

    PyTorch computes some calls with other operators, which are not replaced: those with ``dropout_p > 0``, with a value
    size that differs from the query's, with tensors that are not 4-D, with a mask that requires gradients, or with a
    non-contiguous last dimension; and the inference path of `nn.MultiheadAttention` and `nn.TransformerEncoder`, unless
    ``torch.backends.mha.set_fastpath_enabled(False)`` is set.

    Returns:
        The handle, with `remove` and `report`. It is also a context manager.

    Raises:
        KernelError: the native library is missing, for the reason given in the message.

    Examples:
        >>> import heedful, torch
        >>> x = torch.randn(1, 2, 64, 16)
        >>> with heedful.accelerate() as acceleration:
        ...     output = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> report = acceleration.report()
        >>> report.served + report.passed_on
        1
    """
    if native.library.missing:
        raise KernelError(f"accelerate() has no kernel to use: {native.library.missing}")
    return Acceleration()


class Acceleration:
    """A handle that keeps the native kernel active behind PyTorch's attention. `accelerate` creates it."""

    def __init__(self) -> None:
        with _lock:
            self._before = _tally.copy()
            self._counted: Counter[CallKind] | None = None  # set when the handle is removed
            _active.add(self)
            _update_operators()

    def remove(self) -> None:
        """Deactivate the handle. PyTorch's own kernels return when no other handle is active. It may be repeated."""
        with _lock:
            if self in _active:
                self._counted = _tally - self._before
                _active.remove(self)
                _update_operators()

    def report(self) -> AccelerationReport:
        """Return the calls since the handle was created, until now or until it was removed."""
        with _lock:
            counted = _tally - self._before if self._counted is None else self._counted
            return AccelerationReport(tuple(counted.most_common()))

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


# --- counting calls ----------------------------------------------------------------------------------


class CallKind(NamedTuple):
    """The properties by which calls of PyTorch's attention are counted.

    Attributes:
        direction: "forward" or "backward".
        dtype: the dtype, such as "float32".
        tokens: "Tq ≤ 8" (decoding), or otherwise "Tq = Tk" or "Tq ≠ Tk".
        mask: "none", "causal", "key ranges" (a mask tensor that was read as key ranges) or "tensor".
        passed_on: the reason why PyTorch's kernel computed the call; empty if heedful's did.
    """

    direction: str
    dtype: str
    tokens: str
    mask: str
    passed_on: str


@dataclass(frozen=True)
class AccelerationReport:
    """The calls that the native kernel computed, and those that it passed on. `print(report)` shows a table.

    Attributes:
        calls: each kind of call with its count, the most frequent first.
    """

    calls: tuple[tuple[CallKind, int], ...]

    @property
    def served(self) -> int:
        """The number of calls that heedful's kernel computed."""
        return sum(count for call, count in self.calls if not call.passed_on)

    @property
    def passed_on(self) -> int:
        """The number of calls that PyTorch's kernel computed."""
        return sum(count for call, count in self.calls if call.passed_on)

    def __str__(self) -> str:
        summary = f"{self.served} calls served, {self.passed_on} passed on to PyTorch's kernel"
        if not self.calls:
            return summary
        rows = [("calls", *CallKind._fields[:-1], "computed by")]
        for call, count in self.calls:
            computed_by = f"PyTorch: {call.passed_on}" if call.passed_on else "heedful"
            rows.append((str(count), *call[:-1], computed_by))
        return f"{summary}\n{aligned(rows)}"


def _count(direction: str, query: Tensor, key: Tensor, arguments: _KernelArguments) -> None:
    Tq, Tk = query.shape[-2], key.shape[-2]
    few = dispatch.MAX_DECODED
    tokens = f"Tq ≤ {few}" if Tq <= few else "Tq = Tk" if Tq == Tk else "Tq ≠ Tk"
    dtype = str(query.dtype).removeprefix("torch.")
    with _lock:
        _tally[CallKind(direction, dtype, tokens, arguments.mask, arguments.passed_on)] += 1


# --- the replacements of PyTorch's operators ---------------------------------------------------------


def _forward(
    keys: torch.DispatchKeySet,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the output (B, Hq, Tq, D), in the memory order of the query, and the lse (B, Hq, Tq), tokens first."""
    inputs = (query, key, value, dropout_p, is_causal)
    arguments = _kernel_arguments(*inputs, attn_mask, scale)
    _count("forward", query, key, arguments)
    if arguments.passed_on:
        return _originals[_FORWARD].call_boxed(keys, *inputs, attn_mask=attn_mask, scale=scale)
    output, lse = calls.forward(
        *(query, key, value, arguments.start, arguments.stop, None, arguments.bias, None, None),
        *(arguments.scale, 0.0, 0.0),
        wants_lse=True,
    )
    assert lse is not None
    if arguments.has_hidden_rows:  # PyTorch's lse is 0 for a query that sees nothing
        lse.masked_fill_(lse == -math.inf, 0.0)
    return output, _tokens_first(lse)


def _backward(
    keys: torch.DispatchKeySet,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key and value, tokens first."""
    arguments = _kernel_arguments(query, key, value, dropout_p, is_causal, attn_mask, scale)
    _count("backward", query, key, arguments)
    if arguments.passed_on:
        inputs = (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal)
        return _originals[_BACKWARD].call_boxed(keys, *inputs, attn_mask=attn_mask, scale=scale)
    gradients = calls.backward(
        *(grad_out, None, query, key, value, out, logsumexp.contiguous()),
        *(arguments.start, arguments.stop, None, arguments.bias, None, None),
        *(arguments.scale, 0.0, 0.0, False, False),
    )
    return tuple(map(_tokens_first, gradients[:3]))


def _tokens_first(tensor: Tensor) -> Tensor:
    """Return (B, H, T, …) in the memory order (B, T, H, …), as PyTorch's kernels do and its compiler expects."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


# --- PyTorch's arguments for the native kernel -------------------------------------------------------


class _KernelArguments(NamedTuple):
    """PyTorch's mask and scale in the form that the native kernel takes, or the reason why it cannot take them.

    Attributes:
        mask: the kind of mask, as in `CallKind`.
        passed_on: the reason why PyTorch's kernel computes the call; empty if heedful's does.
        scale: the factor of the scores.
        start, stop: the key ranges, int32 (B, Tq, 2), or None.
        bias: the bias of the scores, or None.
        has_hidden_rows: whether the mask hides every key from some query.
    """

    mask: str
    passed_on: str = ""
    scale: float = 0.0
    start: Tensor | None = None
    stop: Tensor | None = None
    bias: Tensor | None = None
    has_hidden_rows: bool = False


def _kernel_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
) -> _KernelArguments:
    """Convert PyTorch's arguments. Invalid ones are passed on, so that PyTorch raises its own error."""
    mask = "causal" if is_causal else "none" if attn_mask is None else "tensor"
    try:
        problem = AttentionProblem(
            query, key, value, _CAUSAL if is_causal else None, attn_mask, scale
        )
    except ArgumentError as error:
        return _KernelArguments(mask, str(error))
    reason = _refusal(problem, dropout_p)
    if reason:
        return _KernelArguments(mask, reason)
    if problem.bias is not None:
        return _read_mask(problem.bias, problem)
    if problem.intervals is None:
        return _KernelArguments(mask, scale=problem.factor)
    start, stop = problem.intervals.start, problem.intervals.stop
    return _KernelArguments(mask, "", problem.factor, start.contiguous(), stop.contiguous())


def _refusal(problem: AttentionProblem, dropout_p: float) -> str | None:
    """Return the reason why PyTorch's kernel should compute a problem, apart from the values of its mask."""
    reason = native.refusal(problem)
    if reason:
        return reason
    if dropout_p != 0 or problem.sizes.Dv != problem.sizes.D:
        return "PyTorch's operator has no dropout and one head size"
    tensors = (problem.query, problem.key, problem.value)
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        return "a last dimension is not contiguous"
    if problem.bias is not None:
        if problem.mask is not None:
            return "a mask together with is_causal"
        dtypes = (torch.float32, problem.query.dtype)
        if problem.bias.dim() not in (2, 4) or problem.bias.dtype not in dtypes:
            return "a mask whose dimensions or dtype PyTorch's operator does not accept"
    if next(dispatch.ranking(problem)) != native.NAME:
        return "PyTorch's kernel is faster here, as heedful.explain reports"
    return None


def _read_mask(attn_mask: Tensor, problem: AttentionProblem) -> _KernelArguments:
    """Convert an additive mask into key ranges if possible, or into a bias otherwise."""
    _, _, _, Tq, Tk, _, _ = problem.sizes
    mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    row_max = mask.amax(dim=-1)
    has_hidden_rows = row_max.amin().item() == -math.inf
    # A query whose whole mask is finite gives weights to its keys, however low the numbers are.
    has_low_rows = bool(((row_max <= _HIDDEN) & (row_max > -math.inf)).any())
    one_head = mask.shape[1] == 1 and mask.shape[3] == Tk
    if one_head and not has_low_rows and Tq >= _MIN_QUERIES_TO_READ_MASK:
        hidden = mask.bool()
        if mask.masked_fill(~hidden, -math.inf).amax() <= _HIDDEN:
            ranges = _find_key_ranges(~hidden.squeeze(1))
            if ranges is not None:
                start, stop = (edges.expand(-1, Tq, -1).contiguous() for edges in ranges)
                return _KernelArguments(
                    "key ranges", "", problem.factor, start, stop, has_hidden_rows=has_hidden_rows
                )
    return _KernelArguments(
        "tensor", scale=problem.factor, bias=mask.float(), has_hidden_rows=has_hidden_rows
    )


def _find_key_ranges(visible: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the ranges of visible keys as start and stop, or None if a query has more than two.

    Args:
        visible: Boolean (B, Tq, Tk).

    Returns:
        Two tensors int32 (B, Tq, 2): a query has at most `MAX_KEY_RANGES` ranges.
    """
    bordered = torch.nn.functional.pad(visible, (1, 1))
    edges = bordered[..., 1:] != bordered[..., :-1]
    row, key = edges.flatten(0, 1).nonzero(as_tuple=True)
    row, opening, closing = row[::2].contiguous(), key[::2], key[1::2]
    index = torch.arange(len(row)) - torch.searchsorted(row, row)  # 0 for the first range of a row
    if (index >= MAX_KEY_RANGES).any():
        return None
    B, Tq, _ = visible.shape
    start, stop = torch.zeros(2, B * Tq, MAX_KEY_RANGES, dtype=torch.int32)
    start[row, index], stop[row, index] = opening.int(), closing.int()
    return start.view(B, Tq, -1), stop.view(B, Tq, -1)


# --- replacing and restoring the operators -----------------------------------------------------------

_lock: threading.RLock = threading.RLock()
_tally: Counter[CallKind] = Counter()  # since the process started
_active: set[Acceleration] = set()
_library: torch.library.Library | None = None
_originals: dict[str, torch._C._SafeKernelFunction] = {}
# All of our kernels are kept, because a thread may still be running one that was removed.
_replacements: list[torch._C._SafeKernelFunction] = []


def _update_operators() -> None:
    """Replace the operators if a handle is active, and restore them otherwise."""
    global _library
    if _active and _library is None:
        _library = _replace_operators()
    elif not _active:
        _library = None  # which removes its implementations


def _replace_operators() -> torch.library.Library:
    """Return a library that replaces PyTorch's operators by ours, and keep the originals."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for name, replacement in ((_FORWARD, _forward), (_BACKWARD, _backward)):
            _originals[name] = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, replacement, "CPU", with_keyset=True)
            _replacements.append(torch.library.get_kernel(f"aten::{name}", "CPU"))
    return library
