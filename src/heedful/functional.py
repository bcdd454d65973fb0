"""Attention as a function, and a drop-in replacement for PyTorch's."""

import math
from dataclasses import replace
from types import NoneType
from typing import Any, Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.jit._builtins import _register_builtin
from torch.overrides import handle_torch_function

from heedful.dispatch import AUTO, choose
from heedful.dropout import Placement, draw_seed
from heedful.errors import ArgumentError
from heedful.kernels import native
from heedful.kernels.native import repeated
from heedful.kernels.torch_sdpa import pytorch_sdpa
from heedful.masks import Causal, Dense, Mask
from heedful.modes import in_function_mode, is_causal_bias
from heedful.problem import DTYPES, AttentionProblem
from heedful.result import AttentionResult, AttentionResultWithMass
from heedful.shapes import broadcasts, sizes_of
from heedful.sharded import current, first_head, refuse
from heedful.summaries import received_mass

_NUMBERS = (float, int, torch.SymFloat, torch.SymInt)


@overload
def attention(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: Literal[False] = False,
    return_received_mass: Literal[False] = False,
) -> Float[Tensor, "B Hq Tq Dv"]: ...
@overload
def attention(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: Literal[True],
    return_received_mass: Literal[False] = False,
) -> AttentionResult: ...
@overload
def attention(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
    return_received_mass: Literal[True],
) -> AttentionResultWithMass: ...
@overload
def attention(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
    return_received_mass: bool = False,
) -> Float[Tensor, "B Hq Tq Dv"] | AttentionResult | AttentionResultWithMass: ...
def attention(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
    return_received_mass: bool = False,
    **foreign: object,
) -> Float[Tensor, "B Hq Tq Dv"] | AttentionResult | AttentionResultWithMass:
    """Compute softmax(scale · Q Kᵀ) V over the keys that the mask shows (Vaswani et al. 2017, arXiv 1706.03762, eq. 1).

    Under `torch.autocast`, the tensors are cast as PyTorch casts those of its own attention.

    Args:
        query: (B, Hq, Tq, D); float64, float32, bfloat16 or float16.
        key: (B, Hkv, Tk, D). Hkv divides Hq; query head h reads key head h // (Hq // Hkv) (grouped-query
            attention, Ainslie et al. 2023, arXiv 2305.13245).
        value: (B, Hkv, Tk, Dv).
        mask: `Causal()`, `Window(256)`, … combined by & and |; or a Boolean tensor broadcastable to
            (B, Hq, Tq, Tk), True = attend. None: every query sees every key.
        bias: added to the scores, after the soft-cap: floating point, broadcastable to (B, Hq, Tq, Tk).
        scale: multiplies the dot products; None: 1/√D.
        softcap: scores become softcap · tanh(scores / softcap); None: they stay as they are.
        sinks: (Hq,) logits of one more key per head, whose value is 0.
        dropout_p: the probability of dropping a weight; the others are scaled by 1/(1 − p). There is no
            training mode: pass 0.0 in evaluation.
        kernel: "auto", or the name of a kernel, which then runs or raises. `explain` says what "auto" chooses.
        return_lse: whether to return the log of the softmax's normalizer, too.
        return_received_mass: whether to return that and the sum of each key's weights over the queries, before
            dropout. No kernel computes it: a second pass does, in the way of `summarize`.
        **foreign: arguments of other attentions, such as is_causal. None is accepted; the error says what to pass.

    Returns:
        The output (B, Hq, Tq, Dv) in the query's dtype; with `return_lse`, `AttentionResult(output, lse)`, where lse
        is (B, Hq, Tq) in float32 or better. A query that sees no key gets output 0, lse −∞ and gradients of 0.
        With `return_received_mass`, `AttentionResultWithMass(output, lse, received_mass)`, where the mass is
        (B, Hq, Tk) in float32 or better, without gradients.

    Raises:
        ArgumentError: the arguments do not fit together; the message says what would fit.
        KernelError: the kernel requested by name cannot run them; the message says why.

    Examples:
        >>> from heedful import Causal, attention
        >>> query, key = torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 3, 8)
        >>> value = torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)
        >>> attention(query, key, value, Causal()).flatten()
        tensor([1.0000, 1.5000, 3.0000])
    """
    if foreign:
        raise _foreign(*next(iter(foreign.items())))
    if (sharded := current()) is not None:
        return sharded.attend(
            *(query, key, value),
            mask=mask,
            bias=bias,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            dropout_p=dropout_p,
            kernel=kernel,
            return_lse=return_lse,
            return_received_mass=return_received_mass,
        )
    autocast = autocasts(query)
    call = None
    plain = bias is softcap is sinks is None and dropout_p == 0
    plain = plain and not return_lse and not return_received_mass
    if plain and kernel == AUTO and not autocast:
        call = repeated.signature(query, key, value, mask, scale, "attention")
        if call and (output := repeated.repeat(call, query, key, value)) is not None:
            return output
    if in_function_mode():
        return handle_torch_function(
            attention,
            (),
            *(query, key, value, mask),
            bias=bias,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            dropout_p=dropout_p,
            kernel=kernel,
            return_lse=return_lse,
            return_received_mass=return_received_mass,
        )
    problem = problem_of(
        *(query, key, value, mask),
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout_p=dropout_p,
        return_lse=return_lse,
    )
    if return_received_mass:
        return _run_with_received_mass(problem, kernel, autocast)
    return _run(problem, kernel, autocast, call)


