"""The routes that every mechanism shares: our attention and PyTorch's, on the recorded queries, keys and values."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.functional import attention
from heedful.masks import Causal
from heedful.observation import Trace
from heedful.tour.comparison import Comparison, compare, rounding
from heedful.tour.walks import Walk, largest, tensor_of, value

OURS = "heedful.attention()"
PYTORCH = "PyTorch's scaled_dot_product_attention()"
PARTS = ("queries", "keys", "values")


def by_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False, **options: Any
) -> Tensor:
    """`heedful.attention` without a batch: on (T, D) of one head, or on (H, T, D)."""
    query, key, value = map(_four_dimensions, (queries, keys, values))
    output = attention(query, key, value, Causal() if causal else None, **options)
    return cast(Tensor, output).reshape(*queries.shape[:-1], values.shape[-1])


def by_pytorch(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False) -> Tensor:
    """The same by PyTorch's attention."""
    query, key, value = map(_four_dimensions, (queries, keys, values))
    output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return output.reshape(*queries.shape[:-1], values.shape[-1])


def _four_dimensions(tensor: Tensor) -> Tensor:
    return tensor.reshape(1, -1, *tensor.shape[-2:])


def against_fused(walk: Walk, name: str, d: int, *, causal: bool = False) -> list[Comparison]:
    """One head's context against our attention and PyTorch's, on its queries, keys and values."""
    parts = [value(walk.trace, part) for part in PARTS]
    return compare(
        "context",
        (name, value(walk.trace, "context")),
        (f"{OURS} with Causal()" if causal else OURS, by_attention(*parts, causal=causal)),
        (PYTORCH, by_pytorch(*parts, causal=causal)),
        tolerance=rounding_in(walk.trace, d),
    )


def heads_by(route: Callable[..., Tensor], trace: Trace, *, amid: bool = False) -> Tensor:
    """The context (T, H*D) that a causal route makes of a recording's heads.

    Args:
        route: `by_attention` or `by_pytorch`.
        trace: the recording of a module that runs its heads at once.
        amid: whether it has them as (T, H, D), not as (H, T, D).
    """
    parts = [value(trace, f"{part}_by_head") for part in PARTS]
    return _joined(route(*(part.transpose(0, 1) if amid else part for part in parts), causal=True))


def heads_of_wrapper_by(route: Callable[..., Tensor], trace: Trace) -> Tensor:
    """The same where the recorded module ran its heads one by one, each with queries, keys and values of its own."""
    parts = [torch.stack([tensor_of(step) for step in trace.all(part)]) for part in PARTS]
    return _joined(route(*parts, causal=True))


def _joined(contexts: Tensor) -> Tensor:
    """The heads' contexts (H, T, D) side by side, (T, H*D)."""
    return torch.cat(list(contexts), dim=-1)


def rounding_in(trace: Trace, d: int) -> float:
    """What rounding explains in a recorded context of tokens with d features."""
    score, size = (
        max(largest(tensor_of(step)) for step in trace.all(name))
        for name in ("scaled_scores", "values")
    )
    return rounding(d, score=score, value=size)
