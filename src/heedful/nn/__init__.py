"""Attention modules for production models: multi-head attention, rotary position embeddings and a key-value cache."""

from heedful.nn.cache import KVCache
from heedful.nn.multi_head import MultiHeadAttention
from heedful.nn.rotary import RotaryEmbedding
from heedful.nn.sharded_cache import ShardedKVCache

__all__ = ["KVCache", "MultiHeadAttention", "RotaryEmbedding", "ShardedKVCache"]
