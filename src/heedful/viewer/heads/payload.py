"""The data of a view of heads: small maps for the overview, and each head's numbers, compressed by themselves.

A page has room for so many bytes. What does not fit is rounded, and then reduced to larger blocks; the page says so.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.summaries import Summary
from heedful.summaries.request import Cell
from heedful.viewer.data import Arrays, label_text
from heedful.viewer.heads.heads import POOL, TOP, Heads, whole_weights
from heedful.viewer.heads.pooling import color_limits, pooled
from heedful.viewer.heads.statistics import HeadStatistic, distances_between, statistics_of

ROOM = 9_800_000  # bytes of all heads, compressed; base64 makes a third more of them
SHARE_OF_MAPS = 0.72
SHARE_OF_TOKENS = 0.7  # of what the maps leave
SIDE_OF_OVERVIEW = 48
HOPELESS = 100  # times the room, which no compression saves
SAMPLE = 6  # heads that are compressed to foresee the size of all


def heads_as_json(
    models: Sequence[Heads], arrays: Arrays, *, tiles: bool, share: float = 1.0
) -> dict[str, Any]:
    """Return one model's heads, or two models' that are compared, as the script reads them.

    Args:
        models: The heads.
        arrays: Receives the numbers.
        tiles: Whether the server of the page answers requests for tiles.
        share: The share of the page's room that these heads have.
    """
    heads = [
        Head(layer, h)
        for it in models
        for layer in it.layers.values()
        for h in range(layer.lse.shape[1])
    ]
    room = share * ROOM / len(heads)
    of_map, used = _first_that_fits(_forms_of_map(heads), heads, SHARE_OF_MAPS * room)
    room -= used
    of_tokens, used = _first_that_fits(_forms_of_tokens(heads), heads, SHARE_OF_TOKENS * room)
    of_top, _ = _first_that_fits(_forms_of_top(heads, of_map), heads, room - used)
    forms = (of_map, of_tokens, of_top)
    distances = distances_between(*models) if len(models) == 2 else None
    return {
        "kind": "attention",
        "labels": [label_text(label) for label in models[0].labels],
        "keyLabels": None
        if models[0].key_labels is None
        else [label_text(label) for label in models[0].key_labels],
        "models": [_model_as_json(it, forms, arrays) for it in models],
        "distances": None if distances is None else _statistic_as_json(distances),
        "notes": [note for form in forms for note in form.notes],
        "tiles": "tile" if tiles else None,
    }


@dataclass(frozen=True, eq=False)
class Head:
    """One head of a layer."""

    summary: Summary
    place: int

    @property
    def length(self) -> tuple[int, int]:
        return self.summary.lse.shape[2], self.summary.keys.size

    def of(self, value: Tensor) -> Tensor:
        """Return this head's part of a statistic (1, Hq, …)."""
        return value[0, self.place].detach().cpu()


