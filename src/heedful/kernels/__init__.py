"""The kernels that compute attention. Each is a module that imports none of the others, and has:

NAME                    the kernel's name in `attention(…, kernel=NAME)`
refusal(problem)        why the kernel cannot run the problem; None if it can
run(problem)            output (B, Hq, Tq, Dv) and lse (B, Hq, Tq), or None for lse from a kernel that refuses
                        return_lse; only for problems that the kernel does not refuse
scratch_bytes(problem)  the memory that a forward pass needs besides inputs and output, at its peak, in bytes
notes(problem)          what users should know about how the kernel computes the result
"""

from typing import Protocol

from torch import Tensor

from heedful.problem import AttentionProblem


class Kernel(Protocol):
    """The interface of a kernel's module."""

    NAME: str

    def refusal(self, problem: AttentionProblem) -> str | None:
        """Return why the kernel cannot run the problem; None if it can."""
        ...

    def run(self, problem: AttentionProblem) -> tuple[Tensor, Tensor | None]:
        """Compute output (B, Hq, Tq, Dv) and lse (B, Hq, Tq); lse is None from a kernel that refuses return_lse."""
        ...

    def scratch_bytes(self, problem: AttentionProblem) -> int:
        """Return the memory that a forward pass needs besides inputs and output, at its peak, in bytes."""
        ...

    def notes(self, problem: AttentionProblem) -> str:
        """Return what users should know about how the kernel computes the result."""
        ...
