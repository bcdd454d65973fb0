"""When each rank computes and transfers, predicted round by round in the order in which `ring` and `ulysses` do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.parallel.agreement import MESSAGE_BYTES
from heedful.parallel.cost import MeshRank
from heedful.parallel.travel import KEYS_PER_MESSAGE, Travel

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rate:
    """How fast attention is computed on one rank, in floating-point operations per second.

    Attributes:
        forward: in the forward pass, where a pair takes 2 (D + Dv) operations.
        backward: in the backward pass alone, where it takes 2 (3 D + 2 Dv).
    """

    forward: float
    backward: float


@dataclass(frozen=True)
class Hardware:
    """What time depends on besides the attention.

    Attributes:
        rate: how fast attention is computed in the dtype of query, key and value.
        wide_rate: how fast it is computed in float32, in which the ring computes what is narrower.
        bandwidth: how many bytes per second a rank sends, and receives at the same time.
        latency: the seconds that a message takes besides.
    """

    rate: Rate
    wide_rate: Rate
    bandwidth: float
    latency: float = 0.0


def forward_seconds(ranks: list[MeshRank], hardware: Hardware) -> float:
    """Predict the time of the forward pass until the last rank has ended.

    Args:
        ranks: all ranks of the mesh.
        hardware: what they run on.

    Returns:
        The seconds.
    """
    busiest, links = _busiest(ranks), _Links(hardware, ranks[0].row_count)
    rate = computed_rate(busiest, hardware).forward
    parts = _pairs(busiest) * (_forward_flops(busiest) / rate)
    if busiest.row_count == 1:
        computed = float(parts.sum())
    else:
        computed = _ring_forward(busiest.travel, parts, ring_bytes(busiest), links)
    exchanged = max(rank.exchanged_forward for rank in ranks)
    return _agreement(busiest, hardware, 1) + _exchange(busiest, hardware, exchanged) + computed


def backward_seconds(ranks: list[MeshRank], hardware: Hardware) -> float:
    """Predict the time of the backward pass until the last rank has ended.

    The ring computes each part again before it differentiates it. Ulysses alone has kept it.

    Args:
        ranks: all ranks of the mesh.
        hardware: what they run on.

    Returns:
        The seconds.
    """
    busiest, links = _busiest(ranks), _Links(hardware, ranks[0].row_count)
    rate, sizes = computed_rate(busiest, hardware), busiest.sizes
    of_pair = 2 * (3 * sizes.head_size + 2 * sizes.value_size) / rate.backward
    if is_ring(busiest):
        of_pair += _forward_flops(busiest) / rate.forward
    parts = _pairs(busiest) * of_pair
    if busiest.row_count == 1:
        computed = float(parts.sum())
    else:
        gradient_bytes = busiest.key_and_value * sizes.wide
        computed = _ring_backward(busiest.travel, parts, ring_bytes(busiest), gradient_bytes, links)
    exchanged = max(rank.exchanged_backward for rank in ranks)
    return _agreement(busiest, hardware, 2) + _exchange(busiest, hardware, exchanged) + computed


def is_ring(rank: MeshRank) -> bool:
    """Return whether the ring's code runs, which it does on a single rank, too, and not if Ulysses has all ranks."""
    return rank.columns == 1 or rank.row_count > 1


def computed_rate(rank: MeshRank, hardware: Hardware) -> Rate:
    """Return how fast parts are computed, in the dtype in which that is done."""
    return hardware.wide_rate if is_ring(rank) or rank.shares_keys else hardware.rate


def ring_bytes(rank: MeshRank) -> int:
    """Return how many bytes a key and its value have as they travel."""
    return rank.key_and_value * (rank.sizes.wide if rank.shares_keys else rank.sizes.narrow)


def _busiest(ranks: list[MeshRank]) -> MeshRank:
    """Return a rank of the column that has the most heads; its ring is the slowest."""
    return max(ranks, key=lambda rank: (rank.dealt[rank.column], rank.ring_key_heads))


def _pairs(rank: MeshRank) -> Tensor:
    """Return the pairs that the ring of a rank computes, of the keys of each row (rows) and its queries (columns)."""
    rows = [
        MeshRank(rank.travel, rank.order, rank.sizes, rank.columns, row, rank.column)
        for row in range(rank.row_count)
    ]
    return torch.stack([row.pairs_of_rows for row in rows], dim=1).double()


def _forward_flops(rank: MeshRank) -> int:
    return 2 * (rank.sizes.head_size + rank.sizes.value_size)


