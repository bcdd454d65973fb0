"""The result of attention over some of the keys, and how results over different keys become one."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError


class AttentionResult(NamedTuple):
    """What attention gives: the context, and what is needed to merge it with attention over more keys.

    Attributes:
        output: (B, Hq, Tq, Dv), the weighted mean of the values.
        lse: (B, Hq, Tq), the log of the softmax's normaliser (natural logarithm), float32 or better;
            −∞ where a query saw no key.
    """

    output: Tensor
    lse: Tensor


def merge(*results: AttentionResult) -> AttentionResult:
    """Attention over the union of disjoint sets of keys, from attention over each (FlashAttention, arXiv 2205.14135).

    Give `sinks` to one of the parts only: each part's normaliser would count them again.

    Raises:
        ArgumentError: nothing to merge, or results of different shapes.
    """
    if not results:
        raise ArgumentError(
            "results", expected="at least one", received="none", remedy="Merge what there is."
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
    nothing = total == 0
    total = total.masked_fill(nothing, 1.0)
    output = sum(
        (share / total).unsqueeze(-1) * result.output
        for share, result in zip(shares, results, strict=True)
    )
    lse = (highest + total.log()).masked_fill(nothing, -math.inf)
    return AttentionResult(torch.as_tensor(output).to(results[0].output.dtype), lse)
