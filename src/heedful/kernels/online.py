"""Attention with an online softmax, one block of keys after another (FlashAttention, arXiv 2205.14135, algorithm 1).

It computes the same as the reference, for problems whose scores do not fit in memory.
"""

import math

import torch
from torch import Tensor

from heedful.metering import peak_bytes
from heedful.problem import AttentionProblem
from heedful.scores import soft_cap

NAME = "online"
BLOCK = 256  # keys


def refusal(problem: AttentionProblem) -> str | None:
    """Return None: it runs everything, like the reference."""
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Update the highest score m, the normalizer l and the unnormalized output O, rescaled as m rises."""
    query, key, value = problem.widened()
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    seed = problem.draw_seed() if problem.dropout_p > 0 else 0

    m = query.new_full((B, Hq, Tq, 1), -math.inf)
    l = query.new_zeros(B, Hq, Tq, 1)
    # A sum over no keys: zeros that have a gradient.
    O = _scores(problem, query, key[..., :0, :], 0, 0) @ value[..., :0, :]
    if problem.sinks is not None:  # one more key, which comes before all others and has value 0
        sinks = problem.sinks.to(query.dtype).view(-1, 1, 1)
        m = m.maximum(sinks.detach())
        l = torch.exp(sinks - m)

    for first in range(0, Tk, BLOCK):
        last = min(first + BLOCK, Tk)
        scores = _scores(problem, query, key[..., first:last, :], first, last)
        highest = m.maximum(scores.detach().amax(dim=-1, keepdim=True))
        reference = highest.masked_fill(highest == -math.inf, 0.0)  # no visible key so far
        exponentials = torch.exp(scores - reference)
        correction = torch.exp(m - reference)
        l = correction * l + exponentials.sum(dim=-1, keepdim=True)
        if problem.dropout_p > 0:
            exponentials = exponentials * problem.dropout_factors(seed, first, last)
        O = correction * O + exponentials @ value[..., first:last, :]
        m = highest

    hidden = l == 0
    l = l.masked_fill(hidden, 1.0)
    lse = (m.masked_fill(hidden, 0.0) + l.log()).masked_fill(hidden, -math.inf)
    return (O / l).to(problem.query.dtype), lse.squeeze(-1)


def _scores(problem: AttentionProblem, query: Tensor, key: Tensor, first: int, last: int) -> Tensor:
    """Return the scores of one block of keys, −∞ where hidden."""
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    scores = soft_cap(query @ key.mT * problem.factor, problem.softcap)
    if problem.bias is not None:
        bias = problem.bias.expand(B, Hq, Tq, Tk)[..., first:last]
        scores = scores + bias.to(scores.dtype)
    visible = problem.visible(first, last)
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def scratch_bytes(problem: AttentionProblem) -> int:
    """Measure the tensors of `run`, without the output."""
    return peak_bytes(problem, run) - problem.output_bytes


def notes(problem: AttentionProblem) -> str:
    """Return what a backward pass costs."""
    return "a backward pass keeps every block of scores" if problem.needs_grad else ""