def _agreement(rank: MeshRank, hardware: Hardware, of_exchange: int) -> float:
    """Return the seconds of the agreements of a pass: one along the ring, some along the ranks that exchange heads."""
    seconds = 0.0
    for size, count in ((rank.row_count, 1), (rank.columns, of_exchange)):
        if size > 1:
            bytes_sent = (size - 1) * MESSAGE_BYTES
            seconds += count * (hardware.latency + bytes_sent / hardware.bandwidth)
    return seconds


def _exchange(rank: MeshRank, hardware: Hardware, bytes_sent: int) -> float:
    """Return the seconds of exchanging query, key, value, output and log-sum-exp, one after the other."""
    return 0.0 if rank.columns == 1 else 5 * hardware.latency + bytes_sent / hardware.bandwidth


class _Links:
    """The links of all ranks of a ring, each of which sends one message at a time, and receives one.

    Args:
        hardware: their bandwidth and latency.
        ranks: how many ranks there are.
    """

    def __init__(self, hardware: Hardware, ranks: int) -> None:
        self._hardware: Hardware = hardware
        self._sending: Vector = np.zeros(ranks)
        self._receiving: Vector = np.zeros(ranks)

    def transfer(self, sender: Indices, message_bytes: Vector, posted: Vector) -> Vector:
        """Let each rank get a message, and return when it has sent and received its own.

        Args:
            sender: from whom each rank gets its message; every rank is the sender of one.
            message_bytes: how many bytes each rank gets; 0: there is no message.
            posted: when each rank comes to the transfer.
        """
        hardware, exists = self._hardware, message_bytes > 0
        start = np.maximum(np.maximum(posted, posted[sender]), self._receiving)
        start = np.maximum(start, self._sending[sender])
        end = start + hardware.latency + message_bytes / hardware.bandwidth
        self._receiving = np.where(exists, end, self._receiving)
        self._sending[sender] = np.where(exists, end, self._sending[sender])
        ended = np.where(exists, end, 0.0)
        sent = np.empty_like(ended)
        sent[sender] = ended
        return np.maximum(ended, sent)


class _Rounds:
    """What every rank gets and computes in each round, one row for a round.

    Args:
        travel: which keys travel.
        parts: for the keys of each rank (rows), how long each rank (columns) computes with them.

    Attributes:
        senders: from whom each rank gets keys.
        keys: how many it gets.
        seconds: how long it computes with them: their share of the time that all keys of their sender take.
        own: how long each rank computes with its own keys.
    """

    def __init__(self, travel: Travel, parts: Tensor) -> None:
        ranks = np.arange(len(parts))
        steps, numbers = np.array(travel.rounds, dtype=np.int64).reshape(-1, 2, 1).swapaxes(0, 1)
        counts, times = travel.counts.numpy(), parts.numpy()
        self.senders: Indices = (ranks - steps) % len(ranks)
        needed = counts[self.senders, ranks]
        self.keys: Vector = (needed - numbers * KEYS_PER_MESSAGE).clip(0, KEYS_PER_MESSAGE)
        self.seconds: Vector = times[self.senders, ranks] * self.keys / needed.clip(min=1)
        self.own: Vector = times.diagonal().copy()


def _ring_forward(travel: Travel, parts: Tensor, key_bytes: int, links: _Links) -> float:
    """Return when the last rank has ended: a round's messages are under way while the part before is computed."""
    rounds = _Rounds(travel, parts)
    clock, arriving = np.zeros_like(rounds.own), np.zeros_like(rounds.own)
    for number in range(-1, len(rounds.keys)):
        arrived = arriving
        if number + 1 < len(rounds.keys):
            following = rounds.senders[number + 1], rounds.keys[number + 1] * key_bytes
            arriving = links.transfer(*following, clock)
        computed = rounds.own if number < 0 else rounds.seconds[number]
        clock = np.maximum(clock, arrived) + computed
    return float(clock.max())


def _ring_backward(
    travel: Travel, parts: Tensor, key_bytes: int, gradient_bytes: int, links: _Links
) -> float:
    """Return the same where the gradients of each part return while the next one is computed."""
    rounds = _Rounds(travel, parts)
    clock, arriving, returning = (np.zeros_like(rounds.own) for _ in range(3))
    for number in range(-1, len(rounds.keys)):
        arrived = arriving
        if number + 1 < len(rounds.keys):
            following = rounds.senders[number + 1], rounds.keys[number + 1] * key_bytes
            arriving = links.transfer(*following, clock)
        if number < 0:
            clock = clock + rounds.own
            continue
        clock = np.maximum(clock, arrived) + rounds.seconds[number]
        owner = rounds.senders[number]
        user = np.argsort(owner)  # from whom each owner gets gradients
        to_owner = rounds.keys[number][user] * gradient_bytes
        returned, returning = returning, links.transfer(user, to_owner, clock)
        clock = np.maximum(clock, returned)
    return float(np.maximum(clock, returning).max())
