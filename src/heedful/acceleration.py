"""accelerate(): our native kernel behind PyTorch's own `scaled_dot_product_attention`, which models call.

On CPUs that function comes down to one operator and its backward. Both are replaced while an `Acceleration` lasts, and
keep their meaning, the log-sum-exp's included, so that either kernel's backward may follow either's forward.
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
from heedful.masks import Causal
from heedful.problem import AttentionProblem

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
_CAUSAL = Causal(align="start")
_HIDING = -1e29  # added to a score, it leaves no weight beside any other score
_WORTH_READING = 64  # queries, from which on the blocks that a mask hides pay for looking at it


def accelerate() -> Acceleration:
    """Put our native kernel behind PyTorch's `scaled_dot_product_attention` for CPU tensors, forward and backward.

    For the whole process, in every thread, until `remove` or the end of a ``with`` block::

        heedful.accelerate()                        # every model, from now on

        with heedful.accelerate() as acceleration:  # or only here
            model(tokens)
        print(acceleration.report())

    Results keep PyTorch's meaning, dtypes and memory layout. Masks of 0 and −∞ (Boolean ones arrive as such) in which a
    query sees at most two runs of keys are recognised, and what they hide is skipped. What the kernel does not take
    (float64, say) goes on to PyTorch's, and the report says why. Calling it twice gives two handles and replaces once;
    the originals are back when every handle is removed.

    Not reached, because PyTorch computes these by other operators: ``dropout_p > 0``, value sizes other than the
    query's, tensors that are not 4-D, masks that need gradients, a non-contiguous last dimension; and the inference
    path of `nn.MultiheadAttention` and `nn.TransformerEncoder`, until
    ``torch.backends.mha.set_fastpath_enabled(False)``.

    Returns:
        The handle: `remove` and `report`, and a context manager.

    Raises:
        KernelError: there is no native library; the text says why.
    """
    if native.library.missing:
        raise KernelError(f"accelerate() has nothing to put in place: {native.library.missing}")
    return Acceleration()


class Acceleration:
    """One asking for the native kernel behind PyTorch's attention; made by `accelerate`."""

    def __init__(self) -> None:
        with _lock:
            self._before = _tally.copy()
            self._counted: Counter[Call] | None = None  # once removed
            _active.add(self)
            _replace_or_restore()

    def remove(self) -> None:
        """End it; PyTorch's own kernels are back once no other handle is left. A second time does nothing."""
        with _lock:
            if self in _active:
                self._counted = _tally - self._before
                _active.remove(self)
                _replace_or_restore()

    def report(self) -> Report:
        """What was called since it began, until now or until its removal."""
        with _lock:
            counted = _tally - self._before if self._counted is None else self._counted
            return Report(tuple(counted.most_common()))

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


# --- what is counted ---------------------------------------------------------------------------------


class Call(NamedTuple):
    """A kind of call of PyTorch's attention.

    Attributes:
        direction: "forward" or "backward".
        dtype: "float32", …
        tokens: "Tq ≤ 8" (decoding), or else "Tq = Tk" or "Tq ≠ Tk".
        mask: "none", "causal", "runs" (a mask tensor read as runs of keys), or "tensor".
        passed_on: why PyTorch's kernel computed it; empty: ours did.
    """

    direction: str
    dtype: str
    tokens: str
    mask: str
    passed_on: str


@dataclass(frozen=True)
class Report:
    """How often the native kernel served, and what it passed on; printed, a table.

    Attributes:
        calls: each kind of call and how often it came, the most frequent first.
    """

    calls: tuple[tuple[Call, int], ...]

    @property
    def served(self) -> int:
        """How many calls our kernel computed."""
        return sum(count for call, count in self.calls if not call.passed_on)

    @property
    def passed_on(self) -> int:
        """How many went on to PyTorch's."""
        return sum(count for call, count in self.calls if call.passed_on)

    def __str__(self) -> str:
        summary = f"{self.served} calls served, {self.passed_on} passed on to PyTorch's kernel"
        if not self.calls:
            return summary
        rows = [("calls", *Call._fields[:-1], "computed by")]
        for call, count in self.calls:
            by = f"PyTorch: {call.passed_on}" if call.passed_on else "heedful"
            rows.append((str(count), *call[:-1], by))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join([summary, *lines])


# --- the operators -----------------------------------------------------------------------------------


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
    """Output (B, Hq, Tq, D), in the query's memory order, and lse (B, Hq, Tq), tokens first."""
    arguments = (query, key, value, dropout_p, is_causal)
    task = _task(*arguments, attn_mask, scale)
    _count("forward", query, key, task)
    if task.passed_on:
        return _originals[_FORWARD].call_boxed(keys, *arguments, attn_mask=attn_mask, scale=scale)
    output, lse = calls.forward(
        *(query, key, value, task.start, task.stop, None, task.bias, None, None),
        *(task.scale, 0.0, 0.0),
        wants_lse=True,
    )
    assert lse is not None
    if task.hides_all:  # from a query, whose lse is 0 in PyTorch
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
    """The gradients of query, key and value, tokens first."""
    task = _task(query, key, value, dropout_p, is_causal, attn_mask, scale)
    _count("backward", query, key, task)
    if task.passed_on:
        arguments = (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal)
        return _originals[_BACKWARD].call_boxed(keys, *arguments, attn_mask=attn_mask, scale=scale)
    gradients = calls.backward(
        *(grad_out, None, query, key, value, out, logsumexp.contiguous()),
        *(task.start, task.stop, None, task.bias, None, None),
        *(task.scale, 0.0, 0.0, False, False),
    )
    return tuple(map(_tokens_first, gradients[:3]))


