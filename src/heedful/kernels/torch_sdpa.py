"""PyTorch's own `scaled_dot_product_attention`, given masks in the polarity and alignment it expects."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.problem import AttentionProblem

NAME = "torch_sdpa"


def refusal(problem: AttentionProblem) -> str | None:
    """SDPA has no soft-cap and no sink logits, and keeps the log-sum-exp to itself."""
    if problem.softcap is not None:
        return "PyTorch's SDPA has no soft-cap"
    if problem.sinks is not None:
        return "PyTorch's SDPA has no sink logits"
    if problem.return_lse:
        return "PyTorch's SDPA does not return the log-sum-exp"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, None]:
    """One call of SDPA.

    A query that may see nothing is shown everything and its output cleared: no backend meets a softmax of nothing.
    """
    key, value = problem.seen_key_and_value()
    is_causal = problem.plain_causal and problem.bias is None
    output = F.scaled_dot_product_attention(
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
    """Mask and bias as SDPA takes them: Boolean with True = attend, or numbers to add."""
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
    """The mask as a tensor; with dropout or a bias that needs gradients, on CPUs, the scores and weights too."""
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    mask = 0
    if problem.dense_mask is not None and not problem.plain_causal:
        mask = problem.dense_mask.numel()
    if problem.bias is not None:
        mask = B * Hq * Tq * Tk * problem.query.element_size()
    spelled_out = problem.dropout_p > 0 or (problem.bias is not None and problem.bias.requires_grad)
    spelled_out = spelled_out and problem.query.device.type == "cpu"
    return mask + (2 * B * Hq * Tq * Tk * problem.query.element_size() if spelled_out else 0)


def notes(problem: AttentionProblem) -> str:
    """What differs from our own kernels, and what a mask costs here."""
    remarks = []
    if problem.dropout_p > 0:
        remarks.append("drops the weights that PyTorch draws, not those of our seed")
    if problem.intervals is not None and not problem.plain_causal:
        remarks.append("the mask is spelled out as a Tq x Tk tensor")
    return "; ".join(remarks)
