"""`ContextParallel`: context parallelism as a style of PyTorch's `parallelize_module`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from heedful.errors import ArgumentError
from heedful.parallel.axes import ranks_of
from heedful.parallel.context import Attend, context_parallel
from heedful.parallel.forwarding import run_within
from heedful.parallel.order import TokenOrder
from heedful.parallel.sharding import check_order
from heedful.sharded import current


class ContextParallel(ParallelStyle):
    """Runs every forward pass of a module within `context_parallel`, as a style for `parallelize_module`.

    The module gets the tokens of each rank, as `shard` returns them, and masks of all tokens. Its submodules enter the
    context, too, where a backward pass computes them again (`torch.utils.checkpoint`). Weights stay as they are: their
    gradients are shares, to be summed over ranks.

    A plan for attention modules alone, such as ``{"blocks.*.attention": ContextParallel(order)}``, is for models that
    leave positions to them. Positions that a model computes itself, as GPT does, are refused unless they are
    ``order.places[rank]``: parallelize the whole model then.

    Args:
        order: which tokens each rank has.
        attend: as in `context_parallel`.

    Examples:
        >>> from torch.distributed.tensor.parallel import parallelize_module
        >>> from heedful.masks import Causal
        >>> from heedful.parallel import balanced_order
        >>> style = ContextParallel(balanced_order(Causal(), tokens=4096, ranks=2))
        >>> # In each process: parallelize_module(model, init_device_mesh("cpu", (2,)), style)
    """

    def __init__(self, order: TokenOrder, attend: Attend | None = None) -> None:
        super().__init__()
        self.order: TokenOrder = order
        self.attend: Attend | None = attend

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        ranks = ranks_of(device_mesh)
        check_order(self.order, ranks)
        places = self.order.places[ranks.rank]

        @contextmanager
        def within(**arguments: object) -> Iterator[None]:
            sharded = current()
            if sharded is not None and sharded.places is places:  # a module within the module
                yield
                return
            _check_positions(arguments.get("positions"), places)
            with context_parallel(device_mesh, self.order, self.attend):
                yield

        for part in module.modules():
            run_within(part, within)
        return module


def _check_positions(positions: object, places: Tensor) -> None:
    """Raise ArgumentError unless positions that are given to the module are those of this rank's tokens."""
    if not isinstance(positions, Tensor):
        return
    if positions.shape[-1:] == places.shape and bool(torch.all(positions == places)):
        return
    raise ArgumentError(
        "positions",
        expected="the places of this rank's tokens among all, or none",
        received="others, as a model counts them from 0",
        remedy="Parallelize the whole model, so that it knows. Positions that restart need context_parallel().",
    )
