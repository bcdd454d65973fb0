"""Which values of a rank are parts of values of the run on one, or partial results of its attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from heedful.conformance.ranks.layout import ORDERS, Layout, places
from heedful.conformance.ranks.run import Value

SCORE_READERS = frozenset(
    ("softmax", "log_softmax", "logsumexp", "amax", "max", "exp", "scaled_dot_product_attention")
)
SCORE_ROLES = frozenset(("scores", "scaled_scores", "masked_scores"))
HUGE = 1e8  # numbers above are fills of masks
MAX_SUBSETS = 32  # of the keys of ranks, whose partial results are known
MAX_CHOICES = 400  # of parts along all axes of one value

Axis = slice | Tensor


def agree(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Check whether two tensors of one shape are equal but for rounding, relative to the largest entry."""
    if a.dtype != b.dtype and not (a.is_floating_point() and b.is_floating_point()):
        return False
    return not differing(a, b, tolerance).any()


def differing(a: Tensor, b: Tensor, tolerance: float) -> Tensor:
    """Return where two tensors of one shape differ by more than rounding."""
    if not a.is_floating_point():
        return a != b
    a, b = _with_infinite_fills(a.double()), _with_infinite_fills(b.double())
    largest = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 1.0
    return ~torch.isclose(
        a, b, rtol=tolerance, atol=tolerance * max(largest, 1e-30), equal_nan=True
    )


