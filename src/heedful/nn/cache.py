"""A cache of a layer's keys and values, with which each generated token costs one token of computation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.textbook.checks import check_sizes


@dataclass(frozen=True, eq=False, repr=False)
class KVCache:
    """The keys and values of one layer: memory for `capacity` tokens, of which the first `length` are filled.

    All batch entries have the same length. Pad shorter prompts on the left, and mask the padding with
    ``Padding(lengths, side="left")``. The cache is a pytree, so `torch.compile` and `torch.export` accept and return
    it.

    Attributes:
        key, value: (B, Hkv, capacity, D). The entries beyond `length` are never read.
        length: the number of tokens in the cache.

    Examples:
        >>> import torch
        >>> from heedful.nn import KVCache, MultiHeadAttention
        >>> attention = MultiHeadAttention(8, 2)
        >>> cache = KVCache.empty(1, 2, capacity=16, head_dim=4)
        >>> output, cache = attention(torch.randn(1, 5, 8), cache=cache)  # the prompt
        >>> output, cache = attention(torch.randn(1, 1, 8), cache=cache)  # one more token
        >>> cache.length
        6
    """

    key: Float[Tensor, "B Hkv capacity D"]
    value: Float[Tensor, "B Hkv capacity D"]
    length: int

    @classmethod
    def empty(
        cls,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> KVCache:
        """Return an empty cache.

        Args:
            batch: the number of batch entries, B.
            num_kv_heads: the number of key/value heads, Hkv.
            capacity: the maximum number of tokens.
            head_dim: the number of features of each head, D.
            dtype: the dtype of the keys that will be appended: the module's, or autocast's. Default: torch's default.
            device: the device. Default: torch's default.

        Returns:
            A cache of length 0.

        Raises:
            ArgumentError: a size is below 1.
        """
        check_sizes(batch=batch, num_kv_heads=num_kv_heads, capacity=capacity, head_dim=head_dim)
        key, value = (
            torch.empty(batch, num_kv_heads, capacity, head_dim, dtype=dtype, device=device)
            for _ in range(2)
        )
        return cls(key, value, 0)

    def __repr__(self) -> str:
        B, Hkv, capacity, D = self.key.shape
        size = 2 * self.key.numel() * self.key.element_size()
        return (
            f"KVCache({self.length} of {capacity} tokens: B={B}, Hkv={Hkv}, D={D}, "
            f"{str(self.key.dtype).removeprefix('torch.')} on {self.key.device}, {size / 2**20:.3g} MiB)"
        )

    @property
    def capacity(self) -> int:
        """The maximum number of tokens."""
        return self.key.shape[2]

    def append(
        self, key: Float[Tensor, "B Hkv T D"], value: Float[Tensor, "B Hkv T D"]
    ) -> tuple[Float[Tensor, "B Hkv Tk D"], Float[Tensor, "B Hkv Tk D"], KVCache]:
        """Append the keys and values of T tokens.

        They are written into the memory that this cache shares with the returned one; use only the latter from then on.
        If gradients are required, they are written into a copy instead, because autograd may still need the old values.

        Args:
            key, value: (B, Hkv, T, D), of the cache's dtype.

        Returns:
            All keys and all values so far, as views (B, Hkv, length + T, D), and the new cache.

        Raises:
            ArgumentError: the sizes or the dtype differ from those of the cache, or the tokens exceed its capacity.
        """
        self.check(key, value)
        length = self.length + key.shape[2]
        keys, values = self.key, self.value
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            keys, values = keys.clone(), values.clone()
        keys[:, :, self.length : length] = key
        values[:, :, self.length : length] = value
        return keys[:, :, :length], values[:, :, :length], KVCache(keys, values, length)

    def check(self, key: Tensor, value: Tensor) -> None:
        """Raise `ArgumentError` unless the keys and values of new tokens fit the cache."""
        B, Hkv, _, D = self.key.shape
        T, capacity = key.shape[-2], self.capacity
        for name, tensor in (("key", key), ("value", value)):
            if tuple(tensor.shape) != (B, Hkv, T, D) or tensor.dtype != self.key.dtype:
                raise ArgumentError(
                    name,
                    expected=f"{self.key.dtype} (B={B}, Hkv={Hkv}, T, D={D}), as the cache",
                    received=f"{tensor.dtype} {tuple(tensor.shape)}",
                    remedy="Create the cache with matching sizes and dtype: KVCache.empty(batch, num_kv_heads, "
                    "capacity, head_dim, dtype=…). Under autocast, the dtype is autocast's.",
                )
        if self.length + T > capacity:
            raise ArgumentError(
                "key",
                expected=f"at most {capacity - self.length} tokens: {self.length} of {capacity} slots are used",
                received=f"{T} tokens",
                remedy="Create the cache with more capacity, or start a new one with the newest tokens.",
            )


torch.export.register_dataclass(KVCache, serialized_type_name="heedful.nn.KVCache")
