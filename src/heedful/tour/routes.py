"""Routes that all mechanisms share: our attention and PyTorch's, on recorded queries, keys and values."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from heedful.functional import attention
from heedful.kernels.torch_sdpa import pytorch_sdpa
from heedful.masks import Causal
from heedful.observation import Trace
from heedful.tour.comparison import Comparison, compare, rounding_tolerance
from heedful.tour.recordings import RecordedRun, largest_absolute, last_value, tensor_of

HEEDFUL: str = "heedful.attention()"
PYTORCH: str = "PyTorch's scaled_dot_product_attention()"
PARTS: tuple[str, ...] = ("queries", "keys", "values")


def heedful_context(
    queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False, **options: Any
) -> Tensor:
    """Compute the context with `heedful.attention`.

    Args:
        queries: (T, D) or (H, T, D).
        keys: (T, D) or (H, T, D).
        values: (T, Dv) or (H, T, Dv).
        causal: Whether the attention is causal.
        options: Further arguments of `heedful.attention`.

    Returns:
        (T, Dv) or (H, T, Dv).
    """
    query, key, value = map(_four_dimensions, (queries, keys, values))
    output = attention(query, key, value, Causal() if causal else None, **options)
    return cast(Tensor, output).reshape(*queries.shape[:-1], values.shape[-1])


def pytorch_context(
    queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False
) -> Tensor:
    """Compute the context with PyTorch's attention, from the same arguments as `heedful_context`."""
    query, key, value = map(_four_dimensions, (queries, keys, values))
    output = pytorch_sdpa(query, key, value, is_causal=causal)
    return output.reshape(*queries.shape[:-1], values.shape[-1])


def _four_dimensions(tensor: Tensor) -> Tensor:
    return tensor.reshape(1, -1, *tensor.shape[-2:])


def compare_with_fused(
    run: RecordedRun, name: str, d: int, *, causal: bool = False
) -> list[Comparison]:
    """Compare the recorded context of one head with our attention and PyTorch's.

    Args:
        run: The recorded run.
        name: The name of the module that ran.
        d: The number of features of a token.
        causal: Whether the module is causal.
    """
    parts = [last_value(run.trace, part) for part in PARTS]
    heedful = f"{HEEDFUL} with Causal()" if causal else HEEDFUL
    return compare(
        "context",
        (name, last_value(run.trace, "context")),
        (heedful, heedful_context(*parts, causal=causal)),
        (PYTORCH, pytorch_context(*parts, causal=causal)),
        tolerance=trace_tolerance(run.trace, d),
    )


def context_of_heads(
    route: Callable[..., Tensor], trace: Trace, *, tokens_first: bool = False
) -> Tensor:
    """Compute the causal context of a module that runs its heads at once.

    Args:
        route: `heedful_context` or `pytorch_context`.
        trace: The recording of the module.
        tokens_first: Whether its heads are recorded as (T, H, D) instead of (H, T, D).

    Returns:
        (T, H*D).
    """
    parts = [last_value(trace, f"{part}_by_head") for part in PARTS]
    if tokens_first:
        parts = [part.transpose(0, 1) for part in parts]
    return _side_by_side(route(*parts, causal=True))


def context_of_separate_heads(route: Callable[..., Tensor], trace: Trace) -> Tensor:
    """Compute the causal context of a module that runs its heads one by one.

    Args:
        route: `heedful_context` or `pytorch_context`.
        trace: The recording of the module, with queries, keys and values of each head.

    Returns:
        (T, H*D).
    """
    parts = [torch.stack([tensor_of(step) for step in trace.all(part)]) for part in PARTS]
    return _side_by_side(route(*parts, causal=True))


def _side_by_side(contexts: Tensor) -> Tensor:
    """Concatenate the contexts of heads: (H, T, D) → (T, H*D)."""
    return torch.cat(list(contexts), dim=-1)


def trace_tolerance(trace: Trace, d: int) -> float:
    """Return the difference that rounding explains in a recorded context of tokens with d features."""
    score, value = (
        max(largest_absolute(tensor_of(step)) for step in trace.all(name))
        for name in ("scaled_scores", "values")
    )
    return rounding_tolerance(d, score=score, value=value)
