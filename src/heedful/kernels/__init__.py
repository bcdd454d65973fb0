"""Ways to compute attention. Each is a module of its own that imports none of the others, and offers:

NAME              what `attention(…, kernel=NAME)` calls it
refusal(problem)  why it cannot run this problem; None: it can
run(problem)      output (B, Hq, Tq, Dv) and lse (B, Hq, Tq), None from a kernel that refuses return_lse;
                  only for problems it does not refuse
scratch_bytes(problem)  memory it takes beside inputs and output, in bytes
notes(problem)    what a user of the result should know of how this kernel computes it
"""

from typing import Protocol

from torch import Tensor

from heedful.problem import AttentionProblem


class Kernel(Protocol):
    """The interface above; a module is one."""

    NAME: str

    def refusal(self, problem: AttentionProblem) -> str | None: ...
    def run(self, problem: AttentionProblem) -> tuple[Tensor, Tensor | None]: ...
    def scratch_bytes(self, problem: AttentionProblem) -> int: ...
    def notes(self, problem: AttentionProblem) -> str: ...
