"""PyTorch's fused operators for CPUs, the forward and the backward pass, on the native kernel.

They keep their meaning, including that of the log-sum-exp, so that the backward pass of either kernel can follow the
forward pass of the other. Compiled graphs contain these operators.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.acceleration.masks import KernelMask, lower_mask
from heedful.acceleration.originals import original
from heedful.acceleration.refusal import refusal
from heedful.acceleration.report import count_call
from heedful.errors import ArgumentError
from heedful.kernels.native import calls
from heedful.masks import Causal
from heedful.problem import AttentionProblem

FORWARD: str = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD: str = "_scaled_dot_product_flash_attention_for_cpu_backward"
_CAUSAL: Causal = Causal(align="start")


def forward(
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
    arguments = _kernel_arguments(*inputs, attn_mask, scale, differentiates=False)
    mask = arguments.mask
    count_call("forward", query, key, mask.kind, arguments.passed_on)
    if arguments.passed_on:
        return original(FORWARD)(keys, *inputs, attn_mask=attn_mask, scale=scale)
    output, lse = calls.forward(
        *(query, key, value, mask.start, mask.stop, None, mask.bias, None, None),
        *(arguments.scale, 0.0, 0.0),
        wants_lse=True,
    )
    assert lse is not None
    if mask.has_hidden_rows:  # PyTorch's lse is 0 for a query that sees nothing
        lse.masked_fill_(lse == -math.inf, 0.0)
    return output, _tokens_first(lse)


def backward(
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
    problem = (query, key, value, dropout_p, is_causal, attn_mask, scale)
    arguments = _kernel_arguments(*problem, differentiates=True)
    mask = arguments.mask
    count_call("backward", query, key, mask.kind, arguments.passed_on)
    if arguments.passed_on:
        inputs = (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal)
        return original(BACKWARD)(keys, *inputs, attn_mask=attn_mask, scale=scale)
    gradients = calls.backward(
        *(grad_out, None, query, key, value, out, logsumexp.contiguous()),
        *(mask.start, mask.stop, None, mask.bias, None, None),
        *(arguments.scale, 0.0, 0.0, False, False),
    )
    return tuple(map(_tokens_first, gradients[:3]))


def _tokens_first(tensor: Tensor) -> Tensor:
    """Return (B, H, T, …) in the memory order (B, T, H, …), as PyTorch's kernels do and its compiler expects."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


class _KernelArguments(NamedTuple):
    """PyTorch's mask and scale in the form that the native kernel takes, or the reason why it cannot take them."""

    mask: KernelMask
    passed_on: str | None = None
    scale: float = 0.0


def _kernel_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
    *,
    differentiates: bool,
) -> _KernelArguments:
    """Convert PyTorch's arguments. Invalid ones are passed on, so that PyTorch raises its own error."""
    kind = KernelMask("causal" if is_causal else "none" if attn_mask is None else "tensor")
    try:
        problem = AttentionProblem(
            query, key, value, _CAUSAL if is_causal else None, attn_mask, scale
        )
    except ArgumentError as error:
        return _KernelArguments(kind, str(error))
    reason = _difference(problem, dropout_p) or refusal(problem, differentiates=differentiates)
    if reason:
        return _KernelArguments(kind, reason)
    return _KernelArguments(lower_mask(problem), scale=problem.factor)


def _difference(problem: AttentionProblem, dropout_p: float) -> str | None:
    """Return what PyTorch's operator refuses although our kernel does not."""
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
    return None
