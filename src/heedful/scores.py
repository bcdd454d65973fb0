"""The operations on scores between the dot product and the softmax."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError


def soft_cap(scores: Float[Tensor, "*shape"], cap: float | None) -> Float[Tensor, "*shape"]:
    """Return cap · tanh(scores / cap), which stays within (−cap, cap) (Gemma 2, arXiv 2408.00118, §2).

    Args:
        scores: floating point, of any shape.
        cap: the bound, above 0; None: the scores are returned unchanged.

    Returns:
        The capped scores, of the same shape and dtype.

    Examples:
        >>> soft_cap(torch.tensor([-1000.0, 0.0, 1000.0]), 5.0)
        tensor([-5.,  0.,  5.])
    """
    return scores if cap is None else cap * torch.tanh(scores / cap)


def softmax_with_sinks(
    scores: Float[Tensor, "B Hq Tq Tk"], sinks: Float[Tensor, " Hq"] | None
) -> tuple[Float[Tensor, "B Hq Tq Tk"], Float[Tensor, "B Hq Tq"]]:
    """Return the attention weights and the logarithm of their normalizer.

    A row of −∞ gets weights 0, log-sum-exp −∞ and gradients 0.

    Args:
        scores: (B, Hq, Tq, Tk), −∞ where a key is hidden.
        sinks: (Hq,) logits of one more key per head, whose value is 0. They take weight that would otherwise go to
            a key (GPT-OSS, arXiv 2508.10925). None: an ordinary softmax.

    Returns:
        The weights (B, Hq, Tq, Tk), and lse (B, Hq, Tq) with ``weights = exp(scores − lse)``.

    Examples:
        >>> weights, lse = softmax_with_sinks(torch.zeros(1, 1, 1, 3), torch.zeros(1))
        >>> weights
        tensor([[[[0.2500, 0.2500, 0.2500]]]])
    """
    highest = scores.detach().amax(dim=-1, keepdim=True) if scores.shape[-1] else None
    if highest is None:
        highest = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    if sinks is not None:
        sinks = sinks.to(scores.dtype).view(-1, 1, 1)
        highest = torch.maximum(highest, sinks.detach())
    highest = highest.masked_fill(highest == -math.inf, 0.0)
    exponentials = torch.exp(scores - highest)
    normalizer = exponentials.sum(dim=-1, keepdim=True)
    if sinks is not None:
        normalizer = normalizer + torch.exp(sinks - highest)
    hidden = normalizer == 0
    normalizer = normalizer.masked_fill(hidden, 1.0)
    lse = (highest + normalizer.log()).masked_fill(hidden, -math.inf)
    return exponentials / normalizer, lse.squeeze(-1)


def alibi_slopes(num_heads: int) -> Float[Tensor, " Hq"]:
    """Return the slope of each head's ALiBi bias (Press et al. 2022, arXiv 2108.12409, §3).

    For 2^n heads, the slopes are 2^(−8/2^n · i), i = 1 … 2^n. Other numbers of heads take the slopes of the next
    lower power of two, followed by every other slope of the next higher one.

    Args:
        num_heads: the number of query heads, at least 1.

    Returns:
        The slopes, float32 (num_heads,).

    Raises:
        ArgumentError: there are fewer than 1 heads.

    Examples:
        >>> alibi_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if num_heads < 1:
        raise ArgumentError(
            "num_heads",
            expected="at least 1",
            received=str(num_heads),
            remedy="Pass the number of query heads.",
        )
    lower = 2 ** (num_heads.bit_length() - 1)
    series = [2 ** (-8 * i / lower) for i in range(1, lower + 1)]
    between = [2 ** (-4 * i / lower) for i in range(1, 2 * lower + 1, 2)]
    return torch.tensor((series + between)[:num_heads])


def alibi(
    num_heads: int,
    Tq: int,
    Tk: int | None = None,
    *,
    align: Literal["start", "end"] = "end",
    device: torch.device | str = "cpu",
) -> Float[Tensor, "1 {num_heads} {Tq} Tk"]:
    """Return ALiBi's bias, −slope · |i − j|, for ``attention(…, bias=…)`` (Press et al. 2022, arXiv 2108.12409, §3).

    Args:
        num_heads: the number of query heads, at least 1.
        Tq: the number of queries.
        Tk: the number of keys; None: as many as queries.
        align: where the queries stand among the keys, as for masks.
        device: the device of the result.

    Returns:
        The bias, float32 (1, num_heads, Tq, Tk).

    Raises:
        ArgumentError: there are fewer than 1 heads.

    Examples:
        >>> (alibi(1, 3) * 2**8).int()
        tensor([[[[ 0, -1, -2],
                  [-1,  0, -1],
                  [-2, -1,  0]]]], dtype=torch.int32)
    """
    Tk = Tq if Tk is None else Tk
    shift = Tk - Tq if align == "end" else 0
    i = torch.arange(shift, shift + Tq, device=device).unsqueeze(-1)
    j = torch.arange(Tk, device=device)
    return -alibi_slopes(num_heads).to(device).view(1, -1, 1, 1) * (i - j).abs()
