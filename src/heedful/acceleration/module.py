"""The operator of `nn.MultiheadAttention` and `nn.TransformerEncoder` in inference, on the native kernel.

These modules call it where no gradients are needed. `nn.TransformerEncoder` packs a padded batch into a nested tensor
first, so that nothing is computed for padding. The sequences of a nested tensor lie one after the other in memory. To
the native kernel they are one sequence, in which each query sees the keys of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.acceleration.masks import KernelMask, lower_mask
from heedful.acceleration.originals import original
from heedful.acceleration.refusal import refusal
from heedful.acceleration.report import count_call
from heedful.kernels.native import calls
from heedful.modes import eager
from heedful.problem import AttentionProblem
from heedful.shapes import broadcasts

OPERATOR: str = "_native_multi_head_attention"
_KEY_PADDING: int = 1  # the mask_type of a mask (B, T); the others broadcast to (B, H, T, T)


def attend_self(
    keys: torch.DispatchKeySet,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the module's output, which has the query's shape, and the weights if they are needed."""
    inputs = (query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias)
    inputs += (mask, need_weights, average_attn_weights, mask_type)
    nested = query.is_nested
    passed_on = original(OPERATOR, "NestedTensorCPU" if nested else "CPU")
    parameters = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    shown = None if mask is None else mask == 0  # PyTorch hides a key wherever a mask is not 0
    if shown is not None and mask_type == _KEY_PADDING:
        shown = shown[:, None, None, :]
    if not (
        query is key is value
        and eager(query, *parameters, mask)
        and _fits(query, shown, num_head, parameters)
    ):
        return passed_on(keys, *inputs)  # which raises PyTorch's errors

    tokens = query.values().view(1, -1, embed_dim) if nested else query
    query_heads = tokens.unflatten(-1, (num_head, -1)).transpose(1, 2)
    problem = AttentionProblem(query_heads, query_heads, query_heads, shown)
    reason = (
        "the weights are returned, too" if need_weights else refusal(problem, differentiates=False)
    )
    if reason:
        kind = "key ranges" if nested else "none" if mask is None else "tensor"
        count_call("forward", query_heads, query_heads, kind, reason)
        return passed_on(keys, *inputs)
    own = _own_keys(query) if nested else lower_mask(problem)
    count_call("forward", query_heads, query_heads, own.kind)
    output = _attend_projected(tokens, num_head, own, parameters)
    if nested:
        layout = (query._nested_tensor_strides(), query._nested_tensor_storage_offsets())
        output = torch._nested_view_from_buffer(  # pyright: ignore[reportPrivateImportUsage]
            output.flatten(), query._nested_tensor_size(), *layout
        )
    return output, None


def _fits(
    query: Tensor, shown: Tensor | None, num_head: int, parameters: tuple[Tensor, ...]
) -> bool:
    """Check whether the shapes and dtypes fit together. There are no masks for nested tensors."""
    embed_dim = parameters[2].shape[0]
    fits = query.dim() == 3 and num_head > 0 and embed_dim % num_head == 0
    shapes = ((3 * embed_dim, embed_dim), (3 * embed_dim,), (embed_dim, embed_dim), (embed_dim,))
    fits &= tuple(tuple(parameter.shape) for parameter in parameters) == shapes
    fits &= all(parameter.dtype == query.dtype for parameter in parameters)
    if query.is_nested:
        return fits and shown is None and query.is_contiguous() and query.size(2) == embed_dim
    B, T, size = query.shape
    return (
        fits
        and size == embed_dim
        and (shown is None or (shown.dim() == 4 and broadcasts(shown.shape, (B, num_head, T, T))))
    )


def _own_keys(nested: Tensor) -> KernelMask:
    """Return the key ranges of the tokens of a nested tensor: those of each token's own sequence."""
    lengths = nested._nested_tensor_size()[:, 0]
    stop = lengths.cumsum(0)
    start, stop = (
        edges.repeat_interleave(lengths).int().view(1, -1, 1) for edges in (stop - lengths, stop)
    )
    return KernelMask("key ranges", start, stop)


def _attend_projected(
    tokens: Tensor, num_head: int, mask: KernelMask, parameters: tuple[Tensor, ...]
) -> Tensor:
    """Return attention (B, T, E) of tokens (B, T, E): projections, attention of each head, projection."""
    qkv_weight, qkv_bias, proj_weight, proj_bias = parameters
    projected = F.linear(tokens, qkv_weight, qkv_bias).unflatten(-1, (3, num_head, -1))
    query, key, value = projected.permute(2, 0, 3, 1, 4)
    output, _ = calls.forward(
        *(query, key, value, mask.start, mask.stop, mask.shown, None, None, None),
        *(query.shape[3] ** -0.5, 0.0, 0.0),
        wants_lse=False,
    )
    return F.linear(output.transpose(1, 2).flatten(2), proj_weight, proj_bias)
