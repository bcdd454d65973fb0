"""The summary of attention weights, and how summaries of parts are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from heedful import drawing
from heedful.errors import ArgumentError
from heedful.summaries.request import Cell, Part
from heedful.tables import table


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """Statistics of the attention weights of some queries and keys, before dropout. `summarize` returns it.

    The weights are exp(scores − lse). All numbers are float32 or better. Statistics that were not requested are None.

    Attributes:
        lse: (B, Hq, Tq), the natural logarithm of the softmax's normalizer; −∞ where a query sees no key.
        mass: (B, Hq, Tq), the sum of the weights: 1, less what sink logits take; 0 where a query sees no key.
        entropy: (B, Hq, Tq), −Σ w ln w over the keys: 0 if one key has all the weight, ln n if n keys share it.
        largest_weight: (B, Hq, Tq).
        mean_distance: (B, Hq, Tq), Σ w · |i − j| / Σ w, where query i stands as the mask's alignment says, and at key i
            without one; 0 where a query sees no key.
        received_mass: (B, Hq, Tk), the sum of each key's weights over the queries of one query head. For a key head
            that is shared by several query heads, ``received_mass.unflatten(1, (Hkv, -1)).sum(2)`` adds them up.
        top_weights: (B, Hq, Tq, k), the largest weights in descending order; 0 if the query sees fewer keys.
        top_keys: (B, Hq, Tq, k), their keys, int64; −1 likewise. Of equal scores, the earlier key comes first.
        region_mass: for each region (B, Hq, Tq), the sum of the weights in it.
        pooled_mean: (B, Hq, rows, columns), the mean weight in each cell of the map; hidden keys count as 0.
        pooled_max: (B, Hq, rows, columns), the largest weight in each cell.
        cell: how many queries and keys a cell has. The last row and column may have fewer.
        weights: (B, Hq, R, K), the weights of the requested rows, or of a tile of them.
        queries: the place of the queries among all queries.
        keys: the place of the keys among all keys.
        lse_given: whether the logarithms were given, instead of computed from these keys.

    Examples:
        >>> from heedful import Causal, summarize
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> summary = summarize(x, x, Causal())
        >>> summary
        Summary(1 x 1 heads, 4 queries, 4 keys: entropy 0.795, largest weight 0.521, mean distance 0.75, received mass)
        >>> summary.received_mass
        tensor([[[2.0833, 1.0833, 0.5833, 0.2500]]])
    """

    lse: Float[Tensor, "B Hq Tq"]
    mass: Float[Tensor, "B Hq Tq"] | None
    entropy: Float[Tensor, "B Hq Tq"] | None
    largest_weight: Float[Tensor, "B Hq Tq"] | None
    mean_distance: Float[Tensor, "B Hq Tq"] | None
    received_mass: Float[Tensor, "B Hq Tk"] | None
    top_weights: Float[Tensor, "B Hq Tq k"] | None
    top_keys: Int64[Tensor, "B Hq Tq k"] | None
    region_mass: dict[str, Tensor] = field(default_factory=dict)
    pooled_mean: Float[Tensor, "B Hq rows columns"] | None = None
    pooled_max: Float[Tensor, "B Hq rows columns"] | None = None
    cell: Cell | None = None
    weights: Float[Tensor, "B Hq R K"] | None = None
    queries: Part = field(kw_only=True)
    keys: Part = field(kw_only=True)
    lse_given: bool = False

    @property
    def means(self) -> dict[str, Tensor]:
        """The means of the statistics of queries for each query head, (Hq,), by name; of regions "mass of …"."""
        names = ("entropy", "largest_weight", "mean_distance")
        found = {name.replace("_", " "): getattr(self, name) for name in names}
        found |= {f"mass of {name!r}": mass for name, mass in self.region_mass.items()}
        return {name: value.mean(dim=(0, 2)) for name, value in found.items() if value is not None}

    def _repr_html_(self) -> str:
        """Return the means of each head, and its map or weights if they were requested, for a notebook."""
        B, Hq, Tq = self.lse.shape
        rows = [
            (str(head), *(f"{mean[head]:.3g}" for mean in self.means.values()))
            for head in range(Hq)
        ]
        caption = f"{B} × {Hq} heads, {Tq} queries, {self.keys.size} keys; means over the queries"
        drawn = table(rows, header=("head", *self.means), caption=caption)
        for name in ("weights", "pooled_mean"):
            value = getattr(self, name)
            if value is not None:
                drawn += f"<style>{drawing.STYLE}</style>" + drawing.heat_map(
                    value[0], caption=f"{name.replace('_', ' ')} of the first sequence", pick="head"
                )
        return drawn

    def __repr__(self) -> str:
        B, Hq, Tq = self.lse.shape
        means = [
            f"{name.replace('_', ' ')} {getattr(self, name).mean():.3g}"
            for name in ("entropy", "largest_weight", "mean_distance")
            if getattr(self, name) is not None
        ]
        if self.received_mass is not None:
            means.append("received mass")
        if self.top_keys is not None:
            means.append(f"top {self.top_keys.shape[-1]}")
        means += [f"mass of {name!r} {mass.mean():.3g}" for name, mass in self.region_mass.items()]
        if self.pooled_mean is not None:
            means.append("map of {} x {} cells".format(*self.pooled_mean.shape[2:]))
        if self.weights is not None:
            means.append("weights {} x {}".format(*self.weights.shape[2:]))
        sizes = f"{B} x {Hq} heads, {Tq} queries, {self.keys.size} keys"
        return f"Summary({sizes}{': ' if means else ''}{', '.join(means)})"

    def merge(self, *others: Summary) -> Summary:
        """Merge summaries of parts of the queries or keys, which `summarize(…, queries=…, keys=…)` returned.

        The parts of the keys are merged for each part of the queries, and then the parts of the queries. They may come
        from several processes (``torch.distributed.all_gather_object``), in any order, and must be next to each other.

        What belongs to each query can always be merged: log-sum-exp, mass, entropy, largest weight, mean distance, top
        keys, and the mass of regions. The received mass and the map can be merged over parts of the queries, and over
        parts of the keys if each part got the log-sum-exp of all keys (``lse=…``): they are sums over many queries,
        each of which would have to be corrected by its own factor. Requested rows of weights are left out. Of parts of
        the keys without a given log-sum-exp, only one may have sink logits. Parts of batches or heads have nothing to
        merge: concatenate their tensors.

        Args:
            *others: the summaries of the other parts, with the same statistics.

        Returns:
            The summary of all parts.

        Raises:
            ArgumentError: the parts overlap, have gaps or have different statistics, or these cannot be merged.

        Examples:
            >>> from heedful import summarize
            >>> query, key = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 6, 8)
            >>> first, second = (
            ...     summarize(query, key[:, :, i : i + 3], keys=(i, 6), for_each_key=False) for i in (0, 3)
            ... )
            >>> torch.allclose(first.merge(second).entropy, summarize(query, key).entropy, atol=1e-6)
            True
        """
        parts = (self, *others)
        _check_same_statistics(parts)
        merged = [
            _merge_keys(sorted((p for p in parts if p.queries == place), key=lambda p: p.keys))
            for place in sorted({part.queries for part in parts})
        ]
        return _merge_queries(merged)


_PER_QUERY = ("mass", "entropy", "largest_weight", "mean_distance", "top_weights", "top_keys")
_OVER_QUERIES = ("received_mass", "pooled_mean", "pooled_max")


def _check_same_statistics(parts: tuple[Summary, ...]) -> None:
    kinds = {
        (
            tuple(
                name for name in (*_PER_QUERY, *_OVER_QUERIES) if getattr(part, name) is not None
            ),
            tuple(part.region_mass),
            part.cell,
            tuple(part.lse.shape[:2]),
            (part.queries.total, part.keys.total),
            0 if part.top_keys is None else part.top_keys.shape[-1],
            part.lse_given,
        )
        for part in parts
    }
    if len(kinds) > 1:
        raise _cannot_merge("the same statistics, heads and totals in all", "different ones")


def _cannot_merge(expected: str, received: str, remedy: str = "") -> ArgumentError:
    remedy = (
        remedy or "Request the same of every part, and say where it stands by queries=… and keys=…."
    )
    return ArgumentError("parts", expected=expected, received=received, remedy=remedy)


def _joined(parts: Iterable[Part], name: str) -> Part:
    """Return the part that neighbours make up, in ascending order."""
    parts = list(parts)
    if any(one.last != other.first for one, other in pairwise(parts)):
        places = ", ".join(f"{part.first} … {part.last}" for part in parts)
        raise _cannot_merge(f"{name} that are next to each other", places)
    return Part(parts[0].first, sum(part.size for part in parts), parts[0].total)


def _merge_keys(parts: list[Summary]) -> Summary:
    """Merge the summaries of the same queries on neighbouring keys."""
    first = parts[0]
    if len(parts) == 1:
        return replace(first, weights=None)
    keys = _joined((part.keys for part in parts), "keys")
    lse, shares = _common_normalizer(parts)

    def total(name: str) -> Tensor | None:
        """Add up a statistic that is a sum of weights."""
        return _reduce(parts, name, lambda tensors: _sum(tensors, shares))

    mass, entropy, distance = total("mass"), total("entropy"), None
    if mass is not None and entropy is not None:
        # −Σ (a w) ln (a w) = −a Σ w ln w − a ln a Σ w
        surprise = [
            torch.special.entr(a) * cast(Tensor, p.mass) for a, p in zip(shares, parts, strict=True)
        ]
        entropy = entropy + torch.stack(surprise).sum(dim=0)
        steps = [cast(Tensor, p.mean_distance) * cast(Tensor, p.mass) for p in parts]
        distance = _sum(steps, shares) / mass.masked_fill(mass == 0, 1.0)
    top_weights, top_keys = _merge_top(parts, shares)
    return Summary(
        lse=lse,
        mass=mass,
        entropy=entropy,
        largest_weight=_reduce(parts, "largest_weight", lambda tensors: _highest(tensors, shares)),
        mean_distance=distance,
        received_mass=_reduce(parts, "received_mass", lambda tensors: torch.cat(tensors, dim=2)),
        top_weights=top_weights,
        top_keys=top_keys,
        region_mass={
            name: _sum([part.region_mass[name] for part in parts], shares)
            for name in first.region_mass
        },
        pooled_mean=_reduce(parts, "pooled_mean", lambda tensors: torch.stack(tensors).sum(dim=0)),
        pooled_max=_reduce(parts, "pooled_max", lambda tensors: torch.stack(tensors).amax(dim=0)),
        cell=first.cell,
        queries=first.queries,
        keys=keys,
        lse_given=first.lse_given,
    )


def _common_normalizer(parts: list[Summary]) -> tuple[Tensor, list[Tensor]]:
    """Return the log-sum-exp over the keys of all parts, and the factor of each part's weights."""
    first = parts[0]
    if first.lse_given:
        if any(not torch.equal(part.lse, first.lse) for part in parts):
            raise _cannot_merge("the same lse in all parts of the keys", "different ones")
        return first.lse, [torch.ones_like(first.lse) for _ in parts]
    if any(getattr(first, name) is not None for name in _OVER_QUERIES):
        raise _cannot_merge(
            "parts of the keys with the log-sum-exp of all keys, for the received mass and the map",
            "parts with their own",
            "Pass lse=… to summarize(), which attention(…, return_lse=True) over all keys returns; "
            "or request for_each_key=False and no map.",
        )
    logs = torch.stack([part.lse for part in parts])
    lse = torch.logsumexp(logs, dim=0)
    known = lse.masked_fill(lse == -torch.inf, 0.0)
    return lse, list(torch.exp(logs - known))


