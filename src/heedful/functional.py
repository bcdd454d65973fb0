"""Attention as a function: ours, and one that takes the place of PyTorch's."""

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.dispatch import AUTO, choose
from heedful.errors import ArgumentError
from heedful.masks import Causal, Dense, Mask
from heedful.problem import AttentionProblem
from heedful.result import AttentionResult


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
) -> Tensor | AttentionResult:
    """softmax(scale · Q Kᵀ) V over the keys that the mask shows, on the fastest kernel there is.

    Args:
        query: (B, Hq, Tq, D); float64, float32, bfloat16 or float16.
        key: (B, Hkv, Tk, D). Hkv divides Hq; query head h reads key head h // (Hq // Hkv).
        value: (B, Hkv, Tk, Dv).
        mask: `Causal()`, `Window(256)`, … combined by & and |; or a Boolean tensor broadcastable to
            (B, Hq, Tq, Tk), True = attend. None: every query sees every key.
        bias: added to the scores, after the soft-cap: floating point, broadcastable to (B, Hq, Tq, Tk).
        scale: multiplies the dot products; None: 1/√D.
        softcap: scores become softcap · tanh(scores / softcap).
        sinks: (Hq,) logits of one more key per head, whose value is 0.
        dropout_p: the probability of dropping a weight; the others are scaled by 1/(1 − p). There is no
            training mode here: pass 0.0 in evaluation.
        kernel: "auto", or the name of one, which then runs or raises. `explain` says what "auto" takes.
        return_lse: also return the log of the softmax's normaliser, (B, Hq, Tq), float32 or better.

    Returns:
        The output (B, Hq, Tq, Dv) in the query's dtype, or `AttentionResult(output, lse)`. A query that
        sees no key gives output 0, lse −∞ and gradients of 0.

    Raises:
        ArgumentError: the arguments do not fit; the text says what would.
        KernelError: the kernel named cannot run them; the text says why.

    Under `torch.autocast` the tensors are cast as PyTorch casts those of its own attention.
    """
    autocast = _autocasts(query)
    if autocast:
        query, key, value = _cast(query), _cast(key), _cast(value)
    problem = AttentionProblem(
        query, key, value, mask, bias, scale, softcap, sinks, dropout_p, return_lse=return_lse
    )
    return _run(problem, kernel, autocast)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, with its signature, semantics and errors, on our kernels.

    As there: a Boolean mask says what is kept, a float mask is added, `is_causal` aligns to the start,
    and dropout acts whenever ``dropout_p > 0``, from torch's generator; which weights a seed drops is the kernel's.

    Args:
        query: (…, Tq, D), with one or more leading dimensions, the last of them heads.
        key: (…, Tk, D).
        value: (…, Tk, Dv).
        attn_mask: broadcastable to (…, Tq, Tk).
        dropout_p, is_causal, scale, enable_gqa: as there.

    Raises:
        Whatever PyTorch raises: what we cannot take, it gets unchanged (wrong shapes, and also right
        ones of its own: nested tensors, batch sizes that broadcast).
    """
    try:
        problem = _as_problem(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except ArgumentError:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    output = _run(problem, AUTO, _autocasts(query))
    assert isinstance(output, Tensor)  # not asked for the lse
    return output.reshape(*query.shape[:-1], value.shape[-1])


def _as_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> AttentionProblem:
    """PyTorch's arguments as ours; ArgumentError where they are none of ours."""
    ours = (
        all(isinstance(t, Tensor) and not t.is_nested and t.dim() >= 2 for t in (query, key, value))
        and (enable_gqa or query.shape[:-2] == key.shape[:-2])
        and not (is_causal and attn_mask is not None)
        and (attn_mask is None or attn_mask.dtype in (torch.bool, torch.float32, query.dtype))
    )
    if not ours:
        raise ArgumentError(
            "query, key, value, attn_mask",
            expected="what PyTorch's attention and ours both take",
            received="something else",
            remedy="PyTorch says what it thinks of them.",
        )
    mask: Mask | None = Causal(align="start") if is_causal else None
    bias = None
    if attn_mask is not None:
        attn_mask = _four_dimensions(
            attn_mask.expand(*_leading(query, attn_mask), *attn_mask.shape[-3:])
        )
        mask, bias = (
            (Dense(attn_mask), None) if attn_mask.dtype == torch.bool else (None, attn_mask)
        )
    query, key, value = map(_four_dimensions, (query, key, value))
    if _autocasts(query):
        query, key, value = _cast(query), _cast(key), _cast(value)
    return AttentionProblem(query, key, value, mask, bias, scale, dropout_p=dropout_p)


def _leading(query: Tensor, attn_mask: Tensor) -> torch.Size:
    """The dimensions before heads that a mask must be expanded to, so that it can be flattened as the query is."""
    return query.shape[:-3] if query.dim() > 4 and attn_mask.dim() > 3 else attn_mask.shape[:-3]


def _four_dimensions(tensor: Tensor) -> Tensor:
    """(…, heads, tokens, size) as (batch, heads, tokens, size)."""
    if tensor.dim() > 4:
        return tensor.flatten(0, -4)
    return tensor[(None,) * (4 - tensor.dim())]


def _autocasts(query: Tensor) -> bool:
    """Whether autocast is on for the query's device."""
    if not isinstance(query, Tensor):  # which the problem will say
        return False
    if query.is_cpu:  # the usual case, told at once: small calls are made of such questions
        return torch.is_autocast_enabled("cpu")
    device = query.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _cast(tensor: Tensor) -> Tensor:
    """The tensor in autocast's dtype: what PyTorch does for its own attention."""
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _run(problem: AttentionProblem, kernel: str, autocast: bool) -> Tensor | AttentionResult:
    """Run the kernel in the dtypes of the problem, autocast or not."""
    chosen = choose(problem, kernel)
    if not autocast:
        output, lse = chosen.run(problem)
    else:
        with torch.autocast(problem.query.device.type, enabled=False):
            output, lse = chosen.run(problem)
    return AttentionResult(output, lse) if problem.return_lse and lse is not None else output
