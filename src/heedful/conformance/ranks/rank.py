"""What the process of each rank does: run the target on the whole arguments, or on its part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling.command_examples import evaluated_example
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.options import in_command
from heedful.conformance.ranks import processes
from heedful.conformance.ranks.building import BATCH, RanksRequest, axes_of, built, callable_on_one
from heedful.conformance.ranks.layout import ORDERS, Layout, part, part_of_shape, tokens_for
from heedful.conformance.ranks.processes import START_SECONDS
from heedful.conformance.ranks.recording import recorded_run
from heedful.conformance.ranks.run import Run, UnfitLayoutError, Whole
from heedful.conformance.ranks.weights import Dealt, deal
from heedful.conformance.recording.target_source import prose_about
from heedful.observation.collectives import collectives_seen


def run_whole(rank: int, ranks: int, request: RanksRequest) -> Whole:
    """Find out how the target is called, and run it on one rank.

    Raises:
        ArgumentError: It cannot be built or called.
    """
    target = request.reference or request.target
    with in_command(), loaded(target) as definition, collectives_seen(lambda _: None):
        held = built(definition, request)
        example = evaluated_example(request.example, target) if request.example else None
        caller = callable_on_one(held, example, request)
        tokens = tokens_for(request.ranks)
        args, keywords = held.bound(caller.arguments(caller.draw(BATCH, tokens)))
        run = recorded_run(caller.callee, args, keywords, lambda result: _upstream(result))
        return Whole(
            held.name,
            args,
            keywords,
            axes_of(caller, tokens, ORDERS[0]),
            axes_of(caller, tokens, "heads"),
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
        held = built(definition, request)
        callee = held.copied(whole.dtype)
        dealt: dict[str, Dealt] = {}
        if isinstance(callee, nn.Module):
            dealt = deal(callee, whole.run.weights, rank, ranks, in_sections=in_sections)
        args, keywords = _dealt_arguments(whole, layout, rank, ranks)

        def upstream(outputs: Sequence[Tensor]) -> list[Tensor]:
            return _upstream_part(whole, outputs, layout, rank, ranks)

        run = recorded_run(callee, args, keywords, upstream)
    return replace(run, collectives=log.calls), dealt


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
