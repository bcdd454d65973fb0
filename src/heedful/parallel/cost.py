"""What attention over many ranks costs each of them, predicted from a mask, an order and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.lazy import lazy
from heedful.masks import Mask
from heedful.parallel.heads import aligned_key_heads, split_heads
from heedful.parallel.order import TokenOrder
from heedful.parallel.travel import Travel, travel_of


@dataclass(frozen=True)
class Cost:
    """What each rank computes and sends, in the order of the ranks.

    Attributes:
        pairs: the visible (query, key) pairs that a rank computes, over sequences and heads.
        forward_bytes: how many bytes a rank sends in the forward pass.
        backward_bytes: how many bytes it sends in the backward pass, for gradients of query, key and value.

    Both are without the 4 KiB that a rank sends to each other one at the beginning of a pass.
    """

    pairs: tuple[int, ...]
    forward_bytes: tuple[int, ...]
    backward_bytes: tuple[int, ...]


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of attention over all tokens, whose number the order has.

    Attributes:
        batch: B, the number of sequences.
        query_heads: Hq.
        key_heads: Hkv, which divides Hq.
        head_size: D.
        value_size: Dv.
        dtype: the dtype of query, key and value.
    """

    batch: int
    query_heads: int
    key_heads: int
    head_size: int
    value_size: int
    dtype: torch.dtype = torch.float32

    @property
    def narrow(self) -> int:
        """The bytes of a number as it is given."""
        return self.dtype.itemsize

    @property
    def wide(self) -> int:
        """The bytes of a number in float32 or better."""
        return torch.promote_types(self.dtype, torch.float32).itemsize


def predict_cost(
    mask: Mask | None, order: TokenOrder, sizes: AttentionSizes, *, ulysses: int = 1
) -> Cost:
    """Predict what each rank computes and sends for attention without a bias.

    Args:
        mask: which keys each query sees, of all tokens.
        order: which tokens each rank has.
        sizes: the sizes of the attention.
        ulysses: how many ranks exchange heads: 1 for `ring_attention`, all for `ulysses_attention`, else the second
            size of the mesh of `mesh_attention`.

    Returns:
        The cost of each rank.

    Raises:
        ArgumentError: the ranks that exchange heads do not divide all ranks, or are more than the query heads; or the
            mask does not fit.

    Examples:
        >>> from heedful import Window
        >>> from heedful.parallel import contiguous_order
        >>> sizes = AttentionSizes(batch=1, query_heads=1, key_heads=1, head_size=8, value_size=8)
        >>> predict_cost(Window(3), contiguous_order(12, 3), sizes).forward_bytes
        (128, 128, 0)
    """
    ranks = ranks_of_mesh(mask, order, sizes, ulysses)
    return Cost(
        tuple(rank.pairs for rank in ranks),
        tuple(rank.exchanged_forward + rank.ring_forward for rank in ranks),
        tuple(rank.exchanged_backward + rank.ring_backward for rank in ranks),
    )


