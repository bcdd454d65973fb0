"""A context in which code that calls `attention` computes it over many ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
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
    flex_attention,
    torch.ops.higher_order.flex_attention,
)
_SOFTMAX: tuple[Any, ...] = (torch.softmax, torch.Tensor.softmax, torch.nn.functional.softmax)


@contextmanager
def context_parallel(
    group: Group, order: TokenOrder, attend: Attend | None = None
) -> Iterator[None]:
    """Compute `attention` over many ranks wherever this thread calls it, in `heedful.nn` and `heedful.gpt`, too.

    Inside, tokens are those that `shard` gives this rank, and masks are of all tokens. Modules of heedful take the
    tokens' places among all as positions; other code needs ``positions = order.places[rank]`` for its own embeddings of
    positions. All attention must be self-attention, without a cache. Models of transformers run with the implementation
    "heedful" (`heedful.integrations.transformers`), which says what they need. PyTorch's attentions are refused, and
    so is a softmax of scores between the tokens of this rank; attention that has none is not noticed. The forward pass
    belongs inside, and so does the backward pass if it computes parts of the forward pass again
    (`torch.utils.checkpoint`).

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

    places = order.places[ranks.rank]
    sharded = Sharded(attend_sharded, places, order.tokens)
    with computing(sharded), _RefuseForeign(len(places)):
        yield


class _RefuseForeign(TorchFunctionMode):
    """Refuses attention that knows only the tokens of this rank, and labels that are shifted within them.

    Args:
        own: how many tokens this rank has.
    """

    def __init__(self, own: int) -> None:
        super().__init__()
        self._own: int = own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FOREIGN:
            refuse(f"PyTorch's {func.__name__}")
        if func in _SOFTMAX and self._are_scores(args[0] if args else None):
            refuse(f"a softmax of {self._own} x {self._own} scores")
        if func is torch.nn.functional.pad and args and self._are_labels(args[0]):
            refuse(
                "labels that are shifted by one token: shift them before shard(), as shift_labels"
            )
        return func(*args, **(kwargs or {}))

    def _are_scores(self, tensor: Any) -> bool:
        """Check whether a tensor looks like the scores of this rank's queries and keys."""
        own = self._own
        return isinstance(tensor, Tensor) and own > 1 and tuple(tensor.shape[-2:]) == (own, own)

    def _are_labels(self, tensor: Any) -> bool:
        """Check whether a tensor looks like a number for each token of this rank, as transformers shifts labels."""
        return (
            isinstance(tensor, Tensor)
            and not tensor.is_floating_point()
            and tensor.dim() > 0
            and tensor.shape[-1] == self._own
        )
