"""The library's calls as PyTorch operators with fake kernels and gradients, for `torch.compile` and `torch.export`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heedful.errors import KernelError
from heedful.kernels.native import calls

_OPTIONS = """Tensor? start, Tensor? stop, Tensor? mask, Tensor? bias, Tensor? sinks, Tensor? seed,
    float scale, float softcap, float dropout_p"""
_FORWARD = f"""attention_forward(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> (Tensor output, Tensor lse)"""
_BACKWARD = f"""attention_backward(Tensor grad_output, Tensor? grad_lse,
    Tensor query, Tensor key, Tensor value, Tensor output, Tensor lse, {_OPTIONS}, bool wants_bias, bool wants_sinks
    ) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_bias, Tensor grad_sinks)"""
_SUMMARIZE = """attention_summary(Tensor query, Tensor key, Tensor? lse, Tensor? start, Tensor? stop, Tensor? mask,
    Tensor? bias, Tensor? sinks, Tensor? region_start, Tensor? region_stop, float scale, float softcap, SymInt shift,
    bool for_each_query, bool for_each_key, SymInt top_k, SymInt[] cell) -> (Tensor lse, Tensor mass, Tensor entropy,
    Tensor largest, Tensor distance, Tensor received, Tensor top_weights, Tensor top_keys, Tensor region_mass,
    Tensor cell_sums, Tensor cell_maxima)"""


def _forward(*arguments: Any) -> tuple[Tensor, Tensor | None]:
    query, key, value, start, stop, mask, bias, sinks, *numbers = arguments
    calls.check_inputs(query, key, value, start, stop, mask, bias, sinks)
    calls.check_numbers(*numbers)
    return calls.forward(*arguments, wants_lse=True)


def _backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_output, grad_lse, query, key, value, output, lse, *options = arguments
    start, stop, mask, bias, sinks, *numbers, _wants_bias, _wants_sinks = options
    calls.check_inputs(query, key, value, start, stop, mask, bias, sinks)
    calls.check_numbers(*numbers)
    calls.check_results(grad_output, grad_lse, query, value, output, lse)
    return calls.backward(*arguments)


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    calls.check_devices(query, key, value, *options)
    output = calls.empty_output(calls.contiguous_rows(query), value)
    return output, query.new_empty(query.shape[:3], dtype=torch.float32)


def _fake_backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    calls.check_devices(query, key, value, grad_output, grad_lse, output, lse, *options)
    *_, bias, sinks, _seed, _scale, _softcap, _dropout_p, wants_bias, wants_sinks = options
    query, key, value = map(calls.contiguous_rows, (query, key, value))
    return calls.empty_gradients(query, key, value, bias, sinks, wants_bias, wants_sinks)


def _summarize(*arguments: Any) -> tuple[Tensor, ...]:
    *checked, _shift, _for_each_query, _for_each_key, _top_k, cell = arguments
    check: Callable[..., None] = calls.check_summary
    check(*checked, cell)
    return calls.summarize(*arguments)


def _fake_summarize(query: Tensor, key: Tensor, *options: Any) -> tuple[Tensor, ...]:
    calls.check_devices(query, key, *options)
    *_, region_start, _region_stop, _scale, _softcap, _shift, for_queries, for_keys, top_k, cell = (
        options
    )
    return calls.empty_statistics(query, key, for_queries, for_keys, top_k, region_start, cell)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.softcap, ctx.dropout_p = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)  # an unused lse costs nothing


def _differentiate_forward(
    ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `attention_forward`'s inputs, from `attention_backward`."""
    *tensors, output, lse = ctx.saved_tensors
    query, key, value, *options = tensors
    wants_bias, wants_sinks = ctx.needs_input_grad[6:8]
    grad_query, grad_key, grad_value, grad_bias, grad_sinks = attention_backward(
        torch.zeros_like(output) if grad_output is None else grad_output,
        *(grad_lse, query, key, value, output, lse, *options),
        *(ctx.scale, ctx.softcap, ctx.dropout_p, wants_bias, wants_sinks),
    )
    return (
        *(grad_query, grad_key, grad_value, None, None, None),
        grad_bias if wants_bias else None,
        grad_sinks if wants_sinks else None,
        *(None, None, None, None),
    )


def _refuse_double_backward(ctx: Any, *_: Tensor) -> None:
    raise KernelError(
        "kernel 'native' cannot be differentiated twice. "
        "These can: reference, online; name one, attention(…, kernel='reference')."
    )


def _register(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    derivative: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
) -> None:
    """Define an operator of `torch.ops.heedful`."""
    name = _library.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, kernel, "CPU")
    torch.library.register_fake(f"heedful::{name}", fake, lib=_library)
    if derivative:
        torch.library.register_autograd(
            f"heedful::{name}", derivative, setup_context=setup, lib=_library
        )


_library = torch.library.Library("heedful", "DEF")
_register(_FORWARD, _forward, _fake_forward, _differentiate_forward, _save_for_backward)
_register(_BACKWARD, _backward, _fake_backward, _refuse_double_backward)
_register(
    _SUMMARIZE, _summarize, _fake_summarize
)  # without a derivative: statistics are to be read

attention_forward: torch._ops.OpOverload = torch.ops.heedful.attention_forward.default
attention_backward: torch._ops.OpOverload = torch.ops.heedful.attention_backward.default
attention_summary: torch._ops.OpOverload = torch.ops.heedful.attention_summary.default
