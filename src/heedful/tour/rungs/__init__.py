"""The rungs: each records runs of the textbook and compares all routes to the same result.

The files correspond to those of the textbook. Each function starts from the same random state, whatever rungs were
run before. Modules draw their weights from one seed in the same order, so `SelfAttentionV2`, `CausalAttention` and
the first head of the wrapper have equal weights.
"""

from heedful.tour.rungs.causal import causal_attention, causal_weights, dropout
from heedful.tour.rungs.multi_head import einsum, multi_head, wrapper
from heedful.tour.rungs.own_heads import own_heads
from heedful.tour.rungs.self_attention import self_attention_v1, self_attention_v2
from heedful.tour.rungs.simplified import simplified_attention

__all__ = [
    "causal_attention",
    "causal_weights",
    "dropout",
    "einsum",
    "multi_head",
    "own_heads",
    "self_attention_v1",
    "self_attention_v2",
    "simplified_attention",
    "wrapper",
]
