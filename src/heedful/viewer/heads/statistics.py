"""One number for each head: means of what its summary has, and how far apart the heads of two models are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.summaries import Summary
from heedful.viewer.heads.heads import Heads, whole_weights
from heedful.viewer.heads.pooling import sums_of_cells


@dataclass(frozen=True)
class HeadStatistic:
    """A number for each head.

    Attributes:
        name: Its name.
        about: What it means, in a sentence.
        values: The numbers of each layer's heads.
    """

    name: str
    about: str
    values: tuple[tuple[float, ...], ...]


def statistics_of(heads: Heads) -> list[HeadStatistic]:
    """Return all statistics that the summaries of all layers have."""
    regions = dict.fromkeys(name for it in heads.layers.values() for name in it.region_mass)
    one_text = heads.key_labels is None
    measures = {
        **_MEASURES,
        **(_MEASURES_OF_ONE_TEXT if one_text else {}),
        **{
            f"mass on {name}": (
                f"The share of each query's weight that is on the keys of “{name}”, on average.",
                _mass_on_region(name),
            )
            for name in regions
        },
    }
    if one_text:
        measures["mass after an earlier same token"] = (
            "The weight on tokens that follow an earlier occurrence of the query's own token, on average: "
            "induction heads have much of it.",
            _induction(heads.labels),
        )
    found = []
    for name, (about, measure) in measures.items():
        values = [measure(summary) for summary in heads.layers.values()]
        if all(value is not None for value in values):
            numbers = tuple(tuple(value.tolist()) for value in values if value is not None)
            found.append(HeadStatistic(name, about, numbers))
    return found


Measure = Callable[[Summary], Tensor | None]


def _mean_of(name: str) -> Measure:
    def measure(summary: Summary) -> Tensor | None:
        value = getattr(summary, name)
        return None if value is None else value[0].double().mean(dim=-1).cpu()

    return measure


def _mass_on_region(name: str) -> Measure:
    def measure(summary: Summary) -> Tensor | None:
        mass = summary.region_mass.get(name)
        return None if mass is None else mass[0].double().mean(dim=-1).cpu()

    return measure


def _first_key(summary: Summary) -> Tensor | None:
    received = summary.received_mass
    if received is None:
        return None
    received = received[0].double().cpu()
    total = received.sum(dim=-1)
    return received[:, 0] / total.masked_fill(total == 0, 1.0)


def _on_diagonal(back: int) -> Measure:
    """Return the mean weight on the token that stands some places before the query, which exists."""

    def measure(summary: Summary) -> Tensor | None:
        weights = whole_weights(summary)
        if weights is None or weights.shape[1] != weights.shape[2] or weights.shape[1] <= back:
            return None
        return weights.double().diagonal(-back, dim1=1, dim2=2).mean(dim=-1)

    return measure


def _induction(labels: tuple[str, ...]) -> Measure:
    def measure(summary: Summary) -> Tensor | None:
        weights = whole_weights(summary)
        if weights is None or weights.shape[1:] != (len(labels), len(labels)):
            return None
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        tokens = torch.tensor([numbers[label] for label in labels])
        same = tokens.unsqueeze(1) == tokens  # (query, earlier token)
        after = torch.zeros_like(same)
        after[:, 1:] = same.tril(-1)[:, :-1]
        repeated = after.any(dim=-1)
        if not repeated.any():
            return None
        return (weights.double() * after).sum(dim=-1)[:, repeated].mean(dim=-1)

    return measure


_MEASURES: dict[str, tuple[str, Measure]] = {
    "entropy": (
        "The entropy of each query's weights, on average: 0 if one key has all the weight, ln n if n keys share it.",
        _mean_of("entropy"),
    ),
    "largest weight": (
        "The largest weight of each query, on average.",
        _mean_of("largest_weight"),
    ),
    "mean distance": (
        "How far a query's weight is from it, in tokens, on average.",
        _mean_of("mean_distance"),
    ),
    "mass on the first key": (
        "The share of all weight that is on the first key: attention sinks have much of it.",
        _first_key,
    ),
}

_MEASURES_OF_ONE_TEXT: dict[str, tuple[str, Measure]] = {
    "mass on itself": ("The weight of each query on its own token, on average.", _on_diagonal(0)),
    "mass on the previous token": (
        "The weight of each query on the token before its own, on average.",
        _on_diagonal(1),
    ),
}


def distances_between(one: Heads, other: Heads) -> HeadStatistic | None:
    """Return the mean total variation distance between the weights of each head of two models.

    Of pooled maps, it is the distance between the masses of blocks, which is at most that of the weights.
    """
    pairs = list(zip(one.layers.values(), other.layers.values(), strict=True))
    whole = [_distance_of_weights(*pair) for pair in pairs]
    values = [
        _distance_of_maps(*pair) if it is None else it
        for pair, it in zip(pairs, whole, strict=True)
    ]
    if any(it is None for it in values):
        return None
    about = (
        "Half the sum of the absolute differences of a query's weights, on average: from 0 to 1."
    )
    if any(it is None for it in whole):
        about += " It is computed from blocks of weights, so that the true distance may be larger."
    numbers = tuple(tuple(it.tolist()) for it in values if it is not None)
    return HeadStatistic("distance between the two", about, numbers)


def _distance_of_weights(one: Summary, other: Summary) -> Tensor | None:
    first, second = whole_weights(one), whole_weights(other)
    if first is None or second is None:
        return None
    return (first.double() - second.double()).abs().sum(dim=-1).mean(dim=-1) / 2


def _distance_of_maps(one: Summary, other: Summary) -> Tensor | None:
    if one.pooled_mean is None or other.pooled_mean is None or one.cell != other.cell:
        return None
    assert one.cell is not None
    length = one.lse.shape[2], one.keys.size
    masses = [
        sums_of_cells(it[0].double().cpu(), one.cell, length)
        for it in (one.pooled_mean, other.pooled_mean)
    ]
    return (masses[0] - masses[1]).abs().sum(dim=(1, 2)) / (2 * length[0])
