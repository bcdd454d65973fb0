"""What attention over many ranks takes, for each way to split the ranks between the ring and Ulysses; and the best."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.errors import ArgumentError
from heedful.masks import Mask
from heedful.parallel.cost import AttentionSizes, MeshRank, ranks_of_mesh
from heedful.parallel.memory import peak_bytes
from heedful.parallel.order import balanced_order
from heedful.parallel.schedule import (
    Hardware,
    backward_seconds,
    computed_rate,
    forward_seconds,
    is_ring,
)

EQUALLY_FAST: float = 1.03  # times within this factor are taken as equal, and memory decides


@dataclass(frozen=True)
class MeshSplit:
    """What attention takes on a mesh of (ring, ulysses) ranks, as predicted.

    Attributes:
        ring: how many ranks the ring has.
        ulysses: how many ranks exchange heads.
        forward_seconds: the time of the forward pass.
        backward_seconds: the time of the backward pass alone.
        computing_seconds: how long the busiest rank computes in both.
        memory_bytes: the most bytes of tensors that a rank has at once, with gradients.
        forward_memory_bytes: the same without gradients.
        sent_bytes: the most bytes that a rank sends in both passes.
        busiest: the work of the busiest rank by the mean of all.
        notes: what makes it slower or larger than others.
    """

    ring: int
    ulysses: int
    forward_seconds: float
    backward_seconds: float
    computing_seconds: float
    memory_bytes: int
    forward_memory_bytes: int
    sent_bytes: int
    busiest: float
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The time of both passes."""
        return self.forward_seconds + self.backward_seconds

    @property
    def waiting_seconds(self) -> float:
        """How long ranks wait for transfers and for one another."""
        return max(0.0, self.seconds - self.computing_seconds)

    @property
    def name(self) -> str:
        """The function that computes it, and the sizes of its mesh."""
        if self.ulysses == 1:
            return f"ring {self.ring}"
        return (
            f"Ulysses {self.ulysses}"
            if self.ring == 1
            else f"ring {self.ring} × Ulysses {self.ulysses}"
        )


@dataclass(frozen=True)
class ParallelPlan:
    """All splits of the ranks, and the one to take.

    Attributes:
        splits: those that can be computed, in the order of how many ranks exchange heads.
        refused: the names of the others, with the reason.
        best: the fastest; of those that are equally fast, the one that takes the least memory.
        reason: why it is the best, in words.
    """

    splits: tuple[MeshSplit, ...]
    refused: tuple[tuple[str, str], ...]
    best: MeshSplit
    reason: str


def plan(
    mask: Mask | None, tokens: int, ranks: int, sizes: AttentionSizes, hardware: Hardware
) -> ParallelPlan:
    """Predict time, memory and bytes of attention over many ranks, and recommend a way to split them.

    Nothing is computed but counts of what the mask shows. docs/scaling.md states the model, and its error.

    Args:
        mask: which keys each query sees, of all tokens.
        tokens: how many tokens there are.
        ranks: how many ranks there are.
        sizes: the sizes of the attention.
        hardware: how fast a rank computes, sends and receives.

    Returns:
        The plan.

    Raises:
        ArgumentError: a number is out of range, or the mask does not fit or has no key ranges.

    Examples:
        >>> from heedful import Causal
        >>> from heedful.parallel import Rate
        >>> sizes = AttentionSizes(batch=1, query_heads=8, key_heads=2, head_size=64, value_size=64)
        >>> rate = Rate(forward=1e12, backward=8e11)
        >>> found = plan(Causal(), 8192, 16, sizes, Hardware(rate, rate, bandwidth=1e9))
        >>> [split.name for split in found.splits]
        ['ring 16', 'ring 8 × Ulysses 2', 'ring 4 × Ulysses 4', 'ring 2 × Ulysses 8']
        >>> found.refused
        (('Ulysses 16', '8 query heads cannot be dealt out to 16 ranks'),)
    """
    _check(sizes, hardware)
    order = balanced_order(mask, tokens, ranks, batch=sizes.batch)
    splits: list[MeshSplit] = []
    refused: list[tuple[str, str]] = []
    for ulysses in (n for n in range(1, ranks + 1) if ranks % n == 0):
        if ulysses > sizes.query_heads:
            name = (
                f"Ulysses {ulysses}"
                if ulysses == ranks
                else f"ring {ranks // ulysses} × Ulysses {ulysses}"
            )
            heads = f"{sizes.query_heads} query heads cannot be dealt out to {ulysses} ranks"
            refused.append((name, heads))
        else:
            splits.append(_predict(ranks_of_mesh(mask, order, sizes, ulysses), hardware))
    fastest = min(split.seconds for split in splits)
    fast = [split for split in splits if split.seconds <= EQUALLY_FAST * fastest]
    best = min(fast, key=lambda split: split.memory_bytes)
    return ParallelPlan(tuple(splits), tuple(refused), best, _reason(best, fast, splits))


