"""The calls as operators of PyTorch: what its dispatcher, autograd, `torch.compile` and `torch.export` know of them."""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from heedful.errors import KernelError
from heedful.kernels.native import calls

_OPTIONS = """Tensor? start, Tensor? stop, Tensor? mask, Tensor? bias, Tensor? sinks, Tensor? seed,
    float scale, float softcap, float dropout_p"""
_FORWARD = f"""attention_forward(Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> (Tensor output, Tensor lse)"""
_BACKWARD = f"""attention_backward(Tensor grad_output, Tensor? grad_lse,
    Tensor query, Tensor key, Tensor value, Tensor output, Tensor lse, {_OPTIONS}, bool wants_bias, bool wants_sinks
    ) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_bias, Tensor grad_sinks)"""


def _forward(*arguments):
    return calls.forward(*arguments, wants_lse=True)


def _forward_shapes(query, key, value, *_):
    output = calls.empty_output(calls.contiguous_rows(query), value)
    return output, query.new_empty(query.shape[:3], dtype=torch.float32)


def _backward_shapes(_grad_output, _grad_lse, query, key, value, _output, _lse, *options):
    *_, bias, sinks, _seed, _scale, _softcap, _dropout_p, wants_bias, wants_sinks = options
    query, key, value = map(calls.contiguous_rows, (query, key, value))
    return calls.empty_gradients(query, key, value, bias, sinks, wants_bias, wants_sinks)


def _remember(ctx, inputs, output) -> None:
    """Keep for the backward pass what the forward pass was given and gave."""
    *tensors, ctx.scale, ctx.softcap, ctx.dropout_p = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)  # an unused lse costs nothing


def _differentiate(ctx, grad_output: Tensor | None, grad_lse: Tensor | None):
    """The gradients of `attention_forward`'s inputs, by `attention_backward`."""
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


def _refuse_twice(ctx: FunctionCtx, *_: Tensor) -> None:
    raise KernelError(
        "kernel 'native' cannot be differentiated twice. "
        "These can: reference, online; name one, attention(…, kernel='reference')."
    )


_library = torch.library.Library("heedful", "DEF")
for schema, function, shapes, derivative, setup in (
    (_FORWARD, _forward, _forward_shapes, _differentiate, _remember),
    (_BACKWARD, calls.backward, _backward_shapes, _refuse_twice, None),
):
    name = _library.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, function, "CPU")
    torch.library.register_fake(f"heedful::{name}", shapes, lib=_library)
    torch.library.register_autograd(
        f"heedful::{name}", derivative, setup_context=setup, lib=_library
    )

attention_forward = torch.ops.heedful.attention_forward.default
attention_backward = torch.ops.heedful.attention_backward.default
