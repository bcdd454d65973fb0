"""What the process of each rank does: build the target, call it, and record the call and its backward pass."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.candidates import candidate_conventions
from heedful.conformance.calling.command_examples import evaluated_example
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.convention import CallingConvention
from heedful.conformance.calling.examples import find_example_convention
from heedful.conformance.calling.exceptions import attempt, described_with_line
from heedful.conformance.calling.isolation import seeded
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.options import in_command, literal
from heedful.conformance.calling.other_axes import with_axes_by_behavior
from heedful.conformance.calling.target import Target, TargetError, make_target
from heedful.conformance.ranks import processes
from heedful.conformance.ranks.layout import ORDERS, Layout, part, part_of_shape, tokens_for
from heedful.conformance.ranks.processes import START_SECONDS
from heedful.conformance.ranks.run import Run, UnfitLayoutError, Value, Whole
from heedful.conformance.ranks.weights import Dealt, deal
from heedful.conformance.recording.source import SourceLine, prose_about
from heedful.errors import ArgumentError
from heedful.observation import Step, Trace, find_location, record
from heedful.observation.collectives import WRITTEN, collectives_seen
from heedful.observation.leaves import leaves_of
from heedful.observation.recorder import METADATA, TENSOR_PROPERTIES

BATCH = 2
KINDS = ("tp", "cp", "sp", "tensor_parallel", "context_parallel", "sequence_parallel")
RANK_NAMES = frozenset(("rank", "local_rank", *(f"{kind}_rank" for kind in KINDS)))
SIZE_NAMES = frozenset(
    ("world_size", "num_ranks", "n_ranks", "ranks", *(f"{kind}_size" for kind in KINDS))
)


@dataclass(frozen=True)
class RanksRequest:
    """What is to be checked on many ranks.

    Attributes:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        reference: The same attention for one rank, in the same form; "" if the target itself runs on one.
        arguments: The arguments of the constructor, as texts.
        example: The arguments of a call as a Python expression; "" to try conventional ones.
        causal: Whether calls should be causal, if an argument decides that.
        ranks: The number of ranks.
    """

    target: str
    reference: str
    arguments: Mapping[str, str]
    example: str
    causal: bool | None
    ranks: int


def run_whole(rank: int, ranks: int, request: RanksRequest) -> Whole:
    """Find out how the target is called, and run it on one rank.

    Raises:
        ArgumentError: It cannot be built or called.
    """
    target = request.reference or request.target
    with in_command(), loaded(target) as definition, collectives_seen(lambda _: None):
        held = _made(definition, request)
        example = evaluated_example(request.example, target) if request.example else None
        caller = _found(held, example, request)
        tokens = tokens_for(request.ranks)
        args, keywords = held.bound(caller.arguments(caller.draw(BATCH, tokens)))
        run = _run(caller.callee, args, keywords, lambda result: _upstream(result))
        return Whole(
            held.name,
            args,
            keywords,
            _axes(caller, tokens, ORDERS[0]),
            _axes(caller, tokens, "heads"),
            tokens,
            caller.dtype,
            prose_about(definition),
            run,
        )


def run_part(
    rank: int, ranks: int, request: RanksRequest, whole_file: str, layout: Layout, in_sections: bool
) -> tuple[Run, dict[str, Dealt]]:
    """Run the target on this rank with its part of the arguments of the run on one.

    Raises:
        UnfitLayoutError: The arguments or the weights cannot be dealt, or the result does not fit the layout.
    """
    whole: Whole = torch.load(Path(whole_file), weights_only=False)
    log = processes.log
    with in_command(), loaded(request.target) as definition, collectives_seen(log.add):
        dist.monitored_barrier(timeout=timedelta(seconds=START_SECONDS))  # all have imported it
        held = _made(definition, request)
        callee = held.copied(whole.dtype)
        dealt: dict[str, Dealt] = {}
        if isinstance(callee, nn.Module):
            dealt = deal(callee, whole.run.weights, rank, ranks, in_sections=in_sections)
        args, keywords = _dealt_arguments(whole, layout, rank, ranks)

        def upstream(outputs: Sequence[Tensor]) -> list[Tensor]:
            return _upstream_part(whole, outputs, layout, rank, ranks)

        run = _run(callee, args, keywords, upstream)
    return replace(run, collectives=log.calls), dealt


def _made(definition: Any, request: RanksRequest) -> Target:
    """Return the target, built with the group, rank and number of ranks if it takes them."""
    _allow_copies()
    given = {name: literal(text) for name, text in request.arguments.items()}
    if inspect.isclass(definition):
        accepted = inspect.signature(definition).parameters
        own = {name: it for name, it in _of_group(definition).items() if name not in given}
        # A reference need not take all arguments of the target.
        fitting = given
        if request.reference and not any(it.kind is it.VAR_KEYWORD for it in accepted.values()):
            fitting = {name: it for name, it in given.items() if name in accepted} or given
        return make_target(instantiate(definition, {**own, **fitting}))
    if isinstance(definition, nn.Module):
        return make_target(definition)
    name = getattr(definition, "__name__", type(definition).__name__)
    known = _of_group(definition)
    return Target(name, functools.partial(definition, **known) if known else definition)


def _of_group(definition: Callable[..., Any]) -> dict[str, Any]:
    """Return values for parameters that take the group, the rank, the number of ranks, or a device mesh."""
    parameters = inspect.signature(definition).parameters
    values: dict[str, Any] = {}
    for name in parameters:
        if name in ("group", "pg", "process_group") or name.endswith("_group"):
            values[name] = dist.group.WORLD
        elif name in SIZE_NAMES:
            values[name] = dist.get_world_size()
        elif name in ("mesh", "device_mesh") or name.endswith("_mesh"):
            values[name] = init_device_mesh("cpu", (dist.get_world_size(),))
    if values or not RANK_NAMES.isdisjoint(parameters):
        # `rank` alone may be that of a low-rank matrix.
        ranks = {name: dist.get_rank() for name in parameters if name in RANK_NAMES}
        values |= ranks if values or set(ranks) != {"rank"} else {}
    return values


def _allow_copies() -> None:
    """Let `copy.deepcopy` keep process groups and meshes, which a target may hold and which cannot be copied."""
    for kind in (dist.ProcessGroup, DeviceMesh):
        kind.__deepcopy__ = lambda self, memo: self  # pyright: ignore[reportAttributeAccessIssue]


def _found(held: Target, example: Any, request: RanksRequest) -> Caller:
    """Return how the target is called on one rank.

    Raises:
        ArgumentError: No call works.
    """
    tokens = tokens_for(request.ranks)
    if example is not None:
        try:
            convention, dtype = find_example_convention(held, example, request.causal)
        except TargetError as error:
            raise _not_callable(held, error.__cause__ or error) from error
        return Caller(held, convention, dtype, held.copied(dtype))
    first: Exception | None = None
    for dtype in (torch.float64, torch.float32):
        callee = held.copied(dtype)
        for convention in candidate_conventions(held, request.causal):
            caller = Caller(held, convention, dtype, callee)
            result = attempt(lambda caller=caller: caller.run(caller.draw(BATCH, tokens)))
            if not isinstance(result, Exception):
                return _by_behavior(caller, tokens)
            first = first or result
    raise _not_callable(held, first or TypeError("no argument takes tokens"))


def _by_behavior(caller: Caller, tokens: int) -> Caller:
    """Return the caller with its axes in another order, if what mixes says so."""
    other = attempt(lambda: with_axes_by_behavior(caller))
    works = attempt(lambda: other.run(other.draw(BATCH, tokens)))
    return caller if isinstance(works, Exception) else other


def _not_callable(held: Target, error: BaseException) -> ArgumentError:
    return ArgumentError(
        "TARGET",
        expected="an attention that can be called on one rank, too, with conventional arguments",
        received=f"{held.name}, which raises {described_with_line(error)}",
        remedy="Give its arguments (--with, --example), or the same attention for one rank: --reference FILE:NAME.",
    )


def _axes(caller: Caller, tokens: int, kind: str) -> tuple[int | None, ...]:
    """Return the axis of each leaf of the arguments that holds the tokens, or the heads."""
    convention: CallingConvention = caller.convention

    def leaves(count: int) -> list[Any]:
        bound = caller.target.bound(caller.arguments(caller.draw(BATCH, count)))
        return pytree.tree_leaves(bound)

    first = leaves(tokens)
    second = attempt(lambda: leaves(2 * tokens))
    if isinstance(second, Exception):
        second = leaves(tokens // 2)
    axes: list[int | None] = []
    for one, other in zip(first, second, strict=True):
        shapes = [it.shape if isinstance(it, Tensor) else () for it in (one, other)]
        longer = [
            axis for axis, sizes in enumerate(zip(*shapes, strict=False)) if sizes[0] != sizes[1]
        ]
        axis = longer[0] if len(longer) == 1 else None
        if kind == "heads" and axis is not None:
            letters = convention.layout.partition(")")[0].strip("(").split(", ")
            axis = letters.index("H") if "H" in letters else None
        axes.append(axis)
    return tuple(axes)


def _dealt_arguments(
    whole: Whole, layout: Layout, rank: int, ranks: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves, spec = pytree.tree_flatten((whole.args, whole.keywords))
    axes = whole.head_axes if layout == "heads" else whole.token_axes
    if layout != "replicated" and all(axis is None for axis in axes):
        raise UnfitLayoutError("no argument has such an axis")
    parts: list[Any] = []
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is not None and leaf.shape[axis] % ranks:
            raise UnfitLayoutError(f"{leaf.shape[axis]} heads cannot be dealt to {ranks} ranks")
        parts.append(leaf if axis is None else part(leaf, axis, layout, rank, ranks))
    return pytree.tree_unflatten(parts, spec)


def _upstream(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Return random gradients of outputs, the same in every process."""
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(it.shape, generator=generator, dtype=torch.float64).to(it.dtype)
        for it in outputs
    ]


def _upstream_part(
    whole: Whole, outputs: Sequence[Tensor], layout: Layout, rank: int, ranks: int
) -> list[Tensor]:
    """Return this rank's part of the gradients of the whole outputs.

    Raises:
        UnfitLayoutError: The outputs have shapes that do not fit the layout.
    """
    expected = whole.run.outputs
    if len(outputs) != len(expected):
        raise UnfitLayoutError(
            f"it returns {len(outputs)} tensors, and {len(expected)} on one rank"
        )
    parts: list[Tensor] = []
    for output, gradient, other in zip(outputs, _upstream(expected), expected, strict=True):
        dealt = part_of_shape(gradient, output.shape, layout, whole.tokens, rank, ranks)
        if dealt is None:
            raise UnfitLayoutError(
                f"its result has the shape {tuple(output.shape)}, and {tuple(other.shape)} on one rank"
            )
        parts.append(dealt.to(output.dtype))
    return parts


def _run(
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
            location = find_location(frame, _run.__code__)
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
        self.weight = (
            -1
        )  # 2 if a gradient flows back from the reading call, 1 if it is one of torch.distributed

    def keep(self, gradient: Tensor) -> None:
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
        self._boundary: CodeType = _run.__code__
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
