"""Self-attention with learned projections: as parameters, then as linear layers."""

from heedful.textbook import SelfAttentionV1, SelfAttentionV2, demonstrations
from heedful.tour.comparison import compare
from heedful.tour.inputs import Tokens
from heedful.tour.routes import against_fused, rounding_in
from heedful.tour.walks import Climb, head_size, value, walk


def self_attention_v1(tokens: Tokens) -> Climb:
    x, d = tokens.matrix, tokens.matrix.shape[1]
    run = walk("SelfAttentionV1", SelfAttentionV1(d, head_size(d)), x)
    comparisons = against_fused(run, "SelfAttentionV1", d)
    return Climb((run,), tuple(comparisons), (_why_scaled(),))


def _why_scaled() -> str:
    spreads = [demonstrations.variance_of_dot_products(d) for d in (10, 100, 1000)]
    bare = ", ".join(f"{spread.variance:.0f}" for spread in spreads)
    scaled = ", ".join(f"{spread.scaled_variance:.2f}" for spread in spreads)
    return (
        "Why √d: dot products of random vectors with 10, 100 and 1000 features have a variance of "
        f"{bare}; divided by √d, of {scaled}."
    )


def self_attention_v2(tokens: Tokens) -> Climb:
    x, d = tokens.matrix, tokens.matrix.shape[1]
    module = SelfAttentionV2(d, head_size(d))
    run = walk("SelfAttentionV2", module, x)
    parameters = SelfAttentionV1(d, head_size(d))
    for name in ("W_query", "W_key", "W_value"):
        getattr(parameters, name).copy_(getattr(module, name).weight.T)
    comparisons = [
        *compare(
            "context",
            ("SelfAttentionV2", value(run.trace, "context")),
            ("SelfAttentionV1 with V2's weights, transposed", parameters(x)),
            tolerance=rounding_in(run.trace, d),
        ),
        *against_fused(run, "SelfAttentionV2", d),
    ]
    return Climb((run,), tuple(comparisons))
