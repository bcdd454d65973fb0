"""What each step of the textbook means, one line each, and what its dimensions count."""

from dataclasses import dataclass

TOKEN, FEATURE, HEAD, SINGLE = "token", "feature", "head", "single"


@dataclass(frozen=True)
class Meaning:
    """A step in words.

    Attributes:
        text: one line.
        axes: what its last dimensions count. A value with one dimension has the last of them; one that has
            more dimensions than named here has heads before them.
    """

    text: str
    axes: tuple[str, ...]


TOKENS_BY_TOKENS = (TOKEN, TOKEN)
TOKENS_BY_FEATURES = (TOKEN, FEATURE)
HEADS_AMID = (TOKEN, HEAD, FEATURE)  # where no product needs heads before tokens

MEANINGS = {
    "query": Meaning("the token whose view is taken", TOKENS_BY_FEATURES),
    "queries": Meaning("what each token looks for", TOKENS_BY_FEATURES),
    "keys": Meaning("what each token offers to be found by", TOKENS_BY_FEATURES),
    "values": Meaning("what each token hands over when it is found", TOKENS_BY_FEATURES),
    "queries_by_head": Meaning("the queries, each head's share apart", TOKENS_BY_FEATURES),
    "keys_by_head": Meaning("the keys, each head's share apart", TOKENS_BY_FEATURES),
    "values_by_head": Meaning("the values, each head's share apart", TOKENS_BY_FEATURES),
    "scores": Meaning(
        "how well each query matches each key: dot products, one row a query", TOKENS_BY_TOKENS
    ),
    "scaled_scores": Meaning("the scores over √d, so that softmax does not peak", TOKENS_BY_TOKENS),
    "mask": Meaning("the keys that each query may see: itself and the past", TOKENS_BY_TOKENS),
    "masked_scores": Meaning("the future's scores made −∞, for exp(−∞) is 0", TOKENS_BY_TOKENS),
    "largest": Meaning(
        "the largest score, taken from all so that exp cannot overflow", (TOKEN, SINGLE)
    ),
    "exponentials": Meaning("the scores made positive, 1 at most", TOKENS_BY_TOKENS),
    "total": Meaning("what the exponentials add up to", (TOKEN, SINGLE)),
    "full_weights": Meaning("softmax over all keys, the future among them", TOKENS_BY_TOKENS),
    "kept_weights": Meaning(
        "the future's weights struck out: rows add up to less than 1", TOKENS_BY_TOKENS
    ),
    "row_sums": Meaning("what is left of each row", (TOKEN, SINGLE)),
    "weights": Meaning(
        "how each query shares its attention over the keys: rows add up to 1", TOKENS_BY_TOKENS
    ),
    "dropped_weights": Meaning(
        "the weights after dropout: when training, some are 0 and the rest grow", TOKENS_BY_TOKENS
    ),
    "weighted_tokens": Meaning("each token times its weight", TOKENS_BY_FEATURES),
    "context": Meaning("what each token takes from those it attends to", TOKENS_BY_FEATURES),
    "context_by_head": Meaning("each head's own context", TOKENS_BY_FEATURES),
    "output": Meaning("the heads' contexts, mixed by one more projection", TOKENS_BY_FEATURES),
}

EINSUM_MEANINGS = MEANINGS | {
    name: Meaning(MEANINGS[name].text, HEADS_AMID)
    for name in ("queries_by_head", "keys_by_head", "values_by_head", "context_by_head")
}