# Arguments of other attentions, and what stands for them here.
_FOREIGN: dict[str, str] = {
    "is_causal": "Pass mask=Causal().",
    "causal": "Pass mask=Causal().",
    "attn_mask": "Pass mask=…, a Boolean tensor (True = attend) or a mask; bias=… is added to the scores.",
    "attention_mask": "Pass mask=Padding(attention_mask.sum(-1)).",
    "key_padding_mask": "Pass mask=Padding((~key_padding_mask).sum(-1)): it is True where it hides.",
    "window_size": "Pass mask=Band(before, after), or mask=Window(size).",
    "sliding_window": "Pass mask=Window(sliding_window).",
    "softmax_scale": "Pass scale=….",
    "dropout": "Pass dropout_p=….",
    "enable_gqa": "Leave it out: query heads share key heads wherever there are fewer of these.",
    "need_weights": "Leave it out: summarize() has statistics of the weights, and record() and show() the weights.",
}


def _foreign(name: str, value: object) -> Exception:
    """Return the error for an argument that `attention` does not have."""
    if name not in _FOREIGN:
        return TypeError(f"attention() got an unexpected keyword argument {name!r}")
    received = "a tensor" if isinstance(value, Tensor) else repr(value)
    return ArgumentError(
        name, expected="no such argument", received=received, remedy=_FOREIGN[name]
    )


def problem_of(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None, **options: Any
) -> AttentionProblem:
    """Return the problem that the arguments of `attention` stand for, cast as autocast wants it."""
    if autocasts(query):
        query, key, value = map(cast_for_autocast, (query, key, value))
    problem = AttentionProblem(query, key, value, mask, **options)
    if problem.dropout_p > 0 and (first := first_head()):  # other ranks have the heads before
        queries, keys = (torch.arange(n, device=query.device) for n in problem.sizes[3:5])
        problem = replace(problem, placement=Placement(draw_seed(), queries, keys, first))
    return problem


