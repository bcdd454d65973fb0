"""Attention of queries that all ranks have to keys of which each rank has some, as a cache sharded over ranks needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from heedful.dispatch import AUTO
from heedful.errors import ArgumentError
from heedful.functional import autocasts, cast_for_autocast
from heedful.intervals import Intervals
from heedful.masks import Mask
from heedful.parallel.agreement import Prepared, agree, describe, digest
from heedful.parallel.axes import Axis, Group, first_tag, ranks_of
from heedful.parallel.order import mask_error
from heedful.parallel.part import Merged, Options, Queries, compute
from heedful.problem import AttentionProblem


def decode_attention(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv own D"],
    value: Float[Tensor, "B Hkv own Dv"],
    mask: Mask | None = None,
    *,
    group: Group,
    places: Int64[Tensor, " own"],
    tokens: int,
    scale: float | None = None,
    softcap: float | None = None,
    kernel: str = AUTO,
) -> Float[Tensor, "B Hq Tq Dv"]:
    """Compute `attention` of the newest queries, which all ranks have, to keys of which each rank has some.

    Each rank computes what its own keys contribute, and all ranks merge all contributions by their log-sum-exp, in the
    same order, so that they get the same bits. An output and a number per query and head are sent to every rank, no
    keys. It is flash-decoding (Dao et al. 2023) with ranks in place of blocks. It has no gradients.

    Args:
        query: (B, Hq, Tq, D), equal on all ranks; on the CPU.
        key: (B, Hkv, keys of this rank, D); there may be none.
        value: (B, Hkv, keys of this rank, Dv).
        mask: which of all keys each query sees; it must have key ranges.
        group: as in `ring_attention`.
        places: int64, the places of this rank's keys among all, ascending. Each key is on one rank.
        tokens: how many keys there are on all ranks.
        scale: as in `attention`, like softcap and kernel.

    Returns:
        The output (B, Hq, Tq, Dv) in the query's dtype, equal on all ranks.

    Raises:
        ArgumentError: the arguments do not fit together on this rank, or gradients are requested.
        KernelError: the kernel requested by name cannot run them.
        RankError: another rank has another query or other arguments, an error, or has ended; or it does not answer.

    Examples:
        >>> from heedful import attention
        >>> from heedful.parallel import simulate
        >>> query, key = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 9, 8)
        >>> def on_each_rank(group):
        ...     places = torch.arange(group.axes[0].rank, 9, 2)
        ...     mine = key[:, :, places]
        ...     return decode_attention(query, mine, mine, group=group, places=places, tokens=9)
        >>> first, second = simulate(on_each_rank, 2)
        >>> torch.equal(first, second), torch.allclose(first, attention(query, key, key), atol=1e-6)
        (True, True)
    """
    ranks = ranks_of(group, dimensions=(1,))
    if autocasts(query):
        query, key, value = map(cast_for_autocast, (query, key, value))
    call = _Call(query, key, value, mask, places, tokens, Options(scale, softcap, 0.0, kernel))
    ranges, _, (number,) = agree(ranks, call.prepare)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        rows = Queries(torch.arange(query.shape[2]), ranges, call.options)
        own = Merged(query, value.shape[3], None)
        compute(rows, query, key, value, None, places, own)
        whole = Merged(query, value.shape[3], None)
        for output, lse in _of_all_ranks(ranks.axes[0], *own.result(), first_tag(number)):
            whole.add(slice(None), output, lse)
    return whole.result()[0].to(query.dtype)


@dataclass(frozen=True, eq=False)
class _Call:
    """The arguments of a call on this rank, as `decode_attention` takes them."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    places: Tensor
    tokens: int
    options: Options

    def prepare(self) -> Prepared[Intervals | None]:
        """Return the key ranges of all keys, None for all; and what all ranks have to agree on.

        Raises:
            ArgumentError: the arguments do not fit together.
        """
        query, mask, options = self.query, self.mask, self.options
        problem = AttentionProblem(
            query, self.key, self.value, None, None, options.scale, options.softcap
        )
        B, _, _, Tq, own, *_ = problem.sizes
        self._check(own)
        ranges = None
        if mask is not None:
            ranges = mask.intervals(Tq, self.tokens, batch=B) if isinstance(mask, Mask) else None
            if ranges is None:
                raise mask_error(repr(mask))
        facts = {
            "call": "decode_attention",
            "query": f"{describe(query)} with digest {digest(query.detach())}",
            "key": describe(self.key, keys=2),
            "value": describe(self.value, keys=2),
            "mask": "none" if ranges is None else digest(ranges.start, ranges.stop),
            "tokens": self.tokens,
            "scale, softcap, kernel": f"{options.scale}, {options.softcap}, {options.kernel}",
        }
        return Prepared(ranges, facts)

    def _check(self, own: int) -> None:
        """Raise ArgumentError unless the keys are on the CPU, have places, and need no gradients."""
        tensors = {"query": self.query, "key": self.key, "value": self.value}
        for name, tensor in tensors.items():
            if torch.is_grad_enabled() and tensor.requires_grad:
                raise ArgumentError(
                    name,
                    expected="no gradients: decode_attention() is for generation",
                    received="a tensor that requires gradients",
                    remedy="Use torch.inference_mode(); for training, ring_attention().",
                )
            if not tensor.is_cpu:
                raise ArgumentError(
                    name,
                    expected="a tensor on the CPU: other devices are not supported yet",
                    received=f"one on {tensor.device}",
                    remedy="Move query, key and value by .cpu(), and use a group of the backend gloo.",
                )
        places = self.places
        if places.dtype != torch.int64 or tuple(places.shape) != (own,):
            raise ArgumentError(
                "places",
                expected=f"int64 ({own},), a place for each key of this rank",
                received=f"{places.dtype} {tuple(places.shape)}",
                remedy="A ShardedKVCache deals out its tokens itself.",
            )


def _of_all_ranks(
    axis: Axis, output: Tensor, lse: Tensor, tag: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield output and log-sum-exp of every rank, in their order."""
    message = torch.cat([output.reshape(-1), lse.reshape(-1)])
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    messages = {rank: torch.empty_like(message) for rank in others}
    axis.start(tag, dict.fromkeys(others, message), messages)()
    messages[axis.rank] = message
    for rank in range(axis.size):
        of_output, of_lse = messages[rank].split([output.numel(), lse.numel()])
        yield of_output.view_as(output), of_lse.view_as(lse)
