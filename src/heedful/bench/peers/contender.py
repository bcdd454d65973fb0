"""What is timed: a call without arguments, and its results as tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


def _as_they_are(raw: Any) -> tuple[Tensor, ...]:
    return raw


@dataclass(frozen=True)
class Contender:
    """One attention, ready to run.

    Attributes:
        run: computes it; this is timed.
        tensors: the output, and the gradients of query, key and value where there are any, from what `run` returned.
    """

    run: Callable[[], Any]
    tensors: Callable[[Any], tuple[Tensor, ...]] = _as_they_are
