"""The keys and values that a layer has computed, kept so that generating a token costs one token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.textbook.checks import check_sizes


@dataclass(frozen=True, eq=False)
class KVCache:
    """One layer's keys and values: memory for `capacity` tokens, of which the first `length` are used.

    All batch entries have the same length: shorter prompts are padded on the left, and the padding is masked by
    ``Padding(lengths, side="left")``. A pytree, so `torch.compile` and `torch.export` take it and give it back.

        cache = KVCache.empty(1, 8, 1024, 64)
        output, cache = attention(prompt, cache=cache)       # every key of the prompt
        output, cache = attention(token, cache=cache)        # and one more

    Attributes:
        key, value: (B, Hkv, capacity, D). What stands beyond `length` is never read.
        length: how many tokens are in it.
    """

    key: Tensor
    value: Tensor
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
        """A cache with room for `capacity` tokens and none in it.

        Args:
            dtype: that of the keys to come: the module's, or autocast's. None: torch's default.
            device: None: torch's default.

        Raises:
            ArgumentError: a size below 1.
        """
        check_sizes(batch=batch, num_kv_heads=num_kv_heads, capacity=capacity, head_dim=head_dim)
        key, value = (
            torch.empty(batch, num_kv_heads, capacity, head_dim, dtype=dtype, device=device)
            for _ in range(2)
        )
        return cls(key, value, 0)

    @property
    def capacity(self) -> int:
        """How many tokens there is room for."""
        return self.key.shape[2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, KVCache]:
        """Put the keys and values of T more tokens behind those there are.

        They are written into the memory that this cache and the one after it share: go on with the latter. Where
        gradients may flow they are written into a copy, because what earlier steps computed from must stay.

        Args:
            key, value: (B, Hkv, T, D), of the cache's dtype.

        Returns:
            All keys and all values so far, (B, Hkv, length + T, D), as views; and the cache after it.

        Raises:
            ArgumentError: other sizes or another dtype than the cache's, or more tokens than there is room for.
        """
        self._check(key, value)
        length = self.length + key.shape[2]
        keys, values = self.key, self.value
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            keys, values = keys.clone(), values.clone()
        keys[:, :, self.length : length] = key
        values[:, :, self.length : length] = value
        return keys[:, :, :length], values[:, :, :length], KVCache(keys, values, length)

    def _check(self, key: Tensor, value: Tensor) -> None:
        B, Hkv, capacity, D = self.key.shape
        T = key.shape[-2]
        for name, tensor in (("key", key), ("value", value)):
            if tuple(tensor.shape) != (B, Hkv, T, D) or tensor.dtype != self.key.dtype:
                raise ArgumentError(
                    name,
                    expected=f"{self.key.dtype} (B={B}, Hkv={Hkv}, T, D={D}), as the cache",
                    received=f"{tensor.dtype} {tuple(tensor.shape)}",
                    remedy="Make the cache for what comes: KVCache.empty(batch, num_kv_heads, capacity, head_dim, "
                    "dtype=…); under autocast the dtype is autocast's.",
                )
        if self.length + T > capacity:
            raise ArgumentError(
                "key",
                expected=f"at most {capacity - self.length} tokens: {self.length} of {capacity} slots are used",
                received=f"{T} tokens",
                remedy="Make the cache with more capacity, or begin a new one with the newest tokens.",
            )


torch.export.register_dataclass(KVCache, serialized_type_name="heedful.nn.KVCache")
