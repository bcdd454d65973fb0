"""What may happen to the scores between the dot product and the softmax."""

import math
from typing import Literal

import torch
from torch import Tensor

from heedful.errors import ArgumentError


def soft_cap(scores: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(scores / cap): scores that cannot leave (−cap, cap) (Gemma 2, arXiv 2408.00118). None: unchanged."""
    return scores if cap is None else cap * torch.tanh(scores / cap)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and the log of their normaliser; a row of −∞ gets weights 0 and −∞, and gradients of 0.

    Args:
        scores: (B, Hq, Tq, Tk), −∞ where a key is hidden.
        sinks: (Hq,) logits of one more key per head, whose value is 0: weight goes there instead of to
            a key (GPT-OSS, arXiv 2508.10925). None: an ordinary softmax.

    Returns:
        weights (B, Hq, Tq, Tk), and lse (B, Hq, Tq) with ``weights = exp(scores − lse)``.
    """
    highest = scores.detach().amax(dim=-1, keepdim=True) if scores.shape[-1] else None
    if highest is None:
        highest = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    if sinks is not None:
        sinks = sinks.to(scores.dtype).view(-1, 1, 1)
        highest = torch.maximum(highest, sinks.detach())
    highest = highest.masked_fill(highest == -math.inf, 0.0)
    exponentials = torch.exp(scores - highest)
    normaliser = exponentials.sum(dim=-1, keepdim=True)
    if sinks is not None:
        normaliser = normaliser + torch.exp(sinks - highest)
    hidden = normaliser == 0
    normaliser = normaliser.masked_fill(hidden, 1.0)
    lse = (highest + normaliser.log()).masked_fill(hidden, -math.inf)
    return exponentials / normaliser, lse.squeeze(-1)


def alibi_slopes(num_heads: int) -> Tensor:
    """The slope of each head: float32 (num_heads,), the published geometric series (ALiBi, arXiv 2108.12409).

    For 2^n heads they are 2^(−8/2^n · i), i = 1 … 2^n; for other numbers, those of the next lower power
    of two, then every other one of the next higher.
    """
    if num_heads < 1:
        raise ArgumentError(
            "num_heads",
            expected="at least 1",
            received=str(num_heads),
            remedy="Count the query heads.",
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
) -> Tensor:
    """ALiBi's bias: −slope · |i − j|, float32 (1, num_heads, Tq, Tk), to pass as ``attention(…, bias=…)``.

    Args:
        num_heads: query heads.
        Tq: queries.
        Tk: keys; as many as queries by default.
        align: where the queries stand among the keys, as for masks.
        device: where to make it.
    """
    Tk = Tq if Tk is None else Tk
    shift = Tk - Tq if align == "end" else 0
    i = torch.arange(shift, shift + Tq, device=device).unsqueeze(-1)
    j = torch.arange(Tk, device=device)
    return -alibi_slopes(num_heads).to(device).view(1, -1, 1, 1) * (i - j).abs()
