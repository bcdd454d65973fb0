"""Whether gradients are those of what is computed, and the same each time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from heedful.conformance.calling.exceptions import attempt, describe_exception
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.source import SourceLine, last_return
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import find_location


@dataclass(frozen=True)
class _Precision:
    """What central differences in a dtype are good for.

    Attributes:
        step: along directions of length 1: they err by its square, and by rounding divided by it.
        nearer: where a kink, as of a ReLU, lies within that step.
        close: relative to the sum of what all directions contribute.
        noise: added to that.
    """

    step: float
    nearer: float
    close: float
    noise: float


PRECISIONS = {
    torch.float64: _Precision(step=1e-4, nearer=1e-6, close=1e-5, noise=1e-9),
    torch.float32: _Precision(step=1e-2, nearer=3e-3, close=5e-3, noise=2e-3),
}
FAR = 1e-6  # relative: beyond what another order of summation can do


@probe("gradient-wrong")
def gradient(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compares autograd's directional derivatives with central differences, in float64 where that runs."""
    point = _point(evidence)
    names = [name for name, leaf in point.leaves.items() if leaf.requires_grad]
    loss = point.loss()
    slopes = attempt(lambda: _slopes(point, loss, names))
    if isinstance(slopes, Exception):
        yield Finding(
            "gradient-wrong",
            "bug",
            f"The backward pass raises {describe_exception(slopes)}",
            "",
            _cut(evidence),
        )
        return
    wrong = _disagreeing(evidence, names, slopes)
    if wrong is None:
        return
    name, by_autograd, by_difference = wrong
    yield Finding(
        "gradient-wrong",
        "bug",
        f"Moving {name} along a random direction changes the output by {by_difference:.3g} a unit; "
        f"its gradient says {by_autograd:.3g}.",
        f"{str(evidence.subject.dtype)[6:]}, B = {evidence.inputs.sizes[0]}, T = {evidence.inputs.sizes[1]}",
        _cut(evidence),
    )


def _disagreeing(
    evidence: Evidence, names: list[str], slopes: dict[str, float]
) -> tuple[str, float, float] | None:
    """The leaf whose gradient is furthest from what differences show: all at once first, since nearly all are right."""
    precision = PRECISIONS[evidence.subject.dtype]

    def is_wrong(name: str, step: float) -> bool:
        by_difference = _difference(evidence, [name], step)
        return not _is_close(slopes[name], by_difference, abs(slopes[name]), precision)

    size = sum(abs(it) for it in slopes.values())
    by_difference = _difference(evidence, names, precision.step)
    if _is_close(sum(slopes.values()), by_difference, size, precision):
        return None
    wrong = [it for it in names if is_wrong(it, precision.step) and is_wrong(it, precision.nearer)]
    found = [(it, slopes[it], _difference(evidence, [it], precision.step)) for it in wrong]
    return max(found, key=lambda it: abs(it[1] - it[2]), default=None)


def _is_close(a: float, b: float, size: float, precision: _Precision) -> bool:
    return (
        not abs(a - b) > precision.close * max(size, abs(b)) + precision.noise
    )  # NaN tells nothing


@dataclass(frozen=True, eq=False)
class _Point:
    """A pristine copy, tokens, and all that gradients are taken with respect to: leaves of the graph by name."""

    subject: Subject
    inputs: Inputs
    leaves: dict[str, Tensor]

    def loss(self) -> Tensor:
        """The outputs' sum, each weighted at random."""
        output = self.subject.run(self.inputs)
        return (output * _noise(output, "output")).sum()


def _point(evidence: Evidence) -> _Point:
    subject, inputs = evidence.subject.fresh(), evidence.inputs
    leaves: dict[str, Tensor] = {}
    if not inputs.vocabulary:
        # One tensor may stand for several arguments, as in self-attention by (query, key, value).
        leaves = {
            f"the argument {name}": it.clone().requires_grad_()
            for name, it in inputs.arguments.items()
        }
        inputs = replace(
            inputs, arguments=dict(zip(inputs.arguments, leaves.values(), strict=True))
        )
    if subject.module is not None:
        unmoved = {id(it.weight) for it in subject.module.modules() if _has_padding(it)}
        named = subject.module.named_parameters()
        leaves |= {name: it for name, it in named if id(it) not in unmoved}
    return _Point(subject, inputs, leaves)


def _has_padding(module: nn.Module) -> bool:
    """Whether it is an embedding with a row that is to have no gradient."""
    return isinstance(module, nn.Embedding) and module.padding_idx is not None


def _slopes(point: _Point, loss: Tensor, names: list[str]) -> dict[str, float]:
    """How fast the loss grows along each leaf's direction, by autograd."""
    if not loss.requires_grad:
        return dict.fromkeys(names, 0.0)
    loss.backward()
    leaves = {name: point.leaves[name] for name in names}
    return {
        name: 0.0 if leaf.grad is None else (leaf.grad * _direction(leaf, name)).sum().item()
        for name, leaf in leaves.items()
    }


