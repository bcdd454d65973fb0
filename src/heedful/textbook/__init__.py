"""The mechanisms as one teaches them, in plain PyTorch, one screen a rung:

simplified → self_attention → causal → multi_head, and `demonstrations` of why they are as they are.

Every step is a variable on a line of its own, with the same name on every rung: queries, keys, values, scores,
scaled_scores, masked_scores, weights, dropped_weights, context. So `heedful.observation.record` of any of these
modules names its steps without a trace of instrumentation in them.
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
