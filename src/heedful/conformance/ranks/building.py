"""How a target is built on a rank, with its group, and how it is called on one rank."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils import _pytree as pytree

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.candidates import candidate_conventions
from heedful.conformance.calling.command_examples import evaluated_values
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.convention import CallingConvention
from heedful.conformance.calling.examples import find_example_convention
from heedful.conformance.calling.exceptions import attempt, described_with_line
from heedful.conformance.calling.other_axes import with_axes_by_behavior
from heedful.conformance.calling.target import Target, TargetError, make_target
from heedful.conformance.ranks.layout import tokens_for
from heedful.errors import ArgumentError

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


def built(definition: Any, request: RanksRequest) -> Target:
    """Return the target, built with the group, rank and number of ranks if it takes them."""
    _allow_copies()
    given = evaluated_values(request.arguments, request.target)
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


def callable_on_one(held: Target, example: Any, request: RanksRequest) -> Caller:
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


def axes_of(caller: Caller, tokens: int, kind: str) -> tuple[int | None, ...]:
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