def _difference(evidence: Evidence, names: list[str], step: float) -> float:
    """How fast the loss grows along the directions of some leaves together, by two runs."""

    def loss_at(distance: float) -> float:
        point = _point(evidence)
        with torch.no_grad():
            for name in names:
                point.leaves[name].add_(_direction(point.leaves[name], name), alpha=distance)
        return point.loss().item()

    return (loss_at(step) - loss_at(-step)) / (2 * step)


def _direction(leaf: Tensor, name: str) -> Tensor:
    noise = _noise(leaf, name)
    return noise / noise.norm()


def _noise(like: Tensor, name: str) -> Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


# --- where ----------------------------------------------------------------------------------------


def _cut(evidence: Evidence) -> SourceLine | None:
    """Where a gradient is cut off or made by hand: a detached tensor, a Function of the target's own, a no_grad."""
    point = _point(evidence)
    watch = _Watch()
    with watch:
        loss = attempt(point.loss)
    functions = [] if isinstance(loss, Exception) else list(_own_functions(loss.grad_fn))
    explicit = [place for name, place in watch.cuts if name in ("detach", "data", "register_hook")]
    by_hand = [place for it in functions if (place := last_return(it.backward)) is not None]
    others = [place for _, place in watch.cuts]
    return next(iter([*explicit, *by_hand, *others, *watch.written]), None)


class _Watch(TorchFunctionMode):
    """Notes the calls that take tensors with a gradient, and give some without.

    Attributes:
        cuts: what was called, and where.
        written: where a tensor was overwritten.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[tuple[str, SourceLine]] = []
        self.written: list[SourceLine] = []
        self._largest: list[Tensor] = []  # subtracting a row's largest score needs no gradient

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            name = _name(func)
            given, made = _floating((args, kwargs)), _floating(result)
            if name in ("max", "amax"):
                self._largest += made
            needless = any(it is largest for it in given for largest in self._largest)
            if name == "register_hook" or (
                any(it.requires_grad for it in given)
                and made
                and not any(it.requires_grad for it in made)
                and not name.endswith("_like")
                and not name.startswith("new_")
                and not needless
            ):
                self._note(name, sys._getframe(1))
            elif name.endswith("_") and not name.endswith("__"):
                self._note("", sys._getframe(1))
        return result

    def _note(self, name: str, frame: Any) -> None:
        place = find_location(frame, _cut.__code__)
        if place is None:
            return
        found = SourceLine(place.file, place.line, " ".join(place.source.split()))
        if name:
            self.cuts.append((name, found))
        else:
            self.written.append(found)


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    return func.__self__.__name__ if name == "__get__" else name


def _floating(tree: Any) -> list[Tensor]:
    return [
        it for it in pytree.tree_leaves(tree) if isinstance(it, Tensor) and it.is_floating_point()
    ]


def _own_functions(node: Any) -> Iterator[Any]:
    """The classes of autograd Functions in a graph that are not torch's own."""
    seen, todo = set(), [node]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith("torch."):
            yield function
        todo += [it for it, _ in node.next_functions]


# --- repetition -----------------------------------------------------------------------------------


@probe("gradient-not-deterministic")
def repetition(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Repeats the same backward pass: gradients must be equal to the bit."""
    passes = [_pass(evidence, seed) for seed in (1, 2, 3)]
    losses = [loss for loss, _ in passes]
    if any(loss is None or loss != losses[0] for loss in losses):
        return  # without a gradient, or the forward pass itself is left to chance
    first = passes[0][1]
    for _, again in passes[1:]:
        for name, gradient in again.items():
            apart = (gradient - first[name]).abs().max().item()
            if apart > 0:
                size = first[name].abs().max().item()
                yield Finding(
                    "gradient-not-deterministic",
                    "bug" if apart > FAR * size else "suspicious",
                    f"The same backward pass, repeated, gives another gradient of {name}: by {apart:.3g}, "
                    f"where the largest entry is {size:.3g}.",
                    f"B = {evidence.inputs.sizes[0]}, T = {evidence.inputs.sizes[1]}",
                    _cut(evidence),
                )
                return


def _pass(evidence: Evidence, seed: int) -> tuple[float | None, dict[str, Tensor]]:
    """A forward pass, the same each time, and a backward pass that meets other random numbers."""
    point = _point(evidence)
    loss = point.loss()
    if not loss.requires_grad:
        return None, {}
    torch.manual_seed(seed)
    if isinstance(attempt(loss.backward), Exception):
        return None, {}  # "gradient-wrong" says so
    gradients = {name: it.grad for name, it in point.leaves.items() if it.grad is not None}
    return loss.item(), gradients
