"""Attention over many processes, on the groups of `torch.distributed`: the same results, masks and dropout as in one.

Tokens are sharded over ranks. `balanced_order` chooses which tokens each rank has, `shard` and `unshard` convert
tensors, and `ring_attention`, `ulysses_attention` and `mesh_attention` compute attention. `simulate` runs the same
code on threads, and `predict_cost` says what it costs.
"""

from heedful.parallel.axes import Traffic, count_traffic
from heedful.parallel.context import context_parallel
from heedful.parallel.cost import AttentionSizes, Cost, predict_cost
from heedful.parallel.order import TokenOrder, balanced_order, contiguous_order
from heedful.parallel.ring import ring_attention
from heedful.parallel.sharding import shard, unshard
from heedful.parallel.simulation import simulate
from heedful.parallel.tensor_parallel import tensor_parallel_plan
from heedful.parallel.ulysses import mesh_attention, ulysses_attention

__all__ = [
    "AttentionSizes",
    "Cost",
    "TokenOrder",
    "Traffic",
    "balanced_order",
    "context_parallel",
    "contiguous_order",
    "count_traffic",
    "mesh_attention",
    "predict_cost",
    "ring_attention",
    "shard",
    "simulate",
    "tensor_parallel_plan",
    "ulysses_attention",
    "unshard",
]
