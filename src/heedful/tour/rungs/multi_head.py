"""Several heads with the same weights: one by one, all at once, and by named indices."""

import torch
from torch import Tensor

from heedful.observation import record
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    demonstrations,
)
from heedful.tour.comparison import compare
from heedful.tour.descriptions import EINSUM_DESCRIPTIONS
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import (
    DROPOUT,
    HEADS,
    SEED,
    RungResult,
    head_size,
    last_value,
    record_run,
)
from heedful.tour.routes import (
    HEEDFUL,
    PYTORCH,
    context_of_heads,
    context_of_separate_heads,
    heedful_context,
    pytorch_context,
    trace_tolerance,
)

PROJECTIONS: tuple[str, ...] = ("W_query", "W_key", "W_value")


def wrapper(tokens: Tokens) -> RungResult:
    """Record `MultiHeadAttentionWrapper` and compare it with fused kernels and a single head."""
    x, d = tokens.matrix, tokens.matrix.shape[1]
    module = _heads_one_by_one(x)
    run = record_run(
        f"MultiHeadAttentionWrapper, {HEADS} heads",
        module,
        x,
        code=(MultiHeadAttentionWrapper, CausalAttention),
    )
    context = last_value(run.trace, "context")
    torch.manual_seed(SEED)
    alone = CausalAttention(d, head_size(d), context_length=len(x)).eval()
    comparisons = [
        *compare(
            "context",
            ("heads one by one", context),
            (
                f"{HEEDFUL} with Causal(), heads at once",
                context_of_separate_heads(heedful_context, run.trace),
            ),
            (f"{PYTORCH}, heads at once", context_of_separate_heads(pytorch_context, run.trace)),
            tolerance=trace_tolerance(run.trace, d),
        ),
        *compare(
            "context of the first head",
            ("CausalAttention by itself", alone(x)),
            ("the wrapper's first features", context[:, : head_size(d)]),
            tolerance=trace_tolerance(run.trace, d),
        ),
    ]
    return RungResult((run,), tuple(comparisons))


def multi_head(tokens: Tokens) -> RungResult:
    """Record `MultiHeadAttention` and compare it with the wrapper and fused kernels."""
    x, d = tokens.matrix, tokens.matrix.shape[1]
    one_by_one = _heads_one_by_one(x)
    module = _heads_at_once(one_by_one, x)
    run = record_run(f"MultiHeadAttention, {HEADS} heads with the wrapper's weights", module, x)
    tolerance = trace_tolerance(run.trace, d)
    comparisons = [
        *compare(
            "context",
            ("heads at once", last_value(run.trace, "context")),
            ("heads one by one", one_by_one(x)),
            (f"{HEEDFUL} with Causal()", context_of_heads(heedful_context, run.trace)),
            (PYTORCH, context_of_heads(pytorch_context, run.trace)),
            tolerance=tolerance,
        ),
        *compare(
            "output",
            ("MultiHeadAttention", last_value(run.trace, "output")),
            ("heads one by one, then projected", module.out_proj(one_by_one(x))),
            # The weights of out_proj are at most 1 / √(H*D), so its H*D terms add up to at most √(H*D) such errors.
            tolerance=tolerance * (HEADS * head_size(d)) ** 0.5,
        ),
    ]
    copies = demonstrations.contiguous_copies(heads=HEADS, tokens=len(x))
    finding = "Concatenating the contexts of the heads " + (
        "copies them, because memory holds them head by head." if copies else "needs no copy here."
    )
    return RungResult((run,), tuple(comparisons), (finding,))


def einsum(tokens: Tokens) -> RungResult:
    """Record `EinsumMultiHeadAttention` and compare it with both other modules and our attention."""
    x, d = tokens.matrix, tokens.matrix.shape[1]
    one_by_one = _heads_one_by_one(x)
    at_once = _heads_at_once(one_by_one, x)
    module = _heads_by_einsum(x)
    for name in PROJECTIONS:
        getattr(module, name).load_state_dict(getattr(at_once, name).state_dict())
    run = record_run(
        f"EinsumMultiHeadAttention, {HEADS} heads with the same weights",
        module,
        x,
        descriptions=EINSUM_DESCRIPTIONS,
    )
    wider = record(_heads_by_einsum(x, key_dim=head_size(d) + 1), x)
    context = last_value(run.trace, "context")
    tolerance = trace_tolerance(run.trace, d)
    comparisons = [
        *compare(
            "context",
            ("einsum", context),
            ("heads at once, unprojected", last_value(record(at_once, x), "context")),
            ("heads one by one", one_by_one(x)),
            (
                f"{HEEDFUL} with Causal()",
                context_of_heads(heedful_context, run.trace, tokens_first=True),
            ),
            tolerance=tolerance,
        ),
        *compare(
            "context with keys wider than values",
            ("einsum", last_value(wider, "context")),
            (
                f"{HEEDFUL} with Causal()",
                context_of_heads(heedful_context, wider, tokens_first=True),
            ),
            tolerance=trace_tolerance(wider, d),
        ),
        *compare(
            "context of the first token",
            ("its own value", last_value(run.trace, "values")[0]),
            ("einsum", context[0]),
            tolerance=tolerance,
        ),
    ]
    return RungResult((run,), tuple(comparisons))


def _heads_one_by_one(x: Tensor) -> MultiHeadAttentionWrapper:
    """Return `MultiHeadAttentionWrapper` with weights from the seed."""
    d = x.shape[1]
    torch.manual_seed(SEED)
    return MultiHeadAttentionWrapper(
        d, head_size(d), context_length=len(x), dropout=DROPOUT, num_heads=HEADS
    ).eval()


def _heads_at_once(wrapper: MultiHeadAttentionWrapper, x: Tensor) -> MultiHeadAttention:
    """Return `MultiHeadAttention` with the weights of heads that run one by one."""
    d = x.shape[1]
    module = MultiHeadAttention(
        d, HEADS * head_size(d), context_length=len(x), dropout=DROPOUT, num_heads=HEADS
    ).eval()
    for name in PROJECTIONS:
        stacked = torch.cat([getattr(head, name).weight for head in wrapper.heads])
        getattr(module, name).weight.copy_(stacked)
    return module


def _heads_by_einsum(x: Tensor, key_dim: int | None = None) -> EinsumMultiHeadAttention:
    """Return `EinsumMultiHeadAttention` with random weights."""
    d = x.shape[1]
    return EinsumMultiHeadAttention(
        d,
        HEADS * head_size(d),
        context_length=len(x),
        dropout=DROPOUT,
        num_heads=HEADS,
        key_dim=key_dim,
    ).eval()
