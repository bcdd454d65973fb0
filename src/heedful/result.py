"""The result of attention, and how results over different keys are merged."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.shapes import times


class AttentionResult(NamedTuple):
    """The output of attention, and what is needed to merge it with attention over more keys.

    Attributes:
        output: (B, Hq, Tq, Dv), the weighted mean of the values.
        lse: (B, Hq, Tq), the natural logarithm of the softmax's normalizer, float32 or better; −∞ where a query
            saw no key.

    Examples:
        >>> from heedful import attention
        >>> query = torch.zeros(1, 1, 2, 4)
        >>> output, lse = attention(query, query, query, return_lse=True)
        >>> lse.exp().round(decimals=3)  # the normalizer of two scores of 0
        tensor([[[2., 2.]]])
    """

    output: Float[Tensor, "B Hq Tq Dv"]
    lse: Float[Tensor, "B Hq Tq"]

    def __repr__(self) -> str:
        return _fields_as_text(self)


class AttentionResultWithMass(NamedTuple):
    """What `attention(…, return_received_mass=True)` returns. It has a type of its own, so that two fields stay two.

    `merge` does not take it, because the masses of parts cannot be merged: compute them afterwards, by
    ``summarize(query, part, lse=merged.lse, keys=…)``.

    Attributes:
        output: (B, Hq, Tq, Dv), the weighted mean of the values.
        lse: (B, Hq, Tq), the natural logarithm of the softmax's normalizer. It has gradients if the output has.
        received_mass: (B, Hq, Tk), the sum of each key's weights over the queries of one query head, before dropout.

    Examples:
        >>> from heedful import Causal, attention
        >>> query = torch.zeros(1, 1, 2, 4)
        >>> attention(query, query, query, Causal(), return_received_mass=True).received_mass
        tensor([[[1.5000, 0.5000]]])
    """

    output: Float[Tensor, "B Hq Tq Dv"]
    lse: Float[Tensor, "B Hq Tq"]
    received_mass: Float[Tensor, "B Hq Tk"]

    def __repr__(self) -> str:
        return _fields_as_text(self)


def _fields_as_text(result: AttentionResult | AttentionResultWithMass) -> str:
    """Return the shapes and dtypes, because the entries would take pages."""
    fields = (
        f"{name}: {times(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        for name, tensor in result._asdict().items()
    )
    return f"{type(result).__name__}({', '.join(fields)})"


def merge(*results: AttentionResult) -> AttentionResult:
    """Merge attention over disjoint sets of keys into attention over their union.

    This is the rescaling of FlashAttention (Dao et al. 2022, arXiv 2205.14135, §3.1). Pass `sinks` to the attention
    over one of the parts only, because the normalizer of each part would count them again.

    Args:
        *results: the results of `attention(…, return_lse=True)`, of the same queries and different keys.

    Returns:
        The result over all keys, its output in the dtype of the first part.

    Raises:
        ArgumentError: there are no results, or their shapes differ.

    Examples:
        >>> from heedful import attention
        >>> query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 6, 8)
        >>> parts = [attention(query, part, part, return_lse=True) for part in key.chunk(2, dim=2)]
        >>> torch.allclose(merge(*parts).output, attention(query, key, key), atol=1e-6)
        True
    """
    if not results:
        raise ArgumentError(
            "results",
            expected="at least one",
            received="none",
            remedy="Pass one result for each set of keys.",
        )
    if any(isinstance(result, AttentionResultWithMass) for result in results):
        raise ArgumentError(
            "results",
            expected="AttentionResult(output, lse)",
            received="a result with the received mass, which cannot be merged",
            remedy="Pass AttentionResult(r.output, r.lse), then summarize(query, part, lse=merged.lse, keys=…).",
        )
    shapes = {(tuple(result.output.shape), tuple(result.lse.shape)) for result in results}
    if len(shapes) > 1:
        raise ArgumentError(
            "results",
            expected="the same shapes of output and lse in all",
            received=", ".join(map(str, sorted(shapes))),
            remedy="The parts share queries and differ in keys.",
        )
    logs = torch.stack([result.lse for result in results])
    highest = logs.detach().amax(dim=0)
    highest = highest.masked_fill(highest == -math.inf, 0.0)
    shares = torch.exp(logs - highest)
    total = shares.sum(dim=0)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    output = sum(
        (share / total).unsqueeze(-1) * result.output
        for share, result in zip(shares, results, strict=True)
    )
    lse = (highest + total.log()).masked_fill(empty, -math.inf)
    return AttentionResult(torch.as_tensor(output).to(results[0].output.dtype), lse)
