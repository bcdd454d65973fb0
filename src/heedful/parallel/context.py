"""A context in which code that calls `attention` computes it over many ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from heedful.errors import ArgumentError
from heedful.parallel.axes import Group, ranks_of
from heedful.parallel.order import TokenOrder
from heedful.parallel.ring import ring_attention
from heedful.parallel.sharding import check_order
from heedful.parallel.ulysses import mesh_attention
from heedful.sharded import Sharded, computing, refuse

Attend = Callable[..., Any]
# PyTorch's own attention, which knows nothing of other ranks.
_FOREIGN: tuple[Any, ...] = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.nn.functional.multi_head_attention_forward,
    torch._native_multi_head_attention,  # pyright: ignore[reportPrivateImportUsage]
)


@contextmanager
def context_parallel(
    group: Group, order: TokenOrder, attend: Attend | None = None
) -> Iterator[None]:
    """Compute `attention` over many ranks wherever this thread calls it, in `heedful.nn` and `heedful.gpt`, too.

    Inside, tokens are those that `shard` gives this rank, and masks are of all tokens. Modules of heedful take the
    tokens' places among all as positions; other code needs ``positions = order.places[rank]`` for its own embeddings of
    positions. All attention must be self-attention, without a cache. PyTorch's `scaled_dot_product_attention` and
    `nn.MultiheadAttention`, and transformers' models, are refused; attention that is written in other ways, as by
    products and a softmax, is not noticed. The forward pass belongs inside, and so does the backward pass if it
    computes parts of the forward pass again (`torch.utils.checkpoint`).

    Args:
        group: the ranks, as in `ring_attention` or `mesh_attention`.
        order: which tokens each rank has.
        attend: `ring_attention`, `ulysses_attention` or `mesh_attention`. None: the ring, on a mesh of two dimensions
            both.

    Raises:
        ArgumentError: the order is for another number of ranks, or the thread is in such a context already.

    Examples:
        >>> from heedful.nn import MultiHeadAttention, RotaryEmbedding
        >>> from heedful.masks import Causal
        >>> from heedful.parallel import balanced_order, shard, simulate, unshard
        >>> module = MultiHeadAttention(8, num_heads=2, rotary=RotaryEmbedding(4))
        >>> x, order = torch.randn(1, 6, 8), balanced_order(Causal(), 6, 2)
        >>> def on_each_rank(group):
        ...     with context_parallel(group, order):
        ...         return unshard(module(shard(x, group, order)), group, order)
        >>> first, second = simulate(on_each_rank, 2)
        >>> torch.allclose(first, module(x), atol=1e-6)
        True
    """
    ranks = ranks_of(group)
    check_order(order, ranks)
    chosen: Attend = attend or (mesh_attention if len(ranks.axes) == 2 else ring_attention)

    def attend_sharded(*tensors: Any, mask: Any, return_received_mass: bool, **options: Any) -> Any:
        if return_received_mass:
            raise ArgumentError(
                "return_received_mass",
                expected="False within context_parallel()",
                received="True",
                remedy="Masses of the keys of other ranks are not computed.",
            )
        with torch._C.DisableTorchFunction():
            return chosen(*tensors, mask, group=group, order=order, **options)

    with computing(Sharded(attend_sharded, order.places[ranks.rank])), _RefuseForeign():
        yield


class _RefuseForeign(TorchFunctionMode):
    """Refuses PyTorch's own attention."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FOREIGN:
            refuse(f"PyTorch's {func.__name__}")
        return func(*args, **(kwargs or {}))
