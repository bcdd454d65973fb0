"""One call of a target on a rank: its values, and those and the gradients of its backward pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from heedful.conformance.calling.isolation import seeded
from heedful.conformance.ranks.run import Run, Value
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Step, Trace, find_location, record
from heedful.observation.collectives import WRITTEN
from heedful.observation.leaves import leaves_of
from heedful.observation.recorder import METADATA, TENSOR_PROPERTIES


def recorded_run(
    callee: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    upstream: Callable[[Sequence[Tensor]], list[Tensor]],
) -> Run:
    """Call the target, go back from its results, and call it once more in training mode."""
    leaves, spec = pytree.tree_flatten((args, keywords))
    leaves = [_requiring_gradient(leaf) for leaf in leaves]
    args, keywords = pytree.tree_unflatten(leaves, spec)
    watcher = _GradientWatcher()
    with seeded(), watcher:
        trace = record(callee, *args, **keywords)
    outputs = _outputs(trace.result)
    differentiable = [
        (it, gradient)
        for it, gradient in zip(outputs, upstream(outputs), strict=True)
        if it.requires_grad
    ]

    recorder = _BackwardRecorder()
    with seeded(), recorder.recording():
        if differentiable:
            torch.autograd.backward(
                [it for it, _ in differentiable], [gradient for _, gradient in differentiable]
            )
    weights = dict(callee.named_parameters()) if isinstance(callee, nn.Module) else {}
    run = Run(
        outputs=[it.detach() for it in outputs],
        trained=[],
        input_gradients=[_gradient(it) for it in leaves],
        weight_gradients={name: _gradient(it) for name, it in weights.items()},
        weights={name: _full(it.detach()) for name, it in weights.items()},
        forward=_values(trace),
        backward=recorder.values,
        gradients=watcher.values(trace),
    )
    return replace(run, trained=_trained(callee, args, keywords))


def _trained(callee: Callable[..., Any], args: Any, keywords: Any) -> list[Tensor]:
    """Return the outputs in training mode, where all ranks have the same random state."""
    if not isinstance(callee, nn.Module):
        return []
    callee.train()
    with seeded(), torch.no_grad():
        return _outputs(callee(*args, **keywords))


def _requiring_gradient(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    return leaf.detach().clone().requires_grad_()


def _outputs(result: Any) -> list[Tensor]:
    """Return the floating-point tensors within a result, whole if they are distributed."""
    tensors = (leaf for _, leaf in leaves_of(result) if isinstance(leaf, Tensor))
    return [_full(it) for it in tensors if it.is_floating_point()]


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _gradient(leaf: Any) -> Tensor | None:
    gradient = leaf.grad if isinstance(leaf, Tensor) else None
    return None if gradient is None else _full(gradient)


def _values(trace: Trace) -> list[Value]:
    return [
        Value(
            step.full_name,
            step.operation,
            _kept(step),
            tuple(source.step for source in step.inputs if source.step is not None),
            SourceLine.of(step),
            "beside" if step.beside else step.role,
        )
        for step in trace
    ]


def _kept(step: Step) -> Tensor | None:
    kept = isinstance(step.value, Tensor) and not isinstance(step.value, DTensor)
    return step.value if kept else None  # pyright: ignore[reportReturnType]


class _GradientWatcher(TorchFunctionMode):
    """Keeps the gradients of all tensors that are read in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, _Watched] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        getter = name == "__get__" and func.__self__.__name__ not in TENSOR_PROPERTIES
        result = func(*args, **(kwargs or {}))
        if name in METADATA or getter:
            return result
        with torch._C.DisableTorchFunction():
            differentiable = any(
                it.requires_grad for it in pytree.tree_leaves(result) if isinstance(it, Tensor)
            )
            for tensor in pytree.tree_leaves((args, kwargs)):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    self._watch(tensor, name, sys._getframe(1), differentiable=differentiable)
        return result

    def _watch(self, tensor: Tensor, reader: str, frame: Any, *, differentiable: bool) -> None:
        known = self._seen.get(id(tensor))
        if known is None:
            known = self._seen[id(tensor)] = _Watched(tensor, reader, tensor.detach().clone())
            if not isinstance(tensor, DTensor):
                tensor.register_hook(known.keep)
        weight = 2 if differentiable else 1 if reader in WRITTEN else 0
        if weight > known.weight:
            location = find_location(frame, recorded_run.__code__)
            known.weight, known.reader = weight, reader
            if location is not None:
                source = " ".join(location.source.split())
                known.place = SourceLine(location.file, location.line, source)

    def values(self, trace: Trace) -> list[Value]:
        """Return the gradients in the order in which their tensors were first read."""
        return [
            Value(_name_in(trace, it.value), it.reader.strip("_"), it.gradient, (), it.place)
            for it in self._seen.values()
            if it.gradient is not None
        ]


class _Watched:
    """A tensor, its gradient, and the first call that reads it so that a gradient flows back."""

    def __init__(self, tensor: Tensor, reader: str, value: Tensor) -> None:
        self.tensor, self.reader, self.value = tensor, reader, value
        self.gradient: Tensor | None = None
        self.place: SourceLine | None = None
        # 2 if a gradient flows back from the reading call, 1 if it is one of torch.distributed.
        self.weight = -1

    def keep(self, gradient: Tensor | None) -> None:
        if gradient is not None:  # no gradient flows back to one of several results of a call
            self.gradient = gradient.detach().clone()


class _BackwardRecorder(TorchFunctionMode):
    """Records what autograd Functions in Python compute in a backward pass, in which no mode of the caller is active.

    Attributes:
        values: The results, each with the line of the `backward` that computes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Value] = []
        self._indices: dict[int, int] = {}
        self._boundary: CodeType = recorded_run.__code__
        self._kept: list[Tensor] = []  # so that no other tensor gets the id of one of them

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the backward passes of the block."""
        original = BackwardCFunction.apply

        def apply(function: BackwardCFunction, *gradients: Any) -> Any:
            with self:
                return original(function, *gradients)

        self._boundary = apply.__code__
        setattr(BackwardCFunction, "apply", apply)  # noqa: B010 - pyright knows the type of the method
        try:
            yield
        finally:
            BackwardCFunction.apply = original

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            tensors = [it for it in pytree.tree_leaves(result) if isinstance(it, Tensor)]
            read = [it for it in pytree.tree_leaves((args, kwargs)) if isinstance(it, Tensor)]
            reads = tuple(self._indices[id(it)] for it in read if id(it) in self._indices)
            place = self._line(sys._getframe(1)) if tensors and name not in METADATA else None
            for tensor in tensors if place is not None else ():
                self._indices[id(tensor)] = len(self.values)
                self._kept.append(tensor)
                kept = None if isinstance(tensor, DTensor) else tensor.detach().clone()
                self.values.append(Value("", name.strip("_"), kept, reads, place))
        return result

    def _line(self, frame: Any) -> SourceLine | None:
        """Return the line of the `backward` that a call is made for."""
        location = find_location(frame, self._boundary)
        outer = location
        while outer is not None:
            location, outer = outer, outer.caller(self._boundary)
        if location is None:
            return None
        return SourceLine(location.file, location.line, " ".join(location.source.split()))


def _name_in(trace: Trace, value: Tensor) -> str:
    """Return the name of the step with a value; "" if there is none."""
    for step in trace:
        kept = _kept(step)
        if kept is not None and kept.shape == value.shape and torch.equal(kept, value):
            return step.full_name
    return ""
