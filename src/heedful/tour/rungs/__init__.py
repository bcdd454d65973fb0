"""How each rung is climbed: the textbook runs under `record`, then every route to the same result is compared.

The files mirror the textbook's. Each function takes the tokens and starts from the same random state, whichever
rungs were climbed before. Modules draw their weights from one seed in one order, so `SelfAttentionV2`,
`CausalAttention` and the first head of the wrapper have the same.
"""

from heedful.tour.rungs.causal import causal_attention, causal_weights, dropout
from heedful.tour.rungs.multi_head import einsum, multi_head, wrapper
from heedful.tour.rungs.self_attention import self_attention_v1, self_attention_v2
from heedful.tour.rungs.simplified import simplified_attention

__all__ = [
    "causal_attention",
    "causal_weights",
    "dropout",
    "einsum",
    "multi_head",
    "self_attention_v1",
    "self_attention_v2",
    "simplified_attention",
    "wrapper",
]
