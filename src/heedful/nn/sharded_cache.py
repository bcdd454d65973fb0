"""A cache of keys and values of which each rank has some, so that a context fits that one machine cannot hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.masks import Mask
from heedful.nn.cache import KVCache
from heedful.parallel import decode_attention
from heedful.parallel.axes import Group, ranks_of
from heedful.textbook.checks import check_sizes


@dataclass(frozen=True, eq=False, repr=False)
class ShardedKVCache(KVCache):
    """The keys and values of one layer, dealt out over ranks: token t is on rank t mod ranks.

    All ranks compute the same tokens. Each keeps the keys and values of its own, and attends to those; the results are
    merged (`heedful.parallel.decode_attention`). It is for inference: there are no gradients and no dropout.

    Attributes:
        key, value: (B, Hkv, capacity / ranks, D), the memory of this rank.
        length: the number of tokens in the cache, on all ranks.
        group: the ranks, as in `decode_attention`.

    Examples:
        >>> import torch
        >>> from heedful.nn import MultiHeadAttention
        >>> from heedful.parallel import simulate
        >>> attention, x = MultiHeadAttention(8, 2).eval(), torch.randn(1, 6, 8)
        >>> @torch.no_grad()
        ... def on_each_rank(group):
        ...     cache = ShardedKVCache.on_ranks(group, 1, 2, capacity=16, head_dim=4)
        ...     _, cache = attention(x[:, :5], cache=cache)  # the prompt
        ...     output, cache = attention(x[:, 5:], cache=cache)  # one more token
        ...     return output
        >>> first, second = simulate(on_each_rank, 2)
        >>> torch.equal(first, second), torch.allclose(first, attention(x)[:, 5:], atol=1e-6)
        (True, True)
    """

    group: Group

    @classmethod
    def on_ranks(
        cls, group: Group, batch: int, num_kv_heads: int, capacity: int, head_dim: int, **like: Any
    ) -> ShardedKVCache:
        """Return an empty cache.

        Args:
            group: a process group, a DeviceMesh of one dimension, or what `simulate` passes.
            batch: the number of batch entries, B.
            num_kv_heads: the number of key/value heads, Hkv.
            capacity: the maximum number of tokens on all ranks.
            head_dim: the number of features of each head, D.
            **like: dtype and device, as in `KVCache.empty`.

        Returns:
            A cache of length 0.

        Raises:
            ArgumentError: a size is below 1, or this process is not part of the group.
        """
        check_sizes(capacity=capacity)
        of_each = -(-capacity // ranks_of(group, dimensions=(1,)).size)
        memory = KVCache.empty(batch, num_kv_heads, of_each, head_dim, **like)
        return cls(memory.key, memory.value, 0, group)

    @property
    def capacity(self) -> int:
        """The maximum number of tokens on all ranks."""
        return self.key.shape[2] * ranks_of(self.group).size

    def append(
        self, key: Float[Tensor, "B Hkv T D"], value: Float[Tensor, "B Hkv T D"]
    ) -> tuple[Float[Tensor, "B Hkv own D"], Float[Tensor, "B Hkv own D"], ShardedKVCache]:
        """Append the keys and values of T tokens, of which this rank keeps its own.

        Args:
            key, value: (B, Hkv, T, D), of the cache's dtype, equal on all ranks.

        Returns:
            All keys and all values of this rank so far, as views, and the new cache.

        Raises:
            ArgumentError: as in `KVCache.append`, or gradients are required.
        """
        self.check(key, value)
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise ArgumentError(
                "cache",
                expected="no gradients: a cache that is sharded over ranks is for inference",
                received="keys that require gradients",
                remedy="Use torch.inference_mode(); for training, context_parallel().",
            )
        ranks = ranks_of(self.group)
        held, length = len(self.places), self.length + key.shape[2]
        cache = replace(self, length=length)
        now = len(cache.places)
        first = (ranks.rank - self.length) % ranks.size  # of the new tokens, this rank's first
        self.key[:, :, held:now] = key[:, :, first :: ranks.size]
        self.value[:, :, held:now] = value[:, :, first :: ranks.size]
        return self.key[:, :, :now], self.value[:, :, :now], cache

    @property
    def places(self) -> Tensor:
        """Which tokens this rank has: int64, ascending."""
        ranks = ranks_of(self.group)
        return torch.arange(ranks.rank, max(self.length, ranks.rank), ranks.size)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        *,
        softcap: float | None,
        dropout_p: float,
        kernel: str,
    ) -> Tensor:
        """Return attention of the newest queries to the tokens of all ranks, of which `append` returned this rank's."""
        if dropout_p > 0:
            raise ArgumentError(
                "cache",
                expected="a module in eval mode: a cache that is sharded over ranks is for inference",
                received=f"dropout with {dropout_p}",
                remedy="Call module.eval().",
            )
        return decode_attention(
            *(query, key, value, mask),
            group=self.group,
            places=self.places,
            tokens=self.length,
            softcap=softcap,
            kernel=kernel,
        )
