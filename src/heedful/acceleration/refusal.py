"""What is left to PyTorch's kernels."""

from __future__ import annotations

from heedful import dispatch
from heedful.kernels import native
from heedful.problem import AttentionProblem


def refusal(problem: AttentionProblem) -> str | None:
    """Return the reason why PyTorch's kernel should compute a problem, or None."""
    reason = native.refusal(problem)
    if reason:
        return reason
    if next(dispatch.ranking(problem)) != native.NAME:
        return "PyTorch's kernel is faster here, as heedful.explain reports"
    return None
