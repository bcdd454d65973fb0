"""What is left to PyTorch's kernels."""

from __future__ import annotations

from heedful import dispatch
from heedful.kernels import native
from heedful.problem import AttentionProblem

# Query rows of a key/value head; our backward pass computes so many at once.
MIN_DIFFERENTIATED: int = 64


def refusal(problem: AttentionProblem, *, differentiates: bool) -> str | None:
    """Return the reason why PyTorch's kernel should compute a problem, or None.

    Args:
        problem: the problem.
        differentiates: whether gradients are computed or will be.
    """
    reason = native.refusal(problem)
    if reason:
        return reason
    _, Hq, Hkv, Tq, _, _, _ = problem.sizes
    if differentiates and Tq * Hq < MIN_DIFFERENTIATED * Hkv:
        return f"PyTorch computes the gradients of fewer than {MIN_DIFFERENTIATED} queries faster"
    if next(dispatch.ranking(problem)) != native.NAME:
        return "PyTorch's kernel is faster here, as heedful.explain reports"
    return None
