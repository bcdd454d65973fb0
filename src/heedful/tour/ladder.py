"""The ladder: its rungs, from dot products of embeddings to multi-head attention, with their explanations."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from heedful.errors import ArgumentError
from heedful.tour import rungs
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import RungResult
from heedful.tour.titles import TITLES, TITLES_OF_A_TEXT


@dataclass(frozen=True)
class Rung:
    """A rung of the ladder: one mechanism of the textbook.

    Attributes:
        name: The name for `--rung`.
        explanation: What the mechanism adds to the rung below, and why.
        run: Records the mechanism on the tokens and compares its routes.
    """

    name: str
    explanation: str
    run: Callable[[Tokens], RungResult]

    @property
    def title(self) -> str:
        """The heading."""
        return (TITLES | TITLES_OF_A_TEXT)[self.name]


LADDER: tuple[Rung, ...] = (
    Rung(
        "simplified",
        "Each token measures its similarity to every token by the dot product of their embeddings. Softmax turns "
        "these scores into weights that add up to 1, and the context is the weighted average of all tokens. Nothing "
        "is learned yet: the scores compare the embeddings as they are.",
        rungs.simplified_attention,
    ),
    Rung(
        "self-attention-v1",
        "Three learned matrices turn each token into a query, which describes what it looks for; a key, by which it "
        "is found; and a value, which it passes on. The dot product of two vectors with d random entries has a "
        "standard deviation of √d, so the scores are divided by √d. Otherwise softmax would give nearly all weight "
        "to one key, and the gradients would vanish.",
        rungs.self_attention_v1,
    ),
    Rung(
        "self-attention-v2",
        "This is the same function with its matrices in nn.Linear, which initialises them at a scale suitable for "
        "training and can add a bias. From here on, all rungs use the same weights, so that you can follow the "
        "numbers from rung to rung.",
        rungs.self_attention_v2,
    ),
    Rung(
        "causal-weights",
        "A model that predicts the next token must not see it, so each query keeps only its own key and the earlier "
        "ones. One route sets the weights of later keys to 0 and divides each row by its sum. The other sets the "
        "scores of later keys to −∞ before softmax. Both give the same weights, but the second needs no "
        "correction afterwards.",
        rungs.causal_weights,
    ),
    Rung(
        "dropout",
        "During training, dropout sets random weights to 0, so that no token relies on a single other token. It "
        "multiplies the remaining weights by 1 / (1 − p), which preserves the expected value of each weight. Here p "
        "is 0.5: about half of the weights become 0, and the others double.",
        rungs.dropout,
    ),
    Rung(
        "causal-attention",
        "One module combines the projections, the mask, softmax and dropout. It accepts batches of any length up to "
        "its context length. It runs in evaluation mode here, in which dropout does nothing. The first token sees "
        "only itself, so its context is its own value.",
        rungs.causal_attention,
    ),
    Rung(
        "wrapper",
        "One head has a single row of weights for everything that a token looks for. Two heads with their own "
        "parameters can attend to different tokens at the same time, and their contexts are concatenated. The "
        "simplest implementation is a list of single heads that run one after another.",
        rungs.wrapper,
    ),
    Rung(
        "multi-head",
        "One large projection computes the queries of all heads, and a view splits them. After heads and tokens "
        "change places, a single batched product replaces the list of heads. An output projection then mixes the "
        "heads, which are independent up to this point.",
        rungs.multi_head,
    ),
    Rung(
        "einsum",
        "Einsum expresses the same products with named indices: i for queries, j for keys, h for heads. There is no "
        "transpose to get wrong, and values may have a different size than keys. With the same weights, the result "
        "agrees with both rungs below.",
        rungs.einsum,
    ),
)


# Random projections of real token vectors would explain no model, so that a text has the model's own instead.
LADDER_OF_A_TEXT: tuple[Rung, ...] = (
    LADDER[0],
    Rung(
        "own-heads",
        "These are the queries, keys and values of a real model: the projections that its training found, for all "
        "heads of its first layer at once. It is an encoder, so each token sees all others. The weights say which "
        "tokens a head mixes; the context of all heads, projected, is what the layer adds to each token.",
        rungs.own_heads,
    ),
)


def choose_rungs(name: str | None, ladder: tuple[Rung, ...] = LADDER) -> tuple[Rung, ...]:
    """Return the rung of a name or a number, or the whole ladder for None.

    Raises:
        ArgumentError: There is no such rung. The message names those that may be meant.

    >>> [rung.title for rung in choose_rungs("dropout") + choose_rungs("1")]
    ['Dropout on the weights', 'Attention without weights']
    """
    if name is None:
        return ladder
    for number, rung in enumerate(ladder, 1):
        if name.lower() in (rung.name, str(number)):
            return (rung,)
    names = [rung.name for rung in ladder]
    meant = [it for it in names if name.lower() in it] or difflib.get_close_matches(
        name.lower(), names, n=1
    )
    raise ArgumentError(
        "--rung",
        expected=f"one of {', '.join(names)}, or a number from 1 to {len(names)}",
        received=repr(name),
        remedy=f"Did you mean {' or '.join(meant)}?" if meant else "Omit --rung to run all rungs.",
    )
