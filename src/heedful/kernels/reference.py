"""Attention as the paper writes it (Vaswani et al. 2017, §3.2.1): the definition for the tests of all kernels."""

import math

from torch import Tensor

from heedful.metering import peak_bytes
from heedful.problem import AttentionProblem
from heedful.scores import soft_cap, softmax_with_sinks

NAME = "reference"


def refusal(problem: AttentionProblem) -> str | None:
    """Return None: it runs everything, on any device, in any dtype, with gradients of gradients."""
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """Compute softmax(scale · Q Kᵀ) V with all scores in memory, in float32 for the smaller dtypes."""
    return attend(problem, problem.draw_seed() if problem.dropout_p > 0 else None)


def attend(problem: AttentionProblem, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute the same with the weights that a seed drops, of which there are none without a seed."""
    query, key, value = problem.widened()

    scores = query @ key.mT * problem.factor
    scores = soft_cap(scores, problem.softcap)
    if problem.bias is not None:
        scores = scores + problem.bias.to(scores.dtype)
    if problem.dense_mask is not None:
        scores = scores.masked_fill(~problem.dense_mask, -math.inf)

    weights, lse = softmax_with_sinks(scores, problem.sinks)
    if seed is not None:
        weights = weights * problem.dropout_factors(seed, 0, problem.sizes.Tk)

    output = weights @ value
    return output.to(problem.query.dtype), lse


def scratch_bytes(problem: AttentionProblem) -> int:
    """Measure the tensors of `run`, without the output."""
    return peak_bytes(problem, run) - problem.output_bytes


def notes(problem: AttentionProblem) -> str:
    """Return nothing: it is the definition."""
    return ""