def _tokens_first(tensor: Tensor) -> Tensor:
    """(B, H, T, …) that lies in memory as (B, T, H, …): what PyTorch's kernels give, and its compiler counts on."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _count(direction: str, query: Tensor, key: Tensor, task: _Task) -> None:
    Tq, Tk = query.shape[-2], key.shape[-2]
    few = dispatch.MAX_DECODED
    tokens = f"Tq ≤ {few}" if Tq <= few else "Tq = Tk" if Tq == Tk else "Tq ≠ Tk"
    dtype = str(query.dtype).removeprefix("torch.")
    with _lock:
        _tally[Call(direction, dtype, tokens, task.mask, task.passed_on)] += 1


# --- what the kernel is given ------------------------------------------------------------------------


class _Task(NamedTuple):
    """PyTorch's mask and scale as the native kernel takes them, or why it does not."""

    mask: str
    passed_on: str = ""
    scale: float = 0.0
    start: Tensor | None = None
    stop: Tensor | None = None
    bias: Tensor | None = None
    hides_all: bool = False  # some query sees nothing


def _task(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
) -> _Task:
    """What is to be computed. Where PyTorch raises an error, it is asked to."""
    mask = "causal" if is_causal else "none" if attn_mask is None else "tensor"
    try:
        problem = AttentionProblem(
            query, key, value, _CAUSAL if is_causal else None, attn_mask, scale
        )
    except ArgumentError as error:
        return _Task(mask, str(error))
    reason = _refusal(problem, dropout_p)
    if reason:
        return _Task(mask, reason)
    if problem.bias is not None:
        return _read(problem.bias, problem)
    if problem.intervals is None:
        return _Task(mask, scale=problem.factor)
    start, stop = problem.intervals.start, problem.intervals.stop
    return _Task(mask, "", problem.factor, start.contiguous(), stop.contiguous())


def _refusal(problem: AttentionProblem, dropout_p: float) -> str | None:
    """Why PyTorch's kernel should compute it, values of the mask aside."""
    reason = native.refusal(problem)
    if reason:
        return reason
    if dropout_p > 0 or problem.sizes.Dv != problem.sizes.D:
        return "PyTorch's operator has no dropout and one head size"
    if any(it.stride(-1) != 1 for it in (problem.query, problem.key, problem.value)):
        return "a last dimension is not contiguous"
    if problem.bias is not None:
        if problem.mask is not None:
            return "a mask together with is_causal"
        dtypes = (torch.float32, problem.query.dtype)
        if problem.bias.dim() not in (2, 4) or problem.bias.dtype not in dtypes:
            return "a mask whose dimensions or dtype PyTorch's operator does not take"
    if next(dispatch.ranking(problem)) != native.NAME:
        return "PyTorch's kernel is the faster one here, as heedful.explain says"
    return None


def _read(attn_mask: Tensor, problem: AttentionProblem) -> _Task:
    """An additive mask as runs of keys where it is that, or else as a bias."""
    _, _, _, Tq, Tk, _, _ = problem.sizes
    mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    highest = mask.amax(dim=-1)
    hides_all = highest.amin().item() <= _HIDING
    if hides_all and ((highest <= _HIDING) & (highest > -math.inf)).any():
        return _Task("tensor", f"a query's whole mask is finite and below {_HIDING:g}")
    if mask.shape[1] == 1 and mask.shape[3] == Tk and Tq >= _WORTH_READING:
        hidden = mask.bool()
        if mask.masked_fill(~hidden, -math.inf).amax() <= _HIDING:
            runs = _runs(~hidden.squeeze(1))
            if runs is not None:
                start, stop = (edges.expand(-1, Tq, -1).contiguous() for edges in runs)
                return _Task("runs", "", problem.factor, start, stop, hides_all=hides_all)
    return _Task("tensor", scale=problem.factor, bias=mask.float(), hides_all=hides_all)


def _runs(shown: Tensor) -> tuple[Tensor, Tensor] | None:
    """Start and stop, int32 (B, Tq, 2), of the runs of keys in a mask (B, Tq, Tk); None: a query sees more than two."""
    bordered = torch.nn.functional.pad(shown, (1, 1))
    edges = bordered[..., 1:] != bordered[..., :-1]
    row, key = edges.flatten(0, 1).nonzero(as_tuple=True)
    row, opens, closes = row[::2].contiguous(), key[::2], key[1::2]
    run = torch.arange(len(row)) - torch.searchsorted(row, row)  # 0 for the first of its row, …
    if (run >= 2).any():
        return None
    start, stop = torch.zeros(2, shown.shape[0] * shown.shape[1], 2, dtype=torch.int32)
    start[row, run], stop[row, run] = opens.int(), closes.int()
    return start.view(*shown.shape[:2], 2), stop.view(*shown.shape[:2], 2)


# --- in the place of PyTorch's -----------------------------------------------------------------------

_lock = threading.RLock()
_tally: Counter[Call] = Counter()  # since the process began
_active: set[Acceleration] = set()
_library: torch.library.Library | None = None
_originals: dict[str, torch._C._SafeKernelFunction] = {}
_kept: list[
    torch._C._SafeKernelFunction
] = []  # ours, all: a thread may still wait in one that was removed


def _replace_or_restore() -> None:
    """Bring the operators in line with whether anybody asks for the native kernel."""
    global _library
    if _active and _library is None:
        _library = _replaced()
    elif not _active:
        _library = None  # with which its implementations go


def _replaced() -> torch.library.Library:
    """A library that holds our implementations in the place of PyTorch's, which are remembered."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for name, ours in ((_FORWARD, _forward), (_BACKWARD, _backward)):
            _originals[name] = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, ours, "CPU", with_keyset=True)
            _kept.append(torch.library.get_kernel(f"aten::{name}", "CPU"))
    return library