class KnownValues:
    """What is right on a rank: parts of the values of the run on one rank, and partial results of its attention.

    Args:
        values: The values of the run on one rank.
        layout: How tokens are dealt.
        tokens: The number of all tokens.
        ranks: The number of ranks.
        tolerance: The largest difference that rounding may cause.
    """

    def __init__(
        self, values: Sequence[Value], layout: Layout, tokens: int, ranks: int, tolerance: float
    ) -> None:
        self._all: list[Value] = list(values)
        self._tensors: list[Tensor] = [
            it.tensor for it in values if it.tensor is not None and not is_constant(it.tensor)
        ]
        self._layout: Layout = layout
        self._tokens, self._ranks, self._tolerance = tokens, ranks, tolerance

    def hold(self, local: Tensor, rank: int) -> bool:
        """Check whether a rank's value is a part of a known one, or a partial result over the keys of some ranks."""
        return self._is_part(local) or self._is_partial_result(local, rank)

    def hold_sum(self, locals_: Sequence[Tensor]) -> bool:
        """Check whether the values of all ranks, of one shape, sum up to a part of a known one."""
        first, *others = locals_
        if not first.is_floating_point() or all(agree(it, first, self._tolerance) for it in others):
            return False  # equal values are no shares
        return self._is_part(torch.stack(list(locals_)).sum(0))

    def _is_part(self, local: Tensor) -> bool:
        return any(self._part_of(whole, local) for whole in self._tensors)

    def _part_of(self, whole: Tensor, local: Tensor) -> bool:
        if whole.dim() != local.dim() or whole.is_floating_point() != local.is_floating_point():
            return False
        if not self._may_contain(whole, local):
            return False
        choices = [self._cuts(*sizes) for sizes in zip(local.shape, whole.shape, strict=True)]
        if math.prod(map(len, choices)) > MAX_CHOICES:
            return False
        for cuts in itertools.product(*choices):
            taken = whole
            for axis, cut in enumerate(cuts):
                taken = taken[(slice(None),) * axis + (cut,)]
            if agree(local, taken, self._tolerance):
                return True
        return False

    def _may_contain(self, whole: Tensor, local: Tensor) -> bool:
        """Check whether the first finite entry of a value occurs in another one, before all parts are compared."""
        finite = local[local.isfinite()]
        if not finite.numel():
            return True
        entry = finite[0]
        if not whole.is_floating_point():
            return bool((whole == entry).any())
        scale = whole[whole.isfinite()].abs().max() if whole.isfinite().any() else 1.0
        return bool(((whole - entry).abs() <= 2 * self._tolerance * (scale + entry.abs())).any())

    def _cuts(self, own: int, full: int) -> list[Axis]:
        """Return the parts of an axis that have a size."""
        if own == full:
            everything: list[Axis] = [slice(None)]
            if full == self._tokens and self._ranks > 1:
                everything += [torch.cat(it) for it in self._orders.values()]
            return everything
        if not own or full % own or full // own > 2 * self._ranks:
            return []
        cuts: list[Axis] = [slice(start, start + own) for start in range(0, full, own)]
        if full == self._tokens and own * self._ranks == full:
            cuts += [it for order in self._orders.values() for it in order]
        return cuts

    @cached_property
    def _orders(self) -> dict[str, list[Tensor]]:
        """The tokens of each rank, in the orders that are no runs of tokens."""
        return {
            order: [places(order, self._tokens, rank, self._ranks) for rank in range(self._ranks)]
            for order in ORDERS[1:]
            if self._tokens % (2 * self._ranks) == 0
        }

    def _is_partial_result(self, local: Tensor, rank: int) -> bool:
        if not local.is_floating_point() or local.numel() < 2:
            return False
        entries = _ascending(local)
        results = self._partial_results(rank).get(entries.numel())
        if results is None:
            return False
        largest = results.abs().amax(1, keepdim=True).clamp(min=1e-30)
        return bool(((results - entries).abs() <= 2 * self._tolerance * largest).all(1).any())

    def _partial_results(self, rank: int) -> dict[int, Tensor]:
        """Return the entries of all partial results of a rank's queries by their number, each in ascending order."""
        if rank not in self._results:
            found: dict[int, list[Tensor]] = {}
            for scores, values in self._attentions:
                for rows in self._rows(rank):
                    for result in self._merging(scores[..., rows, :], values):
                        found.setdefault(result.numel(), []).append(_ascending(result))
            self._results[rank] = {count: torch.stack(rows) for count, rows in found.items()}
        return self._results[rank]

    @cached_property
    def _results(self) -> dict[int, dict[int, Tensor]]:
        return {}

    def _rows(self, rank: int) -> list[Tensor]:
        """Return the queries of a rank, and each half of them."""
        order = self._layout if self._layout in ORDERS else ORDERS[0]
        own = places(order, self._tokens, rank, self._ranks)  # pyright: ignore[reportArgumentType]
        return [own, *own.chunk(2)]

    def _merging(self, scores: Tensor, values: list[Tensor]) -> Iterator[Tensor]:
        """Yield what an online softmax over the keys of ranks computes on the way, for some of their subsets."""
        order = self._layout if self._layout in ORDERS else ORDERS[0]
        own = [places(order, self._tokens, it, self._ranks) for it in range(self._ranks)]  # pyright: ignore[reportArgumentType]
        chunks = own if self._layout != "zigzag" else [half for it in own for half in it.chunk(2)]
        subsets = [
            it
            for count in range(1, len(chunks) + 1)
            for it in itertools.combinations(range(len(chunks)), count)
        ][:MAX_SUBSETS]
        every = tuple(range(len(chunks)))
        subsets = subsets if every in subsets else [*subsets, every]
        normalizers: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        for subset in subsets:
            some = scores[..., torch.cat([chunks[it] for it in subset])]
            maximum, lse = some.amax(-1), some.logsumexp(-1)
            weights = (some - lse[..., None]).exp().nan_to_num(0.0)
            normalizers[subset] = maximum, lse
            yield from (maximum, lse, (lse - maximum).exp(), weights)
            yield from ((some - maximum[..., None]).exp(), some - maximum[..., None])
            # Where a fill is finite, a query that sees none of these keys has equal weights on all of them: as many as
            # they are, or 1 each, because beside the fill the logarithm of their number is lost.
            unseen = some.isneginf().all(-1, keepdim=True)
            equal = torch.where(unseen, torch.zeros_like(some), some).softmax(-1)
            ones = torch.where(unseen, torch.ones_like(equal), equal)
            yield equal
            for value in values:
                keys = value[..., torch.cat([chunks[it] for it in subset]), :]
                yield equal @ keys
                yield ones @ keys
                context = weights @ value[..., torch.cat([chunks[it] for it in subset]), :]
                yield context
                yield context * (lse - maximum).exp()[..., None]
        for smaller, larger in itertools.product(normalizers, repeat=2):
            if set(smaller) < set(larger):
                for one, other in zip(normalizers[smaller], normalizers[larger], strict=True):
                    yield (one - other).exp()
                    yield one - other

    @cached_property
    def _attentions(self) -> list[tuple[Tensor, list[Tensor]]]:
        """The scores of the attentions of the run on one rank, each with the values that its weights multiply."""
        found: list[tuple[Tensor, list[Tensor]]] = []
        for scores in self._scores():
            weights = scores.softmax(-1).nan_to_num(0.0)
            values = [it for it in self._tensors if _multiplies(weights, it)]
            known = [it.double() for it in values if self._is_known(weights @ it.double())]
            found.append((scores, known[:2]))
        return found

    def _scores(self) -> list[Tensor]:
        """Return what softmaxes read, and what has the role of scores, the last ones first."""
        read = {
            index
            for value in self._all
            if value.operation in SCORE_READERS
            for index in value.reads
        }
        found: list[Tensor] = []
        for index, value in reversed(list(enumerate(self._all))):
            tensor = value.tensor
            if tensor is None or not (index in read or value.role in SCORE_ROLES):
                continue
            square = tensor.dim() > 1 and tensor.shape[-2:] == (self._tokens, self._tokens)
            if square and tensor.is_floating_point():
                wide = _with_infinite_fills(tensor.double())
                if not any(it.shape == wide.shape and torch.equal(it, wide) for it in found):
                    found.append(wide)
        return found[:3]

    def _is_known(self, tensor: Tensor) -> bool:
        return any(
            it.shape == tensor.shape and agree(tensor, it, self._tolerance) for it in self._tensors
        )


def _multiplies(weights: Tensor, value: Tensor) -> bool:
    """Check whether weights (…, Tq, Tk) can multiply a value (…, Tk, D)."""
    fits = value.dim() == weights.dim() and value.is_floating_point()
    return fits and value.shape[:-1] == (*weights.shape[:-2], weights.shape[-1])


def _ascending(tensor: Tensor) -> Tensor:
    """Return the entries in ascending order, with large numbers in place of infinities, which cannot be subtracted."""
    entries = _with_infinite_fills(tensor.double()).nan_to_num(0.0, HUGE, -HUGE)
    return entries.flatten().sort().values


def _with_infinite_fills(tensor: Tensor) -> Tensor:
    """Replace the large finite numbers that masks fill in; beside them, all others would be rounding errors."""
    return torch.where(tensor.abs() > HUGE, tensor.sign() * torch.inf, tensor)


def is_constant(tensor: Tensor) -> bool:
    """Check whether all entries of a tensor are equal, so that it tells nothing."""
    return tensor.numel() < 2 or bool((tensor == tensor.flatten()[0]).all())
