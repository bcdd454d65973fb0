"""The names of the rungs and their titles, which `heedful tour --help` lists without PyTorch."""

TITLES: dict[str, str] = {
    "simplified": "Attention without weights",
    "self-attention-v1": "Self-attention with parameters",
    "self-attention-v2": "Self-attention with linear layers",
    "causal-weights": "Causal weights, by two routes",
    "dropout": "Dropout on the weights",
    "causal-attention": "One causal head",
    "wrapper": "Several heads, one by one",
    "multi-head": "All heads at once",
    "einsum": "Heads by named indices",
}
"""The ladder, from the lowest rung."""

TITLES_OF_A_TEXT: dict[str, str] = {
    "simplified": TITLES["simplified"],
    "own-heads": "The model's own heads",
}
"""The ladder of a text, whose tokens have a model's own heads."""
