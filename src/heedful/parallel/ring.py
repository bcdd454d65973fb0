"""Attention in which keys and values travel: each rank keeps its queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heedful.dispatch import AUTO
from heedful.masks import Mask
from heedful.parallel.agreement import agree_on_backward
from heedful.parallel.arguments import Arguments, agree_on
from heedful.parallel.axes import Axis, Group, Ranks, Wait, first_tag, ranks_of
from heedful.parallel.order import TokenOrder
from heedful.parallel.part import Merged, Options, Queries, Results, compute, differentiate
from heedful.parallel.travel import Travel
from heedful.result import AttentionResult


def ring_attention(
    query: Float[Tensor, "B Hq own D"],
    key: Float[Tensor, "B Hkv own D"],
    value: Float[Tensor, "B Hkv own Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    group: Group,
    order: TokenOrder,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
) -> Float[Tensor, "B Hq own Dv"] | AttentionResult:
    """Compute `attention` of tokens that are sharded over ranks, between which keys and values travel.

    It is ring attention (Liu et al. 2023, arXiv 2310.01889). Every rank calls it, with the tokens that `shard` gives
    it. Only keys that a mask shows are sent. The result and the gradients of query, key and value are those of one
    process; dropout with the first rank's seed drops the same weights. The gradient of a tensor that all ranks have
    (`sinks`, a bias that queries share) is this rank's share: the whole is the sum over ranks.

    Args:
        query: (B, Hq, tokens of this rank, D); float64, float32, bfloat16 or float16, on the CPU.
        key: (B, Hkv, tokens of this rank, D).
        value: (B, Hkv, tokens of this rank, Dv).
        mask: which keys each query sees, of all tokens in their original order; it must have key ranges.
        group: the process group, a DeviceMesh of one dimension, or what `simulate` passes.
        order: which tokens each rank has; `balanced_order(mask, …)` gives all ranks equal work.
        bias: for the queries of this rank and all keys in their original order: broadcastable to
            (B, Hq, tokens of this rank, all tokens).
        scale: as in `attention`, like softcap, sinks, dropout_p and kernel.
        return_lse: whether to return the log-sum-exp, too.

    Returns:
        The output (B, Hq, tokens of this rank, Dv) in the query's dtype; with `return_lse`,
        `AttentionResult(output, lse)`.

    Raises:
        ArgumentError: the arguments do not fit together on this rank.
        KernelError: the kernel requested by name cannot run them.
        RankError: another rank has other arguments, an error, or has ended; or it does not answer within the group's
            timeout.

    Examples:
        >>> from heedful import Causal, attention
        >>> from heedful.parallel import balanced_order, shard, simulate
        >>> x, order = torch.randn(1, 2, 6, 8), balanced_order(Causal(), 6, 2)
        >>> def on_each_rank(group):
        ...     mine = shard(x, group, order)
        ...     return ring_attention(mine, mine, mine, Causal(), group=group, order=order)
        >>> first, second = simulate(on_each_rank, 2)
        >>> whole = attention(x, x, x, Causal())
        >>> torch.allclose(first, whole[:, :, order.places[0]], atol=1e-6)
        True
    """
    ranks = ranks_of(group, dimensions=(1,))
    options = Options(scale, softcap, dropout_p, kernel)
    arguments = Arguments(query, key, value, mask, bias, sinks, options, order)
    arguments, travel, (number,) = agree_on("ring_attention", arguments, ranks, dense=False)
    assert travel is not None
    output, lse = run_ring(arguments, travel, ranks.axes[0], number)
    output = output.to(arguments.query.dtype)
    return AttentionResult(output, lse) if return_lse else output


def run_ring(
    arguments: Arguments, travel: Travel, axis: Axis, number: int
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp, in float32 or better, of arguments on which all ranks agree.

    Args:
        arguments: this rank's.
        travel: which keys travel between the ranks of the axis.
        axis: the ranks.
        number: the number of the call on the axis.
    """
    places = travel.order.places[axis.rank]
    ranges = None if travel.ranges is None else travel.ranges.rows(places)
    call = _Call(axis, travel, Queries(places, ranges, arguments.options), number)
    with torch.autocast("cpu", enabled=False):
        return _Ring.apply(call, *arguments.tensors)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, eq=False)
