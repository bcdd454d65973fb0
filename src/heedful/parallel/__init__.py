"""Attention over many processes, on the groups of `torch.distributed`: the same results, masks and dropout as in one.

Tokens are sharded over ranks. `balanced_order` chooses which tokens each rank has, `shard` and `unshard` convert
tensors, and `ring_attention`, `ulysses_attention` and `mesh_attention` compute attention. Within `context_parallel`,
modules compute so; `ContextParallel` and `tensor_parallel_plan` are for PyTorch's `parallelize_module`.
`decode_attention` reads keys of which each rank has some. `simulate` runs the same code on threads, `predict_cost`
says what it costs, and `plan` which way is the best.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from heedful.parallel.axes import Traffic, count_traffic
from heedful.parallel.context import context_parallel
from heedful.parallel.cost import AttentionSizes, Cost, predict_cost
from heedful.parallel.decoding import decode_attention
from heedful.parallel.order import TokenOrder, balanced_order, contiguous_order
from heedful.parallel.ring import ring_attention
from heedful.parallel.schedule import Hardware, Rate
from heedful.parallel.sharding import shard, unshard
from heedful.parallel.simulation import simulate
from heedful.parallel.splits import MeshSplit, ParallelPlan, plan
from heedful.parallel.ulysses import mesh_attention, ulysses_attention

if TYPE_CHECKING:
    from heedful.parallel.context_style import ContextParallel
    from heedful.parallel.tensor_parallel import tensor_parallel_plan
else:

    def __getattr__(name: str) -> object:
        """Import what is for `parallelize_module` on first use, because PyTorch's part of it takes a second."""
        modules = {"ContextParallel": "context_style", "tensor_parallel_plan": "tensor_parallel"}
        if name not in modules:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{modules[name]}"), name)


__all__ = [
    "AttentionSizes",
    "ContextParallel",
    "Cost",
    "Hardware",
    "MeshSplit",
    "ParallelPlan",
    "Rate",
    "TokenOrder",
    "Traffic",
    "balanced_order",
    "context_parallel",
    "contiguous_order",
    "count_traffic",
    "decode_attention",
    "mesh_attention",
    "plan",
    "predict_cost",
    "ring_attention",
    "shard",
    "simulate",
    "tensor_parallel_plan",
    "ulysses_attention",
    "unshard",
]