def ranks_of_mesh(
    mask: Mask | None, order: TokenOrder, sizes: AttentionSizes, ulysses: int
) -> list[MeshRank]:
    """Return the place of each rank on a mesh.

    Args:
        mask: which keys each query sees, of all tokens.
        order: which tokens each rank has.
        sizes: the sizes of the attention.
        ulysses: how many ranks exchange heads.

    Raises:
        ArgumentError: as `predict_cost`.
    """
    if ulysses < 1 or order.ranks % ulysses or sizes.query_heads < ulysses:
        raise ArgumentError(
            "ulysses",
            expected=f"a divisor of {order.ranks} ranks, and at most {sizes.query_heads}, the query heads",
            received=str(ulysses),
            remedy="1 predicts ring_attention().",
        )
    travel = travel_of(mask, order.joined(ulysses), sizes.batch)
    return [
        MeshRank(travel, order, sizes, ulysses, row, column)
        for row in range(order.ranks // ulysses)
        for column in range(ulysses)
    ]


@dataclass(frozen=True)
class MeshRank:
    """The place of a rank on a mesh, and what it computes and sends there.

    Attributes:
        travel: which keys travel between the rows of the mesh.
        order: which tokens each rank has.
        sizes: the sizes of the attention.
        columns: how many ranks exchange heads.
        row: the place of the rank in its ring.
        column: its place among the ranks that exchange heads.
    """

    travel: Travel
    order: TokenOrder
    sizes: AttentionSizes
    columns: int
    row: int
    column: int

    @lazy
    def dealt(self) -> list[tuple[int, int]]:
        """How many query heads and key heads the rank of each column gets."""
        split = split_heads(self.sizes.query_heads, self.sizes.key_heads, self.columns)
        return [(q.stop - q.first, k.stop - k.first) for q, k in split]

    @property
    def shares_keys(self) -> bool:
        """Whether several ranks get the same key heads, which are then computed in float32 or better."""
        return sum(keys for _, keys in self.dealt) > self.sizes.key_heads

    @lazy
    def pairs_of_rows(self) -> Tensor:
        """The visible pairs of the keys of each row and the queries of this one, for the heads of this column."""
        ranges = self.travel.ranges
        sequences = self.sizes.batch if ranges is None or len(ranges.start) == 1 else 1
        return self.travel.pairs[:, self.row] * sequences * self.dealt[self.column][0]

    @property
    def pairs(self) -> int:
        """The visible pairs of the queries of this row, for the heads of this column."""
        return int(self.pairs_of_rows.sum())

    def _tokens(self, column: int) -> int:
        return len(self.order.places[self.row * self.columns + column])

    def _of_others(self, numbers: list[int]) -> int:
        return sum(n for column, n in enumerate(numbers) if column != self.column)

    def _inputs(self, column: int) -> int:
        """How many numbers of query, key and value a token has in the heads of a column."""
        queries, keys = self.dealt[column]
        sizes = self.sizes
        per_head = queries * sizes.head_size + keys * (sizes.head_size + sizes.value_size)
        return sizes.batch * per_head

    def _outputs(self, column: int) -> int:
        """How many bytes output and log-sum-exp of a token have in the heads of a column."""
        wide = self.row_count > 1 or self.shares_keys
        number = self.sizes.wide if wide else self.sizes.narrow
        per_head = self.sizes.value_size * number + self.sizes.wide
        return self.sizes.batch * self.dealt[column][0] * per_head

    @property
    def row_count(self) -> int:
        """How many ranks the ring has."""
        return self.order.ranks // self.columns

    @property
    def exchanged_forward(self) -> int:
        """Other ranks' heads of this rank's inputs, and other ranks' tokens of its outputs."""
        columns = range(self.columns)
        inputs = self._of_others([self._inputs(column) for column in columns])
        others = self._of_others([self._tokens(column) for column in columns])
        own = self._tokens(self.column)
        return own * inputs * self.sizes.narrow + others * self._outputs(self.column)

    @property
    def exchanged_backward(self) -> int:
        """The same for gradients, the other way round."""
        columns = range(self.columns)
        number = self.sizes.wide if self.shares_keys else self.sizes.narrow
        outputs = self._of_others([self._outputs(column) for column in columns])
        others = self._of_others([self._tokens(column) for column in columns])
        own = self._tokens(self.column)
        return own * outputs + others * self._inputs(self.column) * number

    @lazy
    def ring_key_heads(self) -> int:
        """How many key heads the ring has, those that are there several times included."""
        heads, _ = split_heads(self.sizes.query_heads, self.sizes.key_heads, self.columns)[
            self.column
        ]
        repeated = aligned_key_heads(heads, self.sizes.query_heads // self.sizes.key_heads)
        return self.dealt[self.column][1] if repeated is None else len(repeated)

    @property
    def key_and_value(self) -> int:
        """How many numbers a key and its value have, as the ring sends them."""
        return (
            self.sizes.batch * self.ring_key_heads * (self.sizes.head_size + self.sizes.value_size)
        )

    @property
    def ring_forward(self) -> int:
        """The keys and values that other rows need of this one."""
        number = self.sizes.wide if self.shares_keys else self.sizes.narrow
        counts = self.travel.counts
        sent = int(counts[self.row].sum() - counts[self.row, self.row])
        return sent * self.key_and_value * number

    @property
    def ring_backward(self) -> int:
        """The same again, and the gradients of what other rows have sent."""
        counts = self.travel.counts
        received = int(counts[:, self.row].sum() - counts[self.row, self.row])
        return self.ring_forward + received * self.key_and_value * self.sizes.wide
