"""The modules one ships: multi-head attention on the fastest kernel there is, rotary positions, a cache of keys."""

from heedful.nn.cache import KVCache
from heedful.nn.multi_head import MultiHeadAttention
from heedful.nn.rotary import RotaryEmbedding

__all__ = ["KVCache", "MultiHeadAttention", "RotaryEmbedding"]
