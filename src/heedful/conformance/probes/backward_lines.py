"""Find the line of an own backward pass that departs: the first one behind the last gradient that is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Step, record


def departing_line(function: Any, run: Callable[[], Tensor]) -> SourceLine | None:
    """Return the line of an autograd Function's backward pass that departs; None if it cannot be told.

    The forward pass is run once more with gradients of its own. Those of its inputs and of all tensors on the way are
    what the backward pass should compute.

    Args:
        function: A subclass of torch.autograd.Function.
        run: Computes a loss with it.
    """
    call = _first_call(function, run)
    if call is None:
        return None
    arguments, gradients = call
    leaves = [_leaf(argument) for argument in arguments]
    context = _Context([isinstance(it, Tensor) and it.requires_grad for it in leaves])
    with torch.enable_grad(), (way := _Way()):
        results = function.forward(context, *leaves)
    outputs = [it for it in _tensors(results) if it.requires_grad]
    if len(outputs) != len(gradients):
        return None
    inputs = [it for it in leaves if isinstance(it, Tensor) and it.requires_grad]
    right = torch.autograd.grad(
        outputs, [*inputs, *way.results], gradients, allow_unused=True, retain_graph=True
    )
    trace = record(function.backward, _detached(context), *gradients, open_attention=False)
    known = [it for it in right if it is not None and it.any()]
    return _first_behind(trace.steps, _tensors(trace.result), right[: len(inputs)], known)


def _first_call(
    function: Any, run: Callable[[], Tensor]
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]] | None:
    """Return the arguments of the first call of a function in a run, and the gradients of its results."""
    calls: list[tuple[Any, ...]] = []
    gradients: list[tuple[Tensor, ...]] = []
    forward, backward = function.forward, function.backward

    def noting_forward(context: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        return forward(context, *arguments)

    def noting_backward(context: Any, *received: Tensor) -> Any:
        gradients.append(received)
        return backward(context, *received)

    with (
        patch.object(function, "forward", staticmethod(noting_forward)),
        patch.object(function, "backward", staticmethod(noting_backward)),
    ):
        run().backward()
    alone = len(calls) == len(gradients) == 1
    return (calls[0], gradients[0]) if alone else None


class _Context:
    """What a forward pass keeps for the backward pass."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Accept the mark, which changes nothing here."""

    mark_non_differentiable = set_materialize_grads = mark_dirty


class _Way(TorchFunctionMode):
    """Note the tensors with a gradient that are computed on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            self.results += [it for it in _tensors(result) if it.requires_grad]
        return result


def _first_behind(
    steps: Sequence[Step],
    returned: Sequence[Tensor],
    right: Sequence[Tensor | None],
    known: Sequence[Tensor],
) -> SourceLine | None:
    """Return the first line on the way to a wrong gradient that comes after all right ones on this way."""
    if len(returned) != len(right):
        return None
    wrong = [
        it for it, true in zip(returned, right, strict=True) if true is None or not _equal(it, true)
    ]
    last = [_last_step(steps, it) for it in wrong]
    behind = {index for step in last if step is not None for index in ancestors(steps, step)}
    correct = [
        index for index in behind if any(_equal(tensor_of(steps[index]), it) for it in known)
    ]
    done = {index for start in correct for index in ancestors(steps, steps[start])}
    left = sorted(behind - done)
    return SourceLine.of(steps[left[0]]) if left else None


def _last_step(steps: Sequence[Step], result: Tensor) -> Step | None:
    """Return the last step whose value is a result."""
    return next((it for it in reversed(steps) if _equal(tensor_of(it), result)), None)


def _equal(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and a.shape == b.shape and torch.allclose(a, b, rtol=1e-6, atol=1e-9)


def _leaf(argument: Any) -> Any:
    """Return a tensor of floating-point numbers as a leaf with a gradient; anything else as it is."""
    if isinstance(argument, Tensor) and argument.is_floating_point():
        return argument.detach().clone().requires_grad_()
    return argument


def _detached(context: _Context) -> _Context:
    """Return a context whose tensors have no gradient."""
    copy = _Context(context.needs_input_grad)
    values = pytree.tree_map(
        lambda it: it.detach() if isinstance(it, Tensor) else it, vars(context)
    )
    vars(copy).update(values)
    return copy


def _tensors(tree: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [it for it in leaves if isinstance(it, Tensor) and it.is_floating_point()]
