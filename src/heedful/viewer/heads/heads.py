"""The heads of a model as the viewer takes them: the summaries of its layers, and the texts of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.summaries import Summary

WHOLE_UP_TO = 256  # tokens
POOL = 512
TOP = 8


@dataclass(frozen=True, eq=False)
class Heads:
    """The attention of some layers for one sequence.

    Attributes:
        title: What they are of.
        layers: The summary of each layer, by its name.
        labels: The texts of the tokens; of the queries' tokens, if the keys are another text's.
        key_labels: The texts of the keys' tokens in cross-attention; None if queries and keys are of one text.
        places: The place of each layer among all attentions that ran; None if these are all.
    """

    title: str
    layers: Mapping[str, Summary]
    labels: tuple[str, ...]
    key_labels: tuple[str, ...] | None = None
    places: tuple[int, ...] | None = None

    @property
    def sizes(self) -> list[tuple[int, int, int]]:
        """The heads, queries and keys of each layer."""
        return [(it.lse.shape[1], it.lse.shape[2], it.keys.size) for it in self.layers.values()]

    @property
    def short_names(self) -> list[str]:
        """For each layer, the parts of its name that differ: "3" for "model.layers.3.self_attn"."""
        parts = [name.split(".") for name in self.layers]
        differs = [len(set(column)) > 1 for column in zip_longest(*parts)]
        short = [".".join(p for p, it in zip(name, differs, strict=False) if it) for name in parts]
        return [it or str(i) for i, it in enumerate(short)]


def statistics_of_page(tokens: int) -> dict[str, Any]:
    """Return what `attention_of` should compute for a page: all weights of a short text, else a pooled map.

    Args:
        tokens: The number of tokens; of the longer text of an encoder-decoder.

    Examples:
        >>> from heedful.viewer import statistics_of_page
        >>> statistics_of_page(16384)
        {'top_k': 8, 'pool': 512}
    """
    if tokens <= WHOLE_UP_TO:
        return {"top_k": min(TOP, tokens), "rows": slice(None)}
    return {"top_k": TOP, "pool": POOL}


def heads_of(
    layers: Mapping[str, Summary] | Summary, labels: Sequence[str] | None, title: str
) -> Heads:
    """Return the heads of a page, after a check that it can show them."""
    if isinstance(layers, Summary):
        layers = {"": layers}
    check_layers(layers)
    lengths = {length for it in layers.values() for length in (it.lse.shape[2], it.keys.size)}
    if labels is None:
        labels = [f"t{i}" for i in range(max(lengths))]
    elif len(labels) not in lengths:
        raise ArgumentError(
            "labels",
            expected=f"a text for each of {' or '.join(map(str, sorted(lengths)))} tokens",
            received=f"{len(labels)} texts",
            remedy="Pass the text of every token, also of special ones, or leave the labels out.",
        )
    return Heads(title, layers, tuple(map(str, labels)))


def check_layers(layers: Mapping[str, Summary]) -> None:
    """Raise `ArgumentError` unless these are summaries of one sequence's attention."""
    wrong = next((name for name, it in layers.items() if not isinstance(it, Summary)), None)
    if wrong is not None or not layers:
        raise ArgumentError(
            "subject",
            expected="summaries of attention by the names of their layers",
            received="none" if wrong is None else type(layers[wrong]).__name__,
            remedy="Pass what attention_of() or summarize() returns.",
        )
    for name, summary in layers.items():
        B = summary.lse.shape[0]
        if B != 1 or not summary.lse.numel() or not summary.keys.size:
            raise ArgumentError(
                "subject",
                expected="the attention of one sequence with at least one token",
                received=f"{B} sequences of {summary.lse.shape[2]} tokens in {name or 'the summary'}",
                remedy="Give the model one sequence at a time.",
            )
        if summary.queries.size != summary.queries.total or summary.keys.size != summary.keys.total:
            raise ArgumentError(
                "subject",
                expected="summaries of all queries and keys",
                received=f"a part of them in {name or 'the summary'}",
                remedy="Summary.merge() joins the parts.",
            )


def check_same_heads(one: Heads, other: Heads) -> None:
    """Raise `ArgumentError` unless two models have the same layers, heads and tokens."""
    if one.sizes != other.sizes:
        raise ArgumentError(
            "beside",
            expected=f"as many layers, heads and tokens: {_described(one)}",
            received=_described(other),
            remedy="Compare two models of one shape on the same tokens; `layers` and `heads` of attention_of() choose.",
        )


def _described(heads: Heads) -> str:
    most, queries, keys = (max(numbers) for numbers in zip(*heads.sizes, strict=True))
    return f"{len(heads.sizes)} layers of up to {most} heads, {queries} queries and {keys} keys"


def whole_weights(summary: Summary) -> Tensor | None:
    """Return the weights (Hq, Tq, Tk) of all queries on all keys; None if the summary has not all of them."""
    weights = summary.weights
    if weights is None or weights.shape[2:] != (summary.lse.shape[2], summary.keys.size):
        return None
    largest = summary.largest_weight
    if largest is not None and not largest.allclose(weights.amax(dim=-1), rtol=1e-3, atol=1e-5):
        return None  # the rows are in another order
    return weights[0].detach().cpu()
