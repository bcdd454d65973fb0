"""PyTorch's whole function `scaled_dot_product_attention` on the native kernel, with its derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.acceleration.masks import KernelMask, lower_mask
from heedful.acceleration.originals import original
from heedful.acceleration.refusal import refusal
from heedful.acceleration.report import count_call
from heedful.dropout import draw_seed
from heedful.functional import as_problem
from heedful.intervals import Intervals
from heedful.kernels import reference
from heedful.kernels.native import calls, operators, repeated
from heedful.masks import Causal, Dense, KeyRanges
from heedful.modes import eager
from heedful.problem import AttentionProblem

OPERATOR: str = "scaled_dot_product_attention"
_CAUSAL: Causal = Causal(align="start")


def attend(
    keys: torch.DispatchKeySet,
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
    """Return the output (…, Tq, Dv), in the memory order of PyTorch's.

    Compiled graphs and modes get PyTorch's fused operator wherever there is one: `fused.py` replaces that, too.
    """
    call = None
    if attn_mask is None and dropout_p == 0 and _difference() is None:
        mask = _CAUSAL if is_causal else None
        call = repeated.signature(query, key, value, mask, scale, OPERATOR, enable_gqa)
        if call and (output := repeated.repeat(call, query, key, value)) is not None:
            count_call("forward", query, key, "causal" if is_causal else "none")
            return output
    inputs = (query, key, value, attn_mask, dropout_p, is_causal)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    tensors = (query, key, value) if enable_gqa else _same_batches(query, key, value)
    problem = as_problem(*tensors, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if problem is None:  # PyTorch raises its own errors
        return original(OPERATOR)(keys, *inputs, **options)
    fused = torch._fused_sdp_choice(*inputs, **options) != 0  # pyright: ignore[reportPrivateImportUsage]
    computes = eager(query, key, value, attn_mask)
    if fused and not computes:
        return original(OPERATOR)(keys, *inputs, **options)
    reason = _difference() or refusal(problem, differentiates=problem.needs_grad)
    if reason:
        if not fused:  # the fused operator is counted where it is replaced
            kind = "causal" if is_causal else "none" if attn_mask is None else "tensor"
            count_call("forward", query, key, kind, reason)
        return original(OPERATOR)(keys, *inputs, **options)
    if call and fused:
        repeated.remember(call, problem)
    output = _run(problem, lower_mask(problem, may_read=computes), fused, computes)
    return output.reshape(*tensors[0].shape[:-1], value.shape[-1])


def _same_batches(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Expand batch and head dimensions to the sizes that they broadcast to; unchanged if they do not broadcast.

    PyTorch does not broadcast where there are no queries or no keys.
    """
    same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    if same or query.dim() < 2 or not (query.numel() and key.numel()):
        return query, key, value
    try:
        shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    except RuntimeError:
        return query, key, value
    query, key = query.expand(*shape, -1, -1), key.expand(*shape, -1, -1)
    return query, key, value.expand(*shape, -1, -1)


def _difference() -> str | None:
    """Return why the user wants PyTorch's own kernel, or None."""
    if not torch.backends.cuda.flash_sdp_enabled():
        return "PyTorch's fused kernels are disabled, by torch.nn.attention.sdpa_kernel"
    return None


class _Call(NamedTuple):
    """What a call has besides its tensors.

    Attributes:
        mask: the kind of mask, as in `CallKind`.
        scale: the factor of the scores.
        dropout_p: the probability of dropping a weight.
        fused: whether PyTorch computes the call by its fused operator, whose output has the query's memory order.
        computes: whether the tensors have values; otherwise, PyTorch traces or observes the call.
    """

    mask: str
    scale: float
    dropout_p: float
    fused: bool
    computes: bool


class _Tensors(NamedTuple):
    """The tensors of a call, as the native kernel takes them."""

    query: Tensor
    key: Tensor
    value: Tensor
    start: Tensor | None
    stop: Tensor | None
    shown: Tensor | None
    bias: Tensor | None
    seed: Tensor | None