def _check(sizes: AttentionSizes, hardware: Hardware) -> None:
    numbers = {
        "sizes.batch": sizes.batch,
        "sizes.query_heads": sizes.query_heads,
        "sizes.key_heads": sizes.key_heads,
        "sizes.head_size": sizes.head_size,
        "sizes.value_size": sizes.value_size,
        "hardware.rate.forward": hardware.rate.forward,
        "hardware.rate.backward": hardware.rate.backward,
        "hardware.wide_rate.forward": hardware.wide_rate.forward,
        "hardware.wide_rate.backward": hardware.wide_rate.backward,
        "hardware.bandwidth": hardware.bandwidth,
    }
    for name, number in numbers.items():
        if not number > 0:
            raise ArgumentError(name, expected="a number above 0", received=str(number), remedy="")
    if sizes.query_heads % sizes.key_heads:
        raise ArgumentError(
            "sizes.key_heads",
            expected=f"a divisor of {sizes.query_heads}, the query heads",
            received=str(sizes.key_heads),
            remedy="Each key head is read by equally many query heads.",
        )
    if not hardware.latency >= 0:
        raise ArgumentError(
            "hardware.latency",
            expected="seconds, 0 or more",
            received=str(hardware.latency),
            remedy="",
        )


def _predict(ranks: list[MeshRank], hardware: Hardware) -> MeshSplit:
    first, sizes = ranks[0], ranks[0].sizes
    rate = computed_rate(first, hardware)
    pairs = [rank.pairs for rank in ranks]
    forward_flops = 2 * (sizes.head_size + sizes.value_size)
    backward_flops = 2 * (3 * sizes.head_size + 2 * sizes.value_size)
    times_forward = 2 if is_ring(first) else 1
    of_pair = times_forward * forward_flops / rate.forward + backward_flops / rate.backward
    return MeshSplit(
        ring=first.row_count,
        ulysses=first.columns,
        forward_seconds=forward_seconds(ranks, hardware),
        backward_seconds=backward_seconds(ranks, hardware),
        computing_seconds=max(pairs) * of_pair,
        memory_bytes=max(peak_bytes(rank, backward=True) for rank in _extremes(ranks)),
        forward_memory_bytes=max(peak_bytes(rank, backward=False) for rank in _extremes(ranks)),
        sent_bytes=max(_sent(rank) for rank in ranks),
        busiest=max(pairs) * len(pairs) / sum(pairs) if sum(pairs) else 1.0,
        notes=_notes(first, hardware),
    )


def _extremes(ranks: list[MeshRank]) -> list[MeshRank]:
    """Return the ranks of the row that has the most tokens."""
    places = ranks[0].travel.order.places
    longest = max(range(len(places)), key=lambda row: len(places[row]))
    return [rank for rank in ranks if rank.row == longest]


def _sent(rank: MeshRank) -> int:
    exchanged = rank.exchanged_forward + rank.exchanged_backward
    return exchanged + rank.ring_forward + rank.ring_backward


def _notes(rank: MeshRank, hardware: Hardware) -> tuple[str, ...]:
    notes: list[str] = []
    sizes = rank.sizes
    if rank.shares_keys:
        notes.append(
            f"key heads: {sizes.key_heads} on {rank.columns} ranks, sent to all that read them"
        )
    if sizes.query_heads % rank.columns:
        notes.append(f"{sizes.query_heads} query heads on {rank.columns} ranks: some have one more")
    if hardware.wide_rate != hardware.rate and computed_rate(rank, hardware) is hardware.wide_rate:
        notes.append("computed in float32")
    return tuple(notes)


def _reason(best: MeshSplit, fast: list[MeshSplit], splits: list[MeshSplit]) -> str:
    share = f"its ranks compute for {best.computing_seconds / best.seconds:.0%} of the time"
    if len(splits) == 1:
        return f"the only one; {share}"
    if len(fast) > 1:
        others = ", ".join(split.name for split in fast if split is not best)
        return f"as fast as {others}, with the least memory; {share}"
    second = min((s for s in splits if s is not best), key=lambda split: split.seconds)
    return f"the fastest; {share}. The next, {second.name}, takes {second.seconds / best.seconds:.2f} times as long"
