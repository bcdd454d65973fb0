"""The rungs of the ladder: what each is called and what it means, from bare dot products to many heads."""

from collections.abc import Callable
from dataclasses import dataclass

from heedful.errors import ArgumentError
from heedful.tour import rungs
from heedful.tour.inputs import Tokens
from heedful.tour.walks import Climb


@dataclass(frozen=True)
class Rung:
    """One mechanism of the textbook.

    Attributes:
        name: what `--rung` calls it.
        title: its heading.
        meaning: what it adds to the rung below, and why.
        climb: records it on the tokens and compares its routes.
    """

    name: str
    title: str
    meaning: str
    climb: Callable[[Tokens], Climb]


LADDER = (
    Rung(
        "simplified",
        "Attention without weights",
        "Every token asks how alike the others are to it, by dot products of their embeddings. Softmax turns "
        "these scores into shares that add up to 1, and the context is the average of all tokens with these "
        "shares. Nothing is learned yet: the scores compare the tokens just as they come.",
        rungs.simplified_attention,
    ),
    Rung(
        "self-attention-v1",
        "Self-attention with parameters",
        "Three learned matrices give each token three parts to play: a query that looks for something, a key by "
        "which it is found, and a value that it hands over. Dot products of d terms spread as √d, so the scores "
        "are divided by √d; otherwise softmax would give nearly everything to one key and learn nothing.",
        rungs.self_attention_v1,
    ),
    Rung(
        "self-attention-v2",
        "Self-attention with linear layers",
        "The same function with its matrices kept in nn.Linear, which starts them at a scale fit for training "
        "and can add a bias. From here on every rung carries the same weights, so that numbers can be followed "
        "upwards from rung to rung.",
        rungs.self_attention_v2,
    ),
    Rung(
        "causal-weights",
        "Causal weights, by two routes",
        "A token that is to be predicted must not be seen beforehand, so each query keeps only itself and the "
        "past. One route strikes out the future's weights and makes the rows add up to 1 again; the other sets "
        "the future's scores to −∞ before softmax. Both give the same weights, but the second has nothing to "
        "repair.",
        rungs.causal_weights,
    ),
    Rung(
        "dropout",
        "Dropout on the weights",
        "While a model trains, dropout strikes out weights at random, so that no token relies on a single other "
        "one. The survivors grow by 1 / (1 − p), which keeps every weight's average where it was. Here p is a "
        "half: about every second weight goes, and the others double.",
        rungs.dropout,
    ),
    Rung(
        "causal-attention",
        "One causal head",
        "Projections, mask, softmax and dropout come together in one module that takes batches of any length up "
        "to its context. It runs here in evaluation mode, where dropout lets everything pass. The first token "
        "sees itself alone, so its context is its own value.",
        rungs.causal_attention,
    ),
    Rung(
        "wrapper",
        "Several heads, one by one",
        "One head blends all that a token looks for into a single row of weights. Two heads with weights of their "
        "own can attend to different things at once, and their contexts are laid side by side. A list of "
        "single heads, run in turn, is the plainest way to have that.",
        rungs.wrapper,
    ),
    Rung(
        "multi-head",
        "All heads at once",
        "One wide projection makes the queries of all heads, and a view splits it: head and token change places, "
        "and one batched product does what the list of heads did in turn. An output projection then lets the "
        "heads, which were apart until here, mix.",
        rungs.multi_head,
    ),
    Rung(
        "einsum",
        "Heads by named indices",
        "Einsum says the same by naming indices: i for queries, j for keys, h for heads. No transposing is left "
        "to get wrong, and the size of a value is free of that of a key. With the weights carried over it agrees "
        "with both rungs below.",
        rungs.einsum,
    ),
)


def choose(name: str | None) -> tuple[Rung, ...]:
    """The rung of a name; the whole ladder for None.

    Raises:
        ArgumentError: there is no rung of that name.
    """
    if name is None:
        return LADDER
    found = tuple(rung for rung in LADDER if rung.name == name)
    if not found:
        raise ArgumentError(
            "--rung",
            expected=f"one of {', '.join(rung.name for rung in LADDER)}",
            received=repr(name),
            remedy="Leave --rung out to climb them all.",
        )
    return found
