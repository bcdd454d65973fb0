"""PyTorch's FlexAttention, compiled for each kind of problem; it skips the blocks of keys that no query may see."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from heedful.modes import transforming, values_known
from heedful.problem import AttentionProblem
from heedful.scores import soft_cap

NAME = "flex"


def refusal(problem: AttentionProblem) -> str | None:
    """Return None for masks of intervals, on CUDA forward and backward, on CPUs forward only; else the reason."""
    device = problem.query.device.type
    if device not in ("cpu", "cuda"):
        return f"FlexAttention is used on CPUs and CUDA only, not on {device}"
    if not torch.compiler.is_compiling() and not values_known(problem.query):
        return "FlexAttention is compiled for tensors that have values"
    if transforming():
        return "FlexAttention has no rules for torch.func's transforms and forward-mode derivatives"
    if problem.dropout_p > 0:
        return "FlexAttention has no dropout"
    if problem.query.dtype == torch.float64:
        return "FlexAttention has no float64"
    if problem.mask is not None and problem.intervals is None:
        return "the mask is dense, and FlexAttention skips nothing of such a mask"
    if device == "cpu" and problem.needs_grad:
        return "FlexAttention has no backward pass on CPUs"
    if device == "cpu" and (problem.return_lse or problem.sinks is not None):
        return "FlexAttention returns no log-sum-exp on CPUs, which sink logits need, too"
    if not all(problem.sizes):
        return "FlexAttention takes no empty tensors"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor | None]:
    """Call the compiled `flex_attention` once, and apply sink logits afterwards, by the log-sum-exp."""
    from torch.nn.attention.flex_attention import AuxRequest

    _, Hq, Hkv, *_ = problem.sizes
    key, value = problem.seen_key_and_value()
    wants_lse = problem.return_lse or problem.sinks is not None
    output, aux = _compiled()(
        problem.query,
        key,
        value,
        score_mod=_score_mod(problem),
        block_mask=None if problem.intervals is None else problem.intervals.block_mask(),
        scale=problem.factor,
        enable_gqa=Hq != Hkv,
        return_aux=AuxRequest(lse=wants_lse),
    )
    if problem.sinks is None:
        return output, aux.lse
    lse = torch.logaddexp(aux.lse, problem.sinks.to(aux.lse.dtype).unsqueeze(-1))
    share = torch.exp(aux.lse - lse).unsqueeze(-1)
    return (output * share).to(output.dtype), lse


@cache
def _compiled() -> Callable[..., Any]:
    """Return `flex_attention` as torch compiles it when it first runs, once for each kind of problem."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _score_mod(problem: AttentionProblem) -> Callable[..., Tensor] | None:
    """Return soft-cap and bias as the function that FlexAttention takes; None if there are none."""
    cap = problem.softcap
    if cap is None and problem.bias is None:
        return None
    if problem.bias is None:
        return lambda score, _b, _h, _q, _k: soft_cap(score, cap)
    bias = problem.bias.expand(*problem.query.shape[:-1], problem.sizes.Tk)
    return lambda score, b, h, q, k: soft_cap(score, cap) + bias[b, h, q, k]


def scratch_bytes(problem: AttentionProblem) -> int:
    """Count the block mask: indices of 128 × 128 blocks."""
    B, _, _, Tq, Tk, _, _ = problem.sizes
    return 0 if problem.intervals is None else 4 * 4 * B * -(-Tq // 128) * -(-Tk // 128)


def notes(problem: AttentionProblem) -> str:
    """Return what compilation costs."""
    return "the first call for each kind of problem compiles for seconds"