class _Call:
    """What a call has besides its tensors.

    Attributes:
        axis: the ranks.
        travel: which keys travel.
        queries: this rank's queries.
        number: the number of the call.
    """

    axis: Axis
    travel: Travel
    queries: Queries
    number: int


class _Ring(torch.autograd.Function):
    """The forward and the backward pass of one rank."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        call: _Call,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        merged = Merged(query, value.shape[3], sinks)
        for part in _parts(call, key, value):
            if part.key is not None and part.value is not None:
                compute(call.queries, query, part.key, part.value, bias, part.places, merged)
        output, lse = merged.result()
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(query, key, value, bias, sinks, output, lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        call: _Call = ctx.call
        *tensors, output, lse = ctx.saved_tensors
        (number,) = agree_on_backward(Ranks((call.axis,)), "ring_attention", call.number)
        call = replace(call, number=number)
        results = Results(
            output,
            lse,
            torch.zeros_like(output) if grad_output is None else grad_output,
            torch.zeros_like(lse) if grad_lse is None else grad_lse,
        )
        with torch.autocast("cpu", enabled=False):
            gradients = _backward(call, tensors, results, ctx.needs_input_grad[1:])
        return None, *gradients


def _backward(
    call: _Call, tensors: list[Any], results: Results, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """Return the gradients of the five tensors; None for those that are not needed."""
    query, key, value, bias, sinks = tensors
    wide = results.output.dtype
    sums = [
        None if t is None else torch.zeros(t.shape, dtype=wide) for t in (query, key, value, bias)
    ]
    grad_query, grad_key, grad_value, grad_bias = sums
    assert grad_query is not None
    assert grad_key is not None
    assert grad_value is not None
    returning = _Returning(call, grad_key, grad_value) if needed[1] or needed[2] else None
    for part in _parts(call, key, value):
        gradients: tuple[Tensor, Tensor] | None = None
        if part.key is not None and part.value is not None:
            gradients = differentiate(
                *(call.queries, query, part.key, part.value, bias, part.places),
                *(results, grad_query, grad_bias),
            )
        if returning is not None:
            returning.send(part, gradients)
    if returning is not None:
        returning.finish()
    grad_sinks = None if sinks is None else _sinks_gradient(sinks, results)
    found = (grad_query, grad_key, grad_value, grad_bias, grad_sinks)
    return [
        gradient.to(tensor.dtype) if need and gradient is not None and tensor is not None else None
        for gradient, tensor, need in zip(found, tensors, needed, strict=True)
    ]


def _sinks_gradient(sinks: Tensor, results: Results) -> Tensor:
    """Return −Σ exp(sink − lse) (dO · O − dlse): a sink is a key whose value is 0."""
    weight = torch.exp(sinks.to(results.lse.dtype).view(-1, 1) - results.lse)
    delta = (results.grad_output * results.output).sum(dim=-1) - results.grad_lse
    return -(weight * delta).sum(dim=(0, 2), dtype=torch.float64)


class _Part(NamedTuple):
    """Keys that this rank computes with in a round, its own before the first.

    Attributes:
        round: step and number of the round; None: the keys are this rank's own.
        places: int64, the places of the keys among all tokens.
        key: (B, Hkv, keys, D); None: no keys arrive in this round, like value.
        value: (B, Hkv, keys, Dv).
    """

    round: tuple[int, int] | None
    places: Tensor
    key: Tensor | None
    value: Tensor | None


def _parts(call: _Call, key: Tensor, value: Tensor) -> Iterator[_Part]:
    """Yield this rank's keys and those of every round. A round's messages are under way while the last part is used."""
    travel, rounds = call.travel, call.travel.rounds
    places = travel.order.places
    arriving = _start_round(call, 0, key, value)
    yield _Part(None, places[call.axis.rank], key, value)
    for number, round_ in enumerate(rounds):
        following = _start_round(call, number + 1, key, value)
        wait, message = arriving
        wait()
        received = travel.received(call.axis.rank, round_)
        if received is None:
            yield _Part(round_, places[call.axis.rank][:0], None, None)
        else:
            sender, indices = received
            keys, values = _unpacked(message, key, value, len(indices))
            yield _Part(round_, places[sender][indices], keys, values)
        arriving = following


def _start_round(call: _Call, number: int, key: Tensor, value: Tensor) -> tuple[Wait, Tensor]:
    """Start the messages of a round, if there is one; return how to wait for them, and the memory of what arrives."""
    travel, rank = call.travel, call.axis.rank
    if number >= len(travel.rounds):
        return _do_nothing, key
    sent = travel.sent(rank, travel.rounds[number])
    received = travel.received(rank, travel.rounds[number])
    message = _empty_message(key, value, 0 if received is None else len(received[1]), key.dtype)
    wait = call.axis.start(
        first_tag(call.number) + 2 * number,
        {} if sent is None else {sent[0]: _packed(key, value, sent[1])},
        {} if received is None else {received[0]: message},
    )
    return wait, message


def _do_nothing() -> None:
    """Wait for nothing."""


class _Returning:
    """Gradients of keys and values on their way back to their owners, which add them.

    Args:
        call: the call.
        grad_key: (B, Hkv, tokens of this rank, D), where gradients of this rank's keys are added.
        grad_value: (B, Hkv, tokens of this rank, Dv), likewise.
    """

    def __init__(self, call: _Call, grad_key: Tensor, grad_value: Tensor) -> None:
        self._call: _Call = call
        self._sums: tuple[Tensor, Tensor] = grad_key, grad_value
        self._under_way: tuple[Wait, Tensor, Tensor | None] | None = None

    def send(self, part: _Part, gradients: tuple[Tensor, Tensor] | None) -> None:
        """Send the gradients of a part to its owner, and add those that came for the round before."""
        grad_key, grad_value = self._sums
        if part.round is None:
            if gradients is not None:
                grad_key += gradients[0]
                grad_value += gradients[1]
            return
        travel, rank = self._call.travel, self._call.axis.rank
        received, sent = travel.received(rank, part.round), travel.sent(rank, part.round)
        outgoing: dict[int, Tensor] = {}
        if received is not None:
            owner, indices = received
            message = _empty_message(grad_key, grad_value, len(indices), grad_key.dtype)
            if gradients is None:
                message.zero_()
            else:
                torch.cat([gradient.reshape(-1) for gradient in gradients], out=message)
            outgoing[owner] = message
        indices = None if sent is None else sent[1]
        count = 0 if indices is None else len(indices)
        message = _empty_message(grad_key, grad_value, count, grad_key.dtype)
        tag = first_tag(self._call.number) + 2 * travel.rounds.index(part.round) + 1
        wait = self._call.axis.start(tag, outgoing, {} if sent is None else {sent[0]: message})
        self.finish()
        self._under_way = wait, message, indices

    def finish(self) -> None:
        """Add what is under way to the gradients of this rank's keys."""
        if self._under_way is None:
            return
        wait, message, indices = self._under_way
        wait()
        if indices is not None:
            grad_key, grad_value = self._sums
            key, value = _unpacked(message, grad_key, grad_value, len(indices))
            grad_key.index_add_(2, indices, key)
            grad_value.index_add_(2, indices, value)
        self._under_way = None


def _packed(key: Tensor, value: Tensor, indices: Tensor) -> Tensor:
    """Return some keys and their values as one message."""
    return torch.cat(
        [key.index_select(2, indices).reshape(-1), value.index_select(2, indices).reshape(-1)]
    )


def _empty_message(key: Tensor, value: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return the memory of a message of so many keys and values."""
    B, Hkv, _, D = key.shape
    return torch.empty(B * Hkv * count * (D + value.shape[3]), dtype=dtype)


def _unpacked(message: Tensor, key: Tensor, value: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a message."""
    B, Hkv, _, D = key.shape
    split = B * Hkv * count * D
    return message[:split].view(B, Hkv, count, D), message[split:].view(
        B, Hkv, count, value.shape[3]
    )
