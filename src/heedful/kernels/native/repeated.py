"""Small calls that differ from an earlier one in the values of their tensors only.

To check, choose and pack a call of a few queries takes longer than to compute it, and a model that generates makes the
same call in each of its layers. So a call that is made twice in a row is remembered as the library takes it.
"""

from typing import Any

import torch
from torch import Tensor

from heedful.kernels.native import calls, library, structs
from heedful.masks import Mask
from heedful.modes import eager
from heedful.problem import FEW_QUERIES, AttentionProblem

# At so many calls, all are forgotten; each holds about 1 KB, and the key ranges of its queries.
MAX_REMEMBERED = 256

Signature = tuple[Any, ...]
_remembered: dict[Signature, structs.PackedCall] = {}
_last: Signature | None = None  # of the last small call that was not remembered


def signature(
    query: Tensor, key: Tensor, value: Tensor, mask: object, scale: float | None, *function: object
) -> Signature | None:
    """Return all that decides how a small call runs, if it has no further options; None if it is no such call.

    Args:
        query: as `attention` takes it, like all arguments up to scale.
        *function: the function that is called, and what it is told besides: functions accept and return other things.
    """
    if torch.compiler.is_compiling() or not type(query) is type(key) is type(value) is Tensor:
        return None
    if not (mask is None or (isinstance(mask, Mask) and mask.constant)):
        return None
    if not (scale is None or type(scale) is float):
        return None
    try:
        if query.dim() != 4 or query.shape[2] > FEW_QUERIES:
            return None
        return (
            *(query.shape, query.stride(), query.dtype, query.is_cpu),
            *(key.shape, key.stride(), key.dtype, key.is_cpu),
            *(value.shape, value.stride(), value.dtype, value.is_cpu),
            *(mask, scale, *function),
            *(library.missing, library.parallel_for),
        )
    except RuntimeError:  # nested tensors have no shape
        return None


def repeat(signature: Signature, query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
    """Compute a remembered call on these tensors; None if there is none, or if gradients or a mode need to see it."""
    packed = _remembered.get(signature)
    if packed is None or not eager(query, key, value):
        return None
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        return None
    output = calls.empty_output(query, value)
    problem = packed.with_tensors(query, key, value, output)
    library.check(library.library.heedful_forward(problem))
    return output


def remember(signature: Signature, problem: AttentionProblem) -> None:
    """Remember a call that the native kernel runs, if the small call before it was the same."""
    global _last
    if signature != _last:
        _last = signature
        return
    if not eager(problem.query, problem.key, problem.value):
        return
    query, key, value, intervals = problem.query, problem.key, problem.value, problem.intervals
    rows_contiguous = query.stride(3) == key.stride(3) == value.stride(3) == 1
    if problem.scale == 0 or not rows_contiguous or (problem.mask is not None and not intervals):
        return
    start, stop = (intervals.start, intervals.stop) if intervals else (None, None)
    packed = structs.pack_problem(
        *(query, key, value, calls.empty_output(query, value), None),
        *(start, stop, None, None, None),
        *(problem.factor, 0.0, 0.0, 0),
        library.parallel_for,
    )
    if len(_remembered) == MAX_REMEMBERED:
        _remembered.clear()
    _remembered[signature] = structs.PackedCall(packed, start, stop)