Packed = tuple[Tensor, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Form:
    """A way to store something of a head.

    Attributes:
        pack: Returns arrays by name, each with what is to be said about it.
        notes: What the page says about it.
    """

    pack: Callable[[Head], dict[str, Packed]]
    notes: tuple[str, ...] = ()


def _first_that_fits(forms: Iterable[Form], heads: list[Head], room: float) -> tuple[Form, float]:
    """Return the first form that takes at most so many bytes of a head, on average of a sample, or else the last."""
    sample = heads[:: max(1, len(heads) // SAMPLE)]
    last, used = Form(lambda head: {}), 0.0
    for last in forms:
        raw = sum(array.nbytes for array, _ in last.pack(sample[0]).values())
        if raw > HOPELESS * room:
            continue
        used = sum(len(_compressed(last.pack(head))[0]) for head in sample) / len(sample)
        if used <= room:
            break
    return last, used


def exact(value: Tensor) -> Packed:
    return value.float(), {}


def rounded(value: Tensor, bits: int) -> Packed:
    """Round numbers ≥ 0 to whole ones: 16 bits in proportion, 8 bits in proportion to the square root."""
    largest = value.max().item() or 1.0
    share = (value.float() / largest).clamp(0, 1)
    if bits == 16:
        return (share * 65535).round().to(torch.uint16), {"scale": largest / 65535}
    return (share.sqrt() * 255).round().to(torch.uint8), {
        "scale": largest / 255**2,
        "squared": True,
    }


ROUNDINGS: dict[int, tuple[Callable[[Tensor], Packed], str]] = {
    32: (exact, ""),
    16: (lambda value: rounded(value, 16), "to 1/65535 of the head's largest"),
    8: (lambda value: rounded(value, 8), "to 8 bits, which is up to 0.4 % of the head's largest"),
}


def _forms_of_map(heads: list[Head]) -> Iterable[Form]:
    if all(whole_weights(head.summary) is not None for head in heads):
        for round_off, how in ROUNDINGS.values():
            notes = (f"Weights are rounded {how}.",) if how else ()
            yield Form(lambda head, it=round_off: {"weights": it(_weights(head))}, notes)
    elif any(whole_weights(it.summary) is None and it.summary.pooled_mean is None for it in heads):
        yield Form(lambda head: {})
        return
    for factor in (1, 2, 3, 4, 6, 8, 16):
        side = -(-POOL // factor)
        rows, columns = (max(numbers) for numbers in zip(*(it.length for it in heads), strict=True))
        block = f"{-(-rows // side)} × {-(-columns // side)}"
        yield Form(
            lambda head, it=side: _maps(head, it),
            (
                f"Maps show blocks of up to about {block} weights: their mean, rounded to 8 bits "
                "(up to 0.4 % of the map's largest), and their maximum, likewise.",
            ),
        )


def _weights(head: Head) -> Tensor:
    weights = whole_weights(head.summary)
    assert weights is not None
    return weights[head.place]


def blocks_of(head: Head, side: int) -> tuple[Tensor, Tensor, Cell] | None:
    """Return mean and maximum of a head's blocks, at most `side` in each direction; None if it has no map."""
    weights = whole_weights(head.summary)
    if weights is not None:
        it = weights[head.place]
        return pooled(it, it, Cell(1, 1), head.length, side)
    if head.summary.pooled_mean is None:
        return None
    assert head.summary.pooled_max is not None
    assert head.summary.cell is not None
    maps = head.of(head.summary.pooled_mean), head.of(head.summary.pooled_max)
    return pooled(*maps, head.summary.cell, head.length, side)


def _maps(head: Head, side: int) -> dict[str, Packed]:
    found = blocks_of(head, side)
    assert found is not None
    mean, largest, cell = found
    levels, about = rounded(mean, 8)
    return {"mean": (levels, {**about, "cell": list(cell)}), "largest": rounded(largest, 8)}


OF_QUERIES = ("entropy", "largest_weight", "mean_distance")
ESSENTIAL = ("entropy", "received_mass")


def _forms_of_tokens(heads: list[Head]) -> Iterable[Form]:
    names = [it for it in (*OF_QUERIES, "received_mass") if all(_has(head, it) for head in heads)]
    essential = [it for it in names if it in ESSENTIAL]
    for bits, (_, how) in ROUNDINGS.items():
        notes = (f"Numbers on the text are rounded {how}.",) if how and names else ()
        yield Form(lambda head, it=bits: _of_tokens(head, names, it, 1), notes)
    block = 1
    while block <= 1024:
        notes = [
            "Numbers on the text are rounded to 8 bits, which is up to 0.4 % of the head's largest."
        ]
        if block > 1:
            notes.append(f"Neighboring tokens, {block} at a time, share the mean of their numbers.")
        yield Form(lambda head, it=block: _of_tokens(head, essential, 8, it), tuple(notes))
        block *= 2


def _has(head: Head, name: str) -> bool:
    return getattr(head.summary, name) is not None


def _of_tokens(head: Head, names: list[str], bits: int, block: int) -> dict[str, Packed]:
    packed = {}
    for name in names:
        value = head.of(getattr(head.summary, name)).double()
        if block > 1:
            counts = torch.ones_like(value)
            sums = [
                torch.nn.functional.pad(it, (0, -len(it) % block)).view(-1, block).sum(dim=1)
                for it in (value, counts)
            ]
            value = sums[0] / sums[1]
        array, about = ROUNDINGS[bits][0](value)
        packed[name] = array, {**about, "block": block}
    return packed


def _forms_of_top(heads: list[Head], form_of_map: Form) -> Iterable[Form]:
    known = all(
        head.summary.top_keys is not None or whole_weights(head.summary) is not None
        for head in heads
    )
    exact_weights = any(
        array.dtype == torch.float32 for array, _ in form_of_map.pack(heads[0]).values()
    )
    k = TOP if known and not exact_weights else 0
    while k:
        yield Form(
            lambda head, it=k: _top(head, it),
            (f"The {k} largest weights of each query are exact.",),
        )
        k //= 2
    yield Form(lambda head: {})


def _top(head: Head, k: int) -> dict[str, Packed]:
    summary = head.summary
    if summary.top_keys is not None:
        assert summary.top_weights is not None
        weights, keys = head.of(summary.top_weights)[:, :k], head.of(summary.top_keys)[:, :k]
    else:
        weights, keys = _weights(head).sort(dim=-1, descending=True, stable=True)
        keys = keys.masked_fill(weights <= 0, -1)[:, :k]
        weights = weights[:, :k]
    return {"top_weights": exact(weights), "top_keys": (keys.int(), {})}


def _compressed(packed: dict[str, Packed]) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of a head, and where each array is in them once they are inflated."""
    arrays, described = Arrays(), {}
    for name, (array, about) in packed.items():
        where = arrays.add(array)
        described[name] = {"start": where.pop("offset"), **where, **about}
    return zlib.compress(arrays.content(), 6), described


def _model_as_json(heads: Heads, forms: tuple[Form, ...], arrays: Arrays) -> dict[str, Any]:
    places = heads.places or range(len(heads.layers))
    layers = [
        {"place": place, **_layer_as_json(name, short, layer, forms, arrays)}
        for place, (name, layer), short in zip(
            places, heads.layers.items(), heads.short_names, strict=True
        )
    ]
    statistics = [_statistic_as_json(it) for it in statistics_of(heads)]
    return {"title": label_text(heads.title), "layers": layers, "statistics": statistics}


def _layer_as_json(
    name: str, short: str, summary: Summary, forms: tuple[Form, ...], arrays: Arrays
) -> dict[str, Any]:
    heads = [Head(summary, h) for h in range(summary.lse.shape[1])]
    return {
        "name": label_text(name),
        "short": label_text(short),
        "queries": heads[0].length[0],
        "keys": heads[0].length[1],
        "overview": arrays.add(torch.stack(overviews))
        if (overviews := _overviews(heads))
        else None,
        "heads": [_head_as_json(head, forms, arrays) for head in heads],
    }


def _overviews(heads: list[Head]) -> list[Tensor]:
    """Return a small map of each head, whose entries are levels of color from 0 to 255."""
    maps = []
    for head in heads:
        found = blocks_of(head, SIDE_OF_OVERVIEW)
        if found is None:
            return []
        mean, _, cell = found
        limit = color_limits(mean, single=cell == (1, 1))
        maps.append(((mean / limit).clamp(0, 1).sqrt() * 255).round().to(torch.uint8))
    return maps


def _head_as_json(head: Head, forms: tuple[Form, ...], arrays: Arrays) -> dict[str, Any]:
    packed = {name: it for form in forms for name, it in form.pack(head).items()}
    compressed, described = _compressed(packed)
    where = arrays.add_bytes(compressed)
    return {"at": where, "bytes": len(compressed), "arrays": described}


def _statistic_as_json(statistic: HeadStatistic) -> dict[str, Any]:
    return {
        "name": label_text(statistic.name),
        "about": label_text(statistic.about),
        "values": [
            [number if number == number else None for number in layer] for layer in statistic.values
        ],
    }
