"""PyTorch's `scaled_dot_product_attention`, with masks in the polarity and alignment that it expects."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import _nn  # pyright: ignore[reportAttributeAccessIssue]

from heedful.metering import peak_bytes
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
    if problem.placement is not None and problem.dropout_p > 0:
        return "PyTorch's SDPA draws dropout in an order of its own"
    if differentiating_forward():
        return "PyTorch's fused SDPA has no forward-mode derivatives"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, None]:
    """Call SDPA once.

    A query that may see no key is shown all keys, and its output is set to 0, so that no backend computes a softmax
    over no keys.
    """
    return _run(problem, pytorch_sdpa), None


def _run(problem: AttentionProblem, sdpa: Callable[..., Tensor]) -> Tensor:
    if problem.sizes.Tk == 0:  # some backends return NaN; the sum over no keys is 0
        query, key, value = problem.widened()
        return (query @ key.mT @ value).to(problem.query.dtype)
    key, value = problem.seen_key_and_value()
    is_causal = problem.plain_causal and problem.bias is None
    query, scale = problem.query, problem.factor
    # PyTorch's kernel multiplies the −∞ of hidden keys by the scale. The problem of scale 0 has a query of 0.
    if scale <= 0:
        query, scale = (-query, -scale) if scale < 0 else (query, 1.0)
    output = sdpa(
        *map(_with_separate_rows, (query, key, value)),
        attn_mask=None if is_causal else _attn_mask(problem),
        is_causal=is_causal,
        dropout_p=problem.dropout_p,
        scale=scale,
        enable_gqa=problem.sizes.Hq != problem.sizes.Hkv,
    )
    if problem.empty_rows is not None:
        output = output.masked_fill(problem.empty_rows, 0.0)
    return output


def _with_separate_rows(tensor: Tensor) -> Tensor:
    """Return a copy if rows share memory, with which PyTorch's kernel returns wrong outputs or raises."""
    rows, size = tensor.shape[-2:]
    overlap = rows > 1 and tensor.stride(-1) == 1 and tensor.stride(-2) < size
    return tensor.contiguous() if overlap else tensor


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
    """Measure the tensors of `run`, without the output, with those of the backend that PyTorch chooses."""
    # On "meta", PyTorch itself never chooses a fused backend.
    sdpa = _fused_tensors if _is_fused(problem) else pytorch_sdpa
    return peak_bytes(problem, lambda stand_in: _run(stand_in, sdpa)) - problem.output_bytes


def _is_fused(problem: AttentionProblem) -> bool:
    """Check whether PyTorch chooses a backend that computes block by block. The values of a mask do not matter."""
    query, bias = problem.query, problem.bias
    mask = None
    if bias is not None or (problem.mask is not None and not problem.plain_causal):
        mask = query.new_empty(()) if bias is None else bias
        mask = mask.expand(*query.shape[:-1], problem.sizes.Tk)
    grouped = problem.sizes.Hq != problem.sizes.Hkv
    arguments = (query, problem.key, problem.value, mask, problem.dropout_p, mask is None)
    choice = torch._fused_sdp_choice(  # pyright: ignore[reportPrivateImportUsage]
        *arguments, scale=problem.factor, enable_gqa=grouped
    )
    return choice != 0


def _fused_tensors(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, **_: object
) -> Tensor:
    """Return the output of the fused backends without values, and allocate what they do."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = attn_mask.to(query.dtype)
    (B, Hq, Tq, D), Tk, Dv = query.shape, key.shape[2], value.shape[3]
    threads = torch.get_num_threads()
    rows = 256 if Tq >= 768 else 64 if Tq >= 192 else 32  # blocks of PyTorch's kernel for CPUs
    keys = min(512, Tk)
    block = 4 * rows * (keys + 2 + Dv)
    if query.dtype != torch.float32:
        block += query.element_size() * rows * keys
    _blocks = query.new_empty(threads * block, dtype=torch.uint8)
    tiles = B * Hq * -(-Tq // rows)
    amx = query.dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    if amx and min(Tq, Tk) >= 64 and -(-tiles // threads) * rows >= 4 * B * Hq:
        padded_Tk = -(-Tk // keys) * keys
        _packed_key_and_value = query.new_empty(B * Hq * padded_Tk * (D + Dv))
    _lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    return query.new_empty(*query.shape[:3], Dv)


def notes(problem: AttentionProblem) -> str:
    """Return what differs from our own kernels, and what a mask costs."""
    remarks: list[str] = []
    if problem.dropout_p > 0:
        remarks.append("PyTorch draws which weights to drop, not our generator")
    if problem.intervals is not None and not problem.plain_causal:
        remarks.append("the mask is built as a Tq x Tk tensor")
    return "; ".join(remarks)
