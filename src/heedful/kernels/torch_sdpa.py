"""PyTorch's `scaled_dot_product_attention`, with masks in the polarity and alignment that it expects."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import _nn  # pyright: ignore[reportAttributeAccessIssue]

from heedful.modes import differentiating_forward
from heedful.problem import AttentionProblem

NAME = "torch_sdpa"
# The original, even after torch.nn.functional.scaled_dot_product_attention was replaced, for example by heedful's.
pytorch_sdpa: Callable[..., Tensor] = _nn.scaled_dot_product_attention


def refusal(problem: AttentionProblem) -> str | None:
    """Return a reason for soft-cap, sinks, log-sum-exp and forward mode, which SDPA does not have; else None."""
    if problem.softcap is not None:
        return "PyTorch's SDPA has no soft-cap"
    if problem.sinks is not None:
        return "PyTorch's SDPA has no sink logits"
    if problem.return_lse:
        return "PyTorch's SDPA does not return the log-sum-exp"
    if differentiating_forward():
        return "PyTorch's fused SDPA has no forward-mode derivatives"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, None]:
    """Call SDPA once.

    A query that may see no key is shown all keys, and its output is set to 0, so that no backend computes a softmax
    over no keys.
    """
    key, value = problem.seen_key_and_value()
    is_causal = problem.plain_causal and problem.bias is None
    output = pytorch_sdpa(
        problem.query,
        key,
        value,
        attn_mask=None if is_causal else _attn_mask(problem),
        is_causal=is_causal,
        dropout_p=problem.dropout_p,
        scale=problem.factor,
        enable_gqa=problem.sizes.Hq != problem.sizes.Hkv,
    )
    if problem.empty_rows is not None:
        output = output.masked_fill(problem.empty_rows, 0.0)
    return output, None


def _attn_mask(problem: AttentionProblem) -> Tensor | None:
    """Combine mask and bias for SDPA: Boolean with True = attend, or numbers to add."""
    mask, bias = problem.dense_mask, problem.bias
    if mask is not None and problem.empty_rows is not None:
        mask = mask | problem.empty_rows
    if bias is None:
        return mask
    if bias.dtype != torch.float32:
        bias = bias.to(problem.query.dtype)
    bias = bias.expand(*problem.query.shape[:-1], problem.sizes.Tk)
    return bias if mask is None else bias.masked_fill(~mask, -math.inf)


def scratch_bytes(problem: AttentionProblem) -> int:
    """Count the mask as a tensor, and with dropout or a bias that needs gradients on CPUs, the scores and weights."""
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    mask = 0
    if problem.dense_mask is not None and not problem.plain_causal:
        mask = problem.dense_mask.numel()
    if problem.bias is not None:
        mask = B * Hq * Tq * Tk * problem.query.element_size()
    materialised = problem.dropout_p > 0 or (
        problem.bias is not None and problem.bias.requires_grad
    )
    materialised = materialised and problem.query.device.type == "cpu"
    return mask + (2 * B * Hq * Tq * Tk * problem.query.element_size() if materialised else 0)


def notes(problem: AttentionProblem) -> str:
    """Return what differs from our own kernels, and what a mask costs."""
    remarks: list[str] = []
    if problem.dropout_p > 0:
        remarks.append("PyTorch draws which weights to drop, not our generator")
    if problem.intervals is not None and not problem.plain_causal:
        remarks.append("the mask is built as a Tq x Tk tensor")
    return "; ".join(remarks)