def scaled_dot_product_attention(
    query: Float[Tensor, "*batch_and_heads Tq D"],
    key: Float[Tensor, "... Tk D"],
    value: Float[Tensor, "... Tk Dv"],
    attn_mask: Float[Tensor, " ..."] | Bool[Tensor, " ..."] | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*batch_and_heads Tq Dv"]:
    """Compute `torch.nn.functional.scaled_dot_product_attention`, with its signature and semantics, on our kernels.

    As in PyTorch, dropout is applied whenever ``dropout_p > 0``. It uses torch's generator, but which weights a seed
    drops depends on the kernel. What our kernels cannot take goes to PyTorch's function unchanged: nested tensors,
    batch sizes that broadcast, and arguments that do not fit together. In TorchScript, it is PyTorch's operator.

    Args:
        query: (…, Tq, D), with any number of leading dimensions, the last of which are heads.
        key: (…, Tk, D).
        value: (…, Tk, Dv).
        attn_mask: broadcastable to (…, Tq, Tk). A Boolean mask is True where a query attends; a float mask is
            added to the scores. A `torch.nn.attention.bias.CausalBias` is read as the mask that it stands for.
        dropout_p: the probability of dropping a weight.
        is_causal: whether query i sees only keys j <= i, aligned to the start.
        scale: multiplies the dot products; None: 1/√D.
        enable_gqa: whether there may be fewer key and value heads than query heads.

    Returns:
        The output (…, Tq, Dv) in the query's dtype.

    Raises:
        RuntimeError, TypeError, ValueError: the errors of PyTorch's function, for arguments that do not fit together.

    Examples:
        >>> from heedful import scaled_dot_product_attention
        >>> query, key = torch.zeros(3, 8), torch.zeros(3, 8)
        >>> scaled_dot_product_attention(query, key, torch.eye(3), is_causal=True)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    refuse("heedful's scaled_dot_product_attention()")
    if is_causal_bias(attn_mask):
        if is_causal:  # PyTorch raises this only while its own function is in its place
            raise ValueError("CausalBias should not be used with causal=True")
        attn_mask, is_causal = _read_causal_bias(attn_mask, query)
    autocast, call = autocasts(query), None
    flags = isinstance(is_causal, bool) and isinstance(enable_gqa, bool)
    if attn_mask is None and dropout_p == 0 and flags and not autocast:
        mask = Causal(align="start") if is_causal else None
        call = repeated.signature(query, key, value, mask, scale, "sdpa", enable_gqa)
        if call and (output := repeated.repeat(call, query, key, value)) is not None:
            return output
    if in_function_mode():
        return handle_torch_function(
            scaled_dot_product_attention,
            (),
            *(query, key, value, attn_mask, dropout_p, is_causal),
            scale=scale,
            enable_gqa=enable_gqa,
        )
    problem = as_problem(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if problem is None:
        return pytorch_sdpa(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    output = _run(problem, AUTO, autocast, call)
    assert isinstance(output, Tensor)  # the log-sum-exp was not requested
    return output.reshape(*query.shape[:-1], value.shape[-1])


_register_builtin(scaled_dot_product_attention, "aten::scaled_dot_product_attention")


def _read_causal_bias(bias: Any, query: Tensor) -> tuple[Tensor | None, bool]:
    """Return the attn_mask and is_causal that PyTorch uses for its `CausalBias` on CPUs."""
    Tq, Tk = bias.seq_len_q, bias.seq_len_kv
    if bias.variant.name == "UPPER_LEFT" or Tq == Tk:
        return None, True
    return torch.ones(Tq, Tk, dtype=torch.bool, device=query.device).tril(Tk - Tq), False


def as_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> AttentionProblem | None:
    """Convert the arguments of PyTorch's function; None if our kernels do not take them.

    The checks here are those of `AttentionProblem`, and more: PyTorch raises the errors of its own function.
    """
    if not all(map(_is_supported, (query, key, value))):
        return None
    if not (isinstance(is_causal, bool) and isinstance(enable_gqa, bool)):
        return None
    if not isinstance(dropout_p, _NUMBERS) or not isinstance(scale, (NoneType, *_NUMBERS)):
        return None
    if not _same_leading(query, key, value, enable_gqa):
        return None
    if not 0 <= dropout_p <= 1 or not (scale is None or math.isfinite(scale)):
        return None
    if attn_mask is not None and (is_causal or not _mask_fits(attn_mask, query, key.shape[-2])):
        return None
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
    if autocasts(query):
        query, key, value = map(cast_for_autocast, (query, key, value))
    if not (query.dtype == key.dtype == value.dtype and query.device == key.device == value.device):
        return None
    if sizes_of(query, key, value) is None:
        return None
    return AttentionProblem(query, key, value, mask, bias, scale, dropout_p=dropout_p)


def _is_supported(tensor: Tensor) -> bool:
    """Check whether a query, key or value is a plain floating-point tensor with tokens and a head size."""
    return (
        isinstance(tensor, Tensor)
        and not tensor.is_nested
        and tensor.dim() >= 2
        and tensor.dtype in DTYPES
    )


def _same_leading(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> bool:
    """Check whether batch and head dimensions are equal, so that nothing is broadcast; with GQA, heads may differ."""
    if not enable_gqa:
        return query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    batches_equal = query.shape[:-3] == key.shape[:-3] == value.shape[:-3]
    return batches_equal and query.dim() == key.dim() > 2  # PyTorch repeats dimension -3


def _mask_fits(attn_mask: Tensor, query: Tensor, Tk: int) -> bool:
    """Check whether a mask has a dtype that PyTorch takes, the query's device, and a shape that broadcasts."""
    return (
        isinstance(attn_mask, Tensor)
        and attn_mask.dtype in (torch.bool, torch.float32, query.dtype)
        and attn_mask.device == query.device
        and broadcasts(tuple(attn_mask.shape), (*query.shape[:-1], Tk))
    )


def _leading(query: Tensor, attn_mask: Tensor) -> torch.Size:
    """Return the dimensions before heads to which a mask is expanded so that it can be flattened like the query."""
    return query.shape[:-3] if query.dim() > 4 and attn_mask.dim() > 3 else attn_mask.shape[:-3]


def _four_dimensions(tensor: Tensor) -> Tensor:
    """Reshape (…, heads, tokens, size) to (batch, heads, tokens, size)."""
    if tensor.dim() == 4:  # the usual case, without the cost of a view
        return tensor
    if tensor.dim() > 4:
        return tensor.flatten(0, -4)
    return tensor[(None,) * (4 - tensor.dim())]


def autocasts(query: Tensor) -> bool:
    """Check whether autocast is on for the query's device."""
    if not isinstance(query, Tensor):  # AttentionProblem raises the error
        return False
    if query.is_cpu:  # the usual case first, because small calls notice the time
        return torch.is_autocast_enabled("cpu")
    device = query.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def cast_for_autocast(tensor: Tensor) -> Tensor:
    """Convert a tensor to autocast's dtype, as PyTorch does for its own attention."""
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def _run(
    problem: AttentionProblem, kernel: str, autocast: bool, call: repeated.Signature | None = None
) -> Tensor | AttentionResult:
    """Run a kernel in the dtypes of the problem, with autocast switched off."""
    chosen = choose(problem, kernel)
    if call and chosen.NAME == native.NAME:
        repeated.remember(call, problem)
    if not autocast:
        output, lse = chosen.run(problem)
    else:
        with torch.autocast(problem.query.device.type, enabled=False):
            output, lse = chosen.run(problem)
    return AttentionResult(output, lse) if problem.return_lse and lse is not None else output


def _run_with_received_mass(
    problem: AttentionProblem, kernel: str, autocast: bool
) -> AttentionResultWithMass:
    """Run a kernel, then a second pass over the weights, which also computes the log-sum-exp if the kernel has none."""
    wants_lse = replace(problem, return_lse=True)
    if problem.needs_grad or not choose(problem, kernel).refusal(wants_lse):
        problem = wants_lse
    result = _run(problem, kernel, autocast)
    output, lse = result if isinstance(result, AttentionResult) else (result, None)
    computed, mass = received_mass(problem, lse)
    return AttentionResultWithMass(output, computed if lse is None else lse, mass)
