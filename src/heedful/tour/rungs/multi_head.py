"""Several heads: one by one, all at once, and by named indices, with the same weights."""

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
from heedful.tour.inputs import Tokens
from heedful.tour.meanings import EINSUM_MEANINGS
from heedful.tour.routes import (
    OURS,
    PYTORCH,
    by_attention,
    by_pytorch,
    heads_by,
    heads_of_wrapper_by,
    rounding_in,
)
from heedful.tour.walks import DROPOUT, HEADS, SEED, Climb, head_size, value, walk

PROJECTIONS = ("W_query", "W_key", "W_value")


def wrapper(tokens: Tokens) -> Climb:
    x, d = tokens.matrix, tokens.matrix.shape[1]
    module = _heads_one_by_one(x)
    run = walk(
        f"MultiHeadAttentionWrapper, {HEADS} heads",
        module,
        x,
        code=(MultiHeadAttentionWrapper, CausalAttention),
    )
    context = value(run.trace, "context")
    torch.manual_seed(SEED)
    alone = CausalAttention(d, head_size(d), context_length=len(x)).eval()
    comparisons = [
        *compare(
            "context",
            ("heads one by one", context),
            (f"{OURS} with Causal(), heads at once", heads_of_wrapper_by(by_attention, run.trace)),
            (f"{PYTORCH}, heads at once", heads_of_wrapper_by(by_pytorch, run.trace)),
            tolerance=rounding_in(run.trace, d),
        ),
        *compare(
            "context of the first head",
            ("CausalAttention by itself", alone(x)),
            ("the wrapper's first features", context[:, : head_size(d)]),
            tolerance=rounding_in(run.trace, d),
        ),
    ]
    return Climb((run,), tuple(comparisons))


def multi_head(tokens: Tokens) -> Climb:
    x, d = tokens.matrix, tokens.matrix.shape[1]
    one_by_one = _heads_one_by_one(x)
    module = _heads_at_once(one_by_one, x)
    run = walk(f"MultiHeadAttention, {HEADS} heads with the wrapper's weights", module, x)
    tolerance = rounding_in(run.trace, d)
    comparisons = [
        *compare(
            "context",
            ("heads at once", value(run.trace, "context")),
            ("heads one by one", one_by_one(x)),
            (f"{OURS} with Causal()", heads_by(by_attention, run.trace)),
            (PYTORCH, heads_by(by_pytorch, run.trace)),
            tolerance=tolerance,
        ),
        *compare(
            "output",
            ("MultiHeadAttention", value(run.trace, "output")),
            ("heads one by one, then projected", module.out_proj(one_by_one(x))),
            # out_proj's weights are below 1 / √(H*D), so its H*D terms add at most √(H*D) such errors.
            tolerance=tolerance * (HEADS * head_size(d)) ** 0.5,
        ),
    ]
    copies = demonstrations.contiguous_copies(heads=HEADS, tokens=len(x))
    finding = "Laying the heads' contexts side by side " + (
        "copies them, for they lie in memory head by head." if copies else "needs no copy here."
    )
    return Climb((run,), tuple(comparisons), (finding,))


def einsum(tokens: Tokens) -> Climb:
    x, d = tokens.matrix, tokens.matrix.shape[1]
    one_by_one = _heads_one_by_one(x)
    at_once = _heads_at_once(one_by_one, x)
    module = _heads_by_einsum(x)
    for name in PROJECTIONS:
        getattr(module, name).load_state_dict(getattr(at_once, name).state_dict())
    run = walk(
        f"EinsumMultiHeadAttention, {HEADS} heads with the same weights",
        module,
        x,
        meanings=EINSUM_MEANINGS,
    )
    wider = record(_heads_by_einsum(x, key_dim=head_size(d) + 1), x)
    context = value(run.trace, "context")
    tolerance = rounding_in(run.trace, d)
    comparisons = [
        *compare(
            "context",
            ("einsum", context),
            ("heads at once, unprojected", value(record(at_once, x), "context")),
            ("heads one by one", one_by_one(x)),
            (f"{OURS} with Causal()", heads_by(by_attention, run.trace, amid=True)),
            tolerance=tolerance,
        ),
        *compare(
            "context, keys wider than values",
            ("einsum", value(wider, "context")),
            (f"{OURS} with Causal()", heads_by(by_attention, wider, amid=True)),
            tolerance=rounding_in(wider, d),
        ),
        *compare(
            "context of the first token",
            ("its own value", value(run.trace, "values")[0]),
            ("einsum", context[0]),
            tolerance=tolerance,
        ),
    ]
    return Climb((run,), tuple(comparisons))


def _heads_one_by_one(x: Tensor) -> MultiHeadAttentionWrapper:
    d = x.shape[1]
    torch.manual_seed(SEED)
    return MultiHeadAttentionWrapper(
        d, head_size(d), context_length=len(x), dropout=DROPOUT, num_heads=HEADS
    ).eval()


def _heads_at_once(wrapper: MultiHeadAttentionWrapper, x: Tensor) -> MultiHeadAttention:
    """The split module with the weights of heads that run one by one."""
    d = x.shape[1]
    module = MultiHeadAttention(
        d, HEADS * head_size(d), context_length=len(x), dropout=DROPOUT, num_heads=HEADS
    ).eval()
    for name in PROJECTIONS:
        stacked = torch.cat([getattr(head, name).weight for head in wrapper.heads])
        getattr(module, name).weight.copy_(stacked)
    return module


def _heads_by_einsum(x: Tensor, key_dim: int | None = None) -> EinsumMultiHeadAttention:
    d = x.shape[1]
    return EinsumMultiHeadAttention(
        d,
        HEADS * head_size(d),
        context_length=len(x),
        dropout=DROPOUT,
        num_heads=HEADS,
        key_dim=key_dim,
    ).eval()
