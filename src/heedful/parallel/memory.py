"""How much memory a rank's tensors take at most, predicted from the sizes of what each pass has at once."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.parallel.cost import MeshRank
from heedful.parallel.part import QUERIES_AT_ONCE
from heedful.parallel.schedule import is_ring, ring_bytes
from heedful.parallel.travel import KEYS_PER_MESSAGE


def peak_bytes(rank: MeshRank, *, backward: bool) -> int:
    """Predict the most bytes that a rank's tensors take at once.

    Args:
        rank: the place of the rank.
        backward: whether gradients of query, key and value are computed, or the forward pass alone.

    Returns:
        The bytes of query, key, value, output, gradients, messages, parts and the mask; without the scratch memory of
        the kernel and what the process takes for itself.
    """
    held = _Held(rank)
    forward = held.exchange_and_attend()
    peak = max(forward, held.differentiate()) if backward else forward
    return held.inputs + peak + mask_bytes(rank)


def mask_bytes(rank: MeshRank) -> int:
    """Return the size of the order, the key ranges, and which keys each row needs."""
    travel = rank.travel
    tokens = travel.order.tokens * (16 + rank.row_count)
    return tokens + (0 if travel.ranges is None else 8 * travel.ranges.start.numel())


@dataclass(frozen=True)
class _Held:
    """The sizes of a rank's tensors, in bytes.

    Attributes:
        rank: the place of the rank.
    """

    rank: MeshRank

    @property
    def _own(self) -> int:
        """How many tokens the rank has."""
        return len(self.rank.order.places[self.rank.row * self.rank.columns + self.rank.column])

    @property
    def _joined(self) -> int:
        """How many tokens it computes attention for: those of all ranks of its row."""
        return len(self.rank.travel.order.places[self.rank.row])

    @property
    def _heads(self) -> int:
        """How many query heads it computes, over all sequences."""
        return self.rank.sizes.batch * self.rank.dealt[self.rank.column][0]

    @property
    def _number(self) -> int:
        """The bytes of a number as attention gets it."""
        sizes = self.rank.sizes
        return sizes.wide if self.rank.shares_keys else sizes.narrow

    @property
    def _widened(self) -> bool:
        """Whether the ring widens what it gets."""
        return is_ring(self.rank) and self._number < self.rank.sizes.wide

    def _all_heads(self, number: int, *, keys: bool) -> int:
        """Return the size of query, or with `keys` of key and value, of the rank's own tokens and all heads."""
        sizes = self.rank.sizes
        numbers = sizes.query_heads * sizes.head_size
        if keys:
            numbers = sizes.key_heads * (sizes.head_size + sizes.value_size)
        return sizes.batch * self._own * numbers * number

    @property
    def inputs(self) -> int:
        """Query, key and value as they are given."""
        narrow = self.rank.sizes.narrow
        return self._all_heads(narrow, keys=False) + self._all_heads(narrow, keys=True)

    @property
    def _returned(self) -> int:
        """The output and log-sum-exp that the caller gets."""
        sizes = self.rank.sizes
        per_head = sizes.value_size * sizes.narrow + sizes.wide
        return sizes.batch * sizes.query_heads * self._own * per_head

    @property
    def _exchanged(self) -> int:
        """Query, key and value of the heads of this rank and the tokens of its row; 0 if none are exchanged."""
        if self.rank.columns == 1:
            return 0
        query = self._heads * self._joined * self.rank.sizes.head_size
        return (query + self._joined * self.rank.key_and_value) * self._number

    @property
    def _attended(self) -> int:
        """Output and log-sum-exp of the same."""
        sizes = self.rank.sizes
        number = sizes.wide if is_ring(self.rank) else self._number
        return self._heads * self._joined * (sizes.value_size * number + sizes.wide)

    @property
    def _returning(self) -> int:
        """What an exchange of outputs for tokens has besides: messages both ways, and the sum of all heads."""
        if self.rank.columns == 1:
            sizes = self.rank.sizes
            return 0 if sizes.narrow == sizes.wide else self._returned
        return self._attended + self._wide_queries + self._returned

    @property
    def _wide_queries(self) -> int:
        """The sum over ranks of all heads of the rank's own queries; 0 if none are exchanged."""
        return self._all_heads(self.rank.sizes.wide, keys=False) if self.rank.columns > 1 else 0

    @property
    def _message(self) -> int:
        """The keys and values of a message, in the ring."""
        if self.rank.row_count == 1:
            return 0
        return self._message_keys * ring_bytes(self.rank)

    @property
    def _message_keys(self) -> int:
        others = self.rank.travel.counts.clone().fill_diagonal_(0)
        return min(KEYS_PER_MESSAGE, int(others.max()))

    def exchange_and_attend(self) -> int:
        """Return the peak of the forward pass: tokens for heads, attention, and heads for tokens."""
        inside = self._attended
        if is_ring(self.rank):
            own, message = (self._part(keys) for keys in (self._joined, self._message_keys))
            inside += max(own + 2 * self._message, message + 4 * self._message)
        return self._exchanged + max(self._exchanged, inside, self._attended + self._returning)

    @property
    def _rows(self) -> int:
        """The queries that are computed at once."""
        return self._heads * min(QUERIES_AT_ONCE, self._joined)

    @property
    def _row_blocks(self) -> int:
        """How many times a part's queries are computed, one after the other."""
        return -(-self._joined // QUERIES_AT_ONCE)

    def _part(self, keys: int) -> int:
        """Return the size of some rows' results over some keys, what is widened for them, and those before them."""
        sizes = self.rank.sizes
        numbers = self._rows * (sizes.value_size + 5)
        if self._widened:
            numbers += self._rows * sizes.head_size + keys * self.rank.key_and_value
        return min(2, self._row_blocks) * numbers * sizes.wide

    def differentiate(self) -> int:
        """Return the peak of the backward pass: what the forward pass has kept, and gradients."""
        sizes, wide = self.rank.sizes, self.rank.sizes.wide
        number = wide if is_ring(self.rank) else self._number
        queries = self._heads * self._joined * sizes.head_size
        gradients = (queries + self._joined * self.rank.key_and_value) * number
        given = 2 * self._returned  # with the gradient of the output
        inside = self._exchanged + self._attended + gradients + self._gradient_of_output
        if self.rank.columns == 1 and sizes.narrow == wide:
            given = self._returned  # the output that is kept is the one that is returned
        if is_ring(self.rank):
            inside += self._differentiated_part()
        returning = gradients + queries * self._number
        returning += self._wide_queries + self._all_heads(sizes.narrow, keys=False)
        return given + max(inside, returning)

    @property
    def _gradient_of_output(self) -> int:
        """The gradient of the output as attention gets it, if it is not the one that is given."""
        sizes = self.rank.sizes
        if self.rank.columns == 1 and sizes.narrow == sizes.wide:
            return self._heads * self._joined * sizes.wide
        return self._attended

    def _differentiated_part(self) -> int:
        """Return the size of a part that is differentiated, its messages, and gradients on their way."""
        sizes = self.rank.sizes
        per_query = 2 * sizes.value_size + sizes.head_size + 3
        widened = min(2, self._row_blocks) if self._widened else 0
        numbers = self._rows * (per_query + widened * sizes.head_size)
        copies = min(3, self._row_blocks) + widened  # the sums, and gradients of the rows before
        gradient = self._message_keys * self.rank.key_and_value * sizes.wide

        def part(keys: int) -> int:
            return (numbers + keys * self.rank.key_and_value * copies) * sizes.wide

        if self.rank.row_count == 1:
            return part(self._joined)
        return max(
            part(self._joined) + 2 * self._message,
            part(self._message_keys) + 4 * self._message + 4 * gradient,
        )
