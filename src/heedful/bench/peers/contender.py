"""Peers, and the contenders that they prepare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from heedful.bench.workload import AttentionWorkload, WorkloadInputs

EXTRA: str = "bench"


def _unchanged(raw: Any) -> tuple[Tensor, ...]:
    return raw


@dataclass(frozen=True)
class Contender:
    """One attention, ready to run.

    Attributes:
        run: Computes it. This function is timed.
        tensors: Converts what `run` returned to tensors: the output, and with a backward pass the gradients of
            query, key and value.
    """

    run: Callable[[], Any]
    tensors: Callable[[Any], tuple[Tensor, ...]] = _unchanged


@dataclass(frozen=True)
class Peer:
    """A library or function that computes attention.

    Attributes:
        name: The name for `--peer`.
        prepare: Prepares a contender for the given inputs.
        refusal: Returns the reason why the peer cannot compute a workload, or None.
        package: The package that it needs. "": only heedful or torch.
        separate_process: Whether it runs in a process of its own, because its threads would compete with torch's.
    """

    name: str
    prepare: Callable[[WorkloadInputs], Contender]
    refusal: Callable[[AttentionWorkload], str | None] = lambda workload: None
    package: str = ""
    separate_process: bool = False

    @property
    def missing(self) -> str | None:
        """The missing package and the command that installs it, or None."""
        if not self.package or find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed: pip install 'heedful[{EXTRA}]'"
