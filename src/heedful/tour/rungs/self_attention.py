"""Self-attention with learned projections: as parameters, then as linear layers."""

from heedful.textbook import SelfAttentionV1, SelfAttentionV2, demonstrations
from heedful.tour.comparison import compare
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import RungResult, head_size, last_value, record_run
from heedful.tour.routes import compare_with_fused, trace_tolerance


def self_attention_v1(tokens: Tokens) -> RungResult:
    """Record `SelfAttentionV1` and compare it with fused kernels."""
    x, d = tokens.matrix, tokens.matrix.shape[1]
    run = record_run("SelfAttentionV1", SelfAttentionV1(d, head_size(d)), x)
    comparisons = compare_with_fused(run, "SelfAttentionV1", d)
    return RungResult((run,), tuple(comparisons), (_reason_for_scaling(),))


def _reason_for_scaling() -> str:
    spreads = [demonstrations.variance_of_dot_products(d) for d in (10, 100, 1000)]
    unscaled = ", ".join(f"{spread.variance:.0f}" for spread in spreads)
    scaled = ", ".join(f"{spread.scaled_variance:.2f}" for spread in spreads)
    return (
        "Why √d: dot products of random vectors with 10, 100 and 1000 features have variances of "
        f"{unscaled}; divided by √d, of {scaled}."
    )


def self_attention_v2(tokens: Tokens) -> RungResult:
    """Record `SelfAttentionV2` and compare it with `SelfAttentionV1` and fused kernels."""
    x, d = tokens.matrix, tokens.matrix.shape[1]
    module = SelfAttentionV2(d, head_size(d))
    run = record_run("SelfAttentionV2", module, x)
    parameters = SelfAttentionV1(d, head_size(d))
    for name in ("W_query", "W_key", "W_value"):
        getattr(parameters, name).copy_(getattr(module, name).weight.T)
    comparisons = [
        *compare(
            "context",
            ("SelfAttentionV2", last_value(run.trace, "context")),
            ("SelfAttentionV1 with V2's weights, transposed", parameters(x)),
            tolerance=trace_tolerance(run.trace, d),
        ),
        *compare_with_fused(run, "SelfAttentionV2", d),
    ]
    return RungResult((run,), tuple(comparisons))
