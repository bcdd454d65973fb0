"""The library's functions on tensors: results allocated, structs filled, failures raised."""

import torch
from torch import Tensor

from heedful.errors import KernelError
from heedful.kernels.native import library, structs


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    *,
    wants_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Output (B, Hq, Tq, Dv) in the query's dtype and memory order, and lse (B, Hq, Tq) in float32 where wanted.

    Args:
        query, key, value: float32, bfloat16 or float16, of any strides.
        start, stop: int32 (B or 1, Tq, R), the runs of keys that each query sees; None: all keys.
        mask: Boolean, 4 dimensions that broadcast to (B, Hq, Tq, Tk), True = attend.
        bias: float32, likewise.
        sinks: float32 (Hq,).
        seed: int64 (); None without dropout.
        scale, dropout_p: as in `AttentionProblem`.
        softcap: the same; 0: none.
    """
    query, key, value = contiguous_rows(query), contiguous_rows(key), contiguous_rows(value)
    output = empty_output(query, value)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32) if wants_lse else None
    problem = structs.pack_problem(
        *(query, key, value, output, lse, start, stop, mask, bias, sinks),
        *(scale, softcap, dropout_p, 0 if seed is None else int(seed)),
        library.parallel_for,
    )
    if library.library.heedful_forward(problem):
        raise KernelError("the native kernel found no memory for its scratch: free some")
    return output, lse


def backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    wants_bias: bool,
    wants_sinks: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value, bias and sinks; the last two empty where they are not wanted.

    Args:
        grad_output, grad_lse: as `output` and `lse`; None: lse was not used.
        output, lse: what `forward` gave for the rest.
    """
    query, key, value = contiguous_rows(query), contiguous_rows(key), contiguous_rows(value)
    gradients = empty_gradients(query, key, value, bias, sinks, wants_bias, wants_sinks)
    grad_query, grad_key, grad_value, grad_bias, grad_sinks = gradients
    grad_output = contiguous_rows(grad_output)
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    problem = structs.pack_problem(
        *(query, key, value, contiguous_rows(output), lse.contiguous()),
        *(start, stop, mask, bias, sinks),
        *(scale, softcap, dropout_p, 0 if seed is None else int(seed)),
        library.parallel_for,
    )
    gradient = structs.pack_gradient(
        problem,
        key.shape[2],
        *(grad_lse, grad_output, grad_query, grad_key, grad_value),
        grad_bias.zero_() if wants_bias else None,
        grad_sinks if wants_sinks else None,
    )
    if library.library.heedful_backward(gradient):
        raise KernelError("the native kernel found no memory for its scratch: free some")
    return gradients


def empty_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    wants_bias: bool,
    wants_sinks: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients to be filled, of what has contiguous rows; the last two empty where they are not wanted."""
    nothing = query.new_empty(0, dtype=torch.float32)
    return (
        torch.empty_like(query),
        torch.empty_like(key),
        torch.empty_like(value),
        bias.new_empty(bias.shape) if wants_bias and bias is not None else nothing,
        sinks.new_empty(sinks.shape) if wants_sinks and sinks is not None else nothing.clone(),
    )


def contiguous_rows(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it, with a contiguous last dimension."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def empty_output(query: Tensor, value: Tensor) -> Tensor:
    """An output to be filled: (B, Hq, Tq, Dv), in memory tokens first where the query is.

    So what a model does next, ``output.transpose(1, 2).flatten(2)``, need not copy.
    """
    B, Hq, Tq, D = query.shape
    Dv = value.shape[3]
    if Dv == D:
        return torch.empty_like(query)
    _, head, token, _ = query.stride()
    if token > head:
        return query.new_empty((B, Tq, Hq, Dv)).transpose(1, 2)
    return query.new_empty((B, Hq, Tq, Dv))
