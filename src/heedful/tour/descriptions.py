"""Descriptions of the textbook's steps: what each one means, and what its dimensions count."""

from dataclasses import dataclass

TOKEN: str = "token"
FEATURE: str = "feature"
HEAD: str = "head"
SINGLE: str = "single"


@dataclass(frozen=True)
class StepDescription:
    """A description of a step.

    Attributes:
        text: One line.
        axes: What the last dimensions count. A one-dimensional value has only the last axis. Additional dimensions
            are heads, and come first.
    """

    text: str
    axes: tuple[str, ...]


TOKENS_BY_TOKENS: tuple[str, ...] = (TOKEN, TOKEN)
TOKENS_BY_FEATURES: tuple[str, ...] = (TOKEN, FEATURE)
TOKENS_BY_HEADS_BY_FEATURES: tuple[str, ...] = (TOKEN, HEAD, FEATURE)  # einsum needs no transpose

DESCRIPTIONS: dict[str, StepDescription] = {
    "query": StepDescription("the token that attends to the others", TOKENS_BY_FEATURES),
    "queries": StepDescription("what each token looks for", TOKENS_BY_FEATURES),
    "keys": StepDescription("what each token is found by", TOKENS_BY_FEATURES),
    "values": StepDescription("what each token passes on when it is found", TOKENS_BY_FEATURES),
    "queries_by_head": StepDescription("the queries, split into heads", TOKENS_BY_FEATURES),
    "keys_by_head": StepDescription("the keys, split into heads", TOKENS_BY_FEATURES),
    "values_by_head": StepDescription("the values, split into heads", TOKENS_BY_FEATURES),
    "scores": StepDescription(
        "dot products of queries and keys, one row per query",
        TOKENS_BY_TOKENS,
    ),
    "scaled_scores": StepDescription(
        "the scores divided by √d, so that softmax does not saturate", TOKENS_BY_TOKENS
    ),
    "mask": StepDescription(
        "the keys that each query may see: its own and the earlier ones", TOKENS_BY_TOKENS
    ),
    "masked_scores": StepDescription(
        "the scores with −∞ for later keys, because exp(−∞) is 0", TOKENS_BY_TOKENS
    ),
    "largest": StepDescription(
        "the largest score of each row, subtracted so that exp cannot overflow", (TOKEN, SINGLE)
    ),
    "exponentials": StepDescription(
        "the exponentials of the scores: positive, and at most 1", TOKENS_BY_TOKENS
    ),
    "total": StepDescription("the sum of the exponentials", (TOKEN, SINGLE)),
    "full_weights": StepDescription("softmax over all keys, later ones included", TOKENS_BY_TOKENS),
    "kept_weights": StepDescription(
        "the weights with 0 for later keys: rows add up to less than 1", TOKENS_BY_TOKENS
    ),
    "row_sums": StepDescription("the sum of the remaining weights of each row", (TOKEN, SINGLE)),
    "weights": StepDescription(
        "how each query divides its attention: rows add up to 1",
        TOKENS_BY_TOKENS,
    ),
    "dropped_weights": StepDescription(
        "the weights after dropout, which sets some to 0 in training",
        TOKENS_BY_TOKENS,
    ),
    "weighted_tokens": StepDescription("each token multiplied by its weight", TOKENS_BY_FEATURES),
    "context": StepDescription(
        "the weighted sum of what each token attends to", TOKENS_BY_FEATURES
    ),
    "context_by_head": StepDescription("the context of each head", TOKENS_BY_FEATURES),
    "output": StepDescription(
        "the contexts of all heads, mixed by an output projection", TOKENS_BY_FEATURES
    ),
}

EINSUM_DESCRIPTIONS: dict[str, StepDescription] = DESCRIPTIONS | {
    name: StepDescription(DESCRIPTIONS[name].text, TOKENS_BY_HEADS_BY_FEATURES)
    for name in ("queries_by_head", "keys_by_head", "values_by_head", "context_by_head")
}