def _sum(tensors: list[Tensor], shares: list[Tensor]) -> Tensor:
    """Return the sum of the tensors, each multiplied by its share."""
    return torch.stack([a * x for a, x in zip(shares, tensors, strict=True)]).sum(dim=0)


def _highest(tensors: list[Tensor], shares: list[Tensor]) -> Tensor:
    return torch.stack([a * x for a, x in zip(shares, tensors, strict=True)]).amax(dim=0)


def _reduce(
    parts: list[Summary], name: str, reduce: Callable[[list[Tensor]], Tensor]
) -> Tensor | None:
    """Reduce a statistic of all parts to one; None if they do not have it."""
    if getattr(parts[0], name) is None:
        return None
    return reduce([getattr(part, name) for part in parts])


def _merge_top(parts: list[Summary], shares: list[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return the largest of the parts' top weights, and their keys. Of equal ones, the earlier key comes first."""
    if parts[0].top_keys is None:
        return None, None
    keys = torch.cat([cast(Tensor, part.top_keys) for part in parts], dim=-1)
    weights = torch.cat(
        [a.unsqueeze(-1) * cast(Tensor, p.top_weights) for a, p in zip(shares, parts, strict=True)],
        dim=-1,
    )
    order = weights.masked_fill(keys < 0, -1.0).sort(dim=-1, descending=True, stable=True).indices
    order = order[..., : parts[0].top_keys.shape[-1]]
    return weights.gather(-1, order), keys.gather(-1, order)


def _merge_queries(parts: list[Summary]) -> Summary:
    """Merge the summaries of neighbouring queries on the same keys."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(part.keys != first.keys for part in parts):
        raise _cannot_merge("the same keys for every part of the queries", "different ones")
    queries = _joined((part.queries for part in parts), "queries")

    def side_by_side(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors, dim=2)

    return replace(
        first,
        lse=side_by_side([part.lse for part in parts]),
        **{name: _reduce(parts, name, side_by_side) for name in _PER_QUERY},
        region_mass={
            name: side_by_side([part.region_mass[name] for part in parts])
            for name in first.region_mass
        },
        received_mass=_reduce(parts, "received_mass", lambda x: torch.stack(x).sum(dim=0)),
        pooled_mean=_reduce(parts, "pooled_mean", lambda x: torch.stack(x).sum(dim=0)),
        pooled_max=_reduce(parts, "pooled_max", lambda x: torch.stack(x).amax(dim=0)),
        queries=queries,
    )
