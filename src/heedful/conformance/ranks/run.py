"""What the process of a rank sends back: the results and the recorded values of its run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.recording.source import SourceLine
from heedful.observation.collectives import Collective


@dataclass(frozen=True)
class Value:
    """A tensor that a run has computed, or the gradient of one.

    Attributes:
        name: The variable that holds it.
        operation: The torch call that made it or, of a gradient, the one that reads the tensor.
        tensor: Its value; None if it was not kept.
        reads: The indices of the values in the same list that it was made of.
        place: The line that made it or, of a gradient, the one that reads the tensor.
        role: What it is in an attention, as in `Step.role`.
    """

    name: str
    operation: str
    tensor: Tensor | None
    reads: tuple[int, ...] = ()
    place: SourceLine | None = None
    role: str = ""


@dataclass(frozen=True)
class Run:
    """One call of a target on one rank, with its backward pass.

    Attributes:
        outputs: The floating-point tensors in the result.
        trained: Those of a call in training mode.
        input_gradients: The gradient of each leaf of the arguments; None if it has none.
        weight_gradients: The gradient of each parameter by name; None if it has none.
        weights: The parameters, by name.
        forward: The values of the forward pass.
        backward: The values that Python code computes in the backward pass.
        gradients: The gradients of tensors of the forward pass, in the order in which they were first read.
        collectives: The calls of `torch.distributed`, in order.
    """

    outputs: list[Tensor]
    trained: list[Tensor]
    input_gradients: list[Tensor | None]
    weight_gradients: dict[str, Tensor | None]
    weights: dict[str, Tensor]
    forward: list[Value]
    backward: list[Value]
    gradients: list[Value]
    collectives: list[Collective] = field(default_factory=list)

    @property
    def coarsest(self) -> set[torch.dtype]:
        """The floating-point dtypes of the values of the forward pass."""
        tensors = (value.tensor for value in self.forward)
        return {it.dtype for it in tensors if it is not None and it.is_floating_point()}


@dataclass(frozen=True)
class Whole:
    """The run on one rank, and the call that it made.

    Attributes:
        name: The name of the target.
        args, keywords: The arguments of the call.
        token_axes: For each leaf of the arguments, the axis of its tokens; None if it has none.
        head_axes: Likewise, the axis of its heads.
        tokens: The number of tokens.
        dtype: The dtype of the target's copy that was run.
        words: What the source of the target says in words.
        run: The run.
    """

    name: str
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    token_axes: tuple[int | None, ...]
    head_axes: tuple[int | None, ...]
    tokens: int
    dtype: torch.dtype
    words: str
    run: Run


class UnfitLayoutError(Exception):
    """The arguments cannot be dealt as a layout says, or the result has a shape that does not belong to it."""
