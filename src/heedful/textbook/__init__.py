"""The mechanisms of attention as they are taught, in plain PyTorch, one per screen.

They build on each other: simplified → self_attention → causal → multi_head. `demonstrations` measures why they are
built as they are.

Every step is a variable on its own line, and steps have the same names in all modules: queries, keys, values, scores,
scaled_scores, masked_scores, weights, dropped_weights, context. `heedful.observation.record` therefore shows these
names, although the modules contain no instrumentation.
"""

from heedful.textbook.causal import CausalAttention
from heedful.textbook.multi_head import (
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
)
from heedful.textbook.self_attention import SelfAttentionV1, SelfAttentionV2

__all__ = [
    "CausalAttention",
    "EinsumMultiHeadAttention",
    "MultiHeadAttention",
    "MultiHeadAttentionWrapper",
    "SelfAttentionV1",
    "SelfAttentionV2",
]