def _run(problem: AttentionProblem, mask: KernelMask, fused: bool, computes: bool) -> Tensor:
    """Return the output (B, Hq, Tq, Dv), in the memory order of the query if it is fused, else contiguous."""
    call = _Call(mask.kind, problem.factor, problem.dropout_p, fused, computes)
    seed = draw_seed() if problem.dropout_p > 0 else None
    masks = (mask.start, mask.stop, mask.shown, mask.bias)
    tensors = _Tensors(problem.query, problem.key, problem.value, *masks, seed)
    if computes:
        count_call("forward", problem.query, problem.key, call.mask)
    if problem.needs_grad:
        output = _Attention.apply(call, *tensors)
    else:
        output, _ = _forward(call, tensors, wants_lse=False)
    return output if fused else output.contiguous()


def _forward(call: _Call, tensors: _Tensors, *, wants_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Return the output and the log-sum-exp."""
    query, _, value, *_, seed = tensors
    arguments = (*tensors[:-1], None, seed, call.scale, 0.0, call.dropout_p)
    if not call.computes:
        return operators.attention_forward(*arguments)
    output = None if call.fused else query.new_empty(*query.shape[:3], value.shape[3])
    return calls.forward(*arguments, wants_lse=wants_lse, output=output)


class _Attention(torch.autograd.Function):
    """The native kernel's forward and backward pass. The backward pass can be differentiated, too."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Tensor:
        ctx.call = call
        output, lse = _forward(call, _Tensors(*tensors), wants_lse=True)
        ctx.save_for_backward(*tensors, output, lse)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (grad_output,) = grad_outputs
        *saved, output, lse = ctx.saved_tensors
        call, tensors = ctx.call, _Tensors(*saved)
        needs = ctx.needs_input_grad[1:]
        wants_bias = needs[_Tensors._fields.index("bias")]
        if call.computes:
            count_call("backward", tensors.query, tensors.key, call.mask)
        if torch.is_grad_enabled():
            gradients = _differentiable_gradients(
                call, tensors, (*needs[:3], wants_bias), grad_output
            )
        else:
            query, key, value, *masks, seed = tensors
            arguments: Any = (grad_output, None, query, key, value, output, lse, *masks, None, seed)
            arguments += (call.scale, 0.0, call.dropout_p, wants_bias, False)
            differentiate = calls.backward if call.computes else operators.attention_backward
            gradients = differentiate(*arguments)
        *gradients, grad_bias = gradients[:4]
        return None, *gradients, None, None, None, grad_bias if wants_bias else None, None


def _differentiable_gradients(
    call: _Call, tensors: _Tensors, wanted: tuple[bool, ...], grad_output: Tensor
) -> list[Tensor | None]:
    """Return the gradients of query, key, value and bias as functions of these and of the output's gradient.

    The reference kernel computes attention again, with all scores in memory, as PyTorch does.
    """
    mask = None if tensors.shown is None else Dense(tensors.shown)
    if tensors.start is not None and tensors.stop is not None:
        mask = KeyRanges(Intervals(tensors.start, tensors.stop, tensors.key.shape[2]))
    # Views, because one tensor may be several arguments of a call.
    query, key = tensors.query.view_as(tensors.query), tensors.key.view_as(tensors.key)
    value = tensors.value.view_as(tensors.value)
    problem = AttentionProblem(
        query, key, value, mask, tensors.bias, call.scale, dropout_p=call.dropout_p
    )
    output, _ = reference.attend(problem, tensors.seed)
    inputs = (query, key, value, tensors.bias)
    differentiated = [x for x, flag in zip(inputs, wanted, strict=True) if flag and x is not None]
    gradients = iter(torch.autograd.grad(output, differentiated, grad_output, create_graph=True))
    return [next(gradients) if flag else None for flag in wanted]
