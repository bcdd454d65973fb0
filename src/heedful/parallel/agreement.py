"""The first exchange of a pass: every rank tells every other what it is about to compute, or why it cannot."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from heedful.errors import HeedfulError, KernelError, RankError
from heedful.parallel.axes import AGREEMENT_TAG, Axis, Ranks

T = TypeVar("T")
MESSAGE_BYTES: int = 4096
_LONGEST_FACT, _LONGEST_FAILURE = 150, 600  # characters, so that a message holds them


@dataclass(frozen=True)
class Prepared(Generic[T]):
    """What a rank found out about its own arguments.

    Attributes:
        value: what the pass needs of them.
        facts: what must be equal on all ranks.
        seed: int64 (), a seed, of which the first rank's is taken; None: the pass needs none.
    """

    value: T
    facts: Mapping[str, object]
    seed: Tensor | None = None


class Agreement(NamedTuple, Generic[T]):
    """What all ranks agree on.

    Attributes:
        value: this rank's `Prepared.value`.
        seed: int64 (), the first rank's seed.
        numbers: the number of this call on each axis.
    """

    value: T
    seed: Tensor
    numbers: tuple[int, ...]


class _Told(NamedTuple):
    """What a rank tells the others.

    Attributes:
        facts: what must be equal.
        seed: its seed.
        number: how many calls it has made on the axis before, equal as well.
        failure: the rank at fault and the cause, if anything is wrong already.
    """

    facts: dict[str, str]
    seed: int = 0
    number: int = 0
    failure: tuple[int, str] | None = None


def agree(ranks: Ranks, prepare: Callable[[], Prepared[T]]) -> Agreement[T]:
    """Return what `prepare` finds out, if all ranks agree on its facts.

    Args:
        ranks: who has to agree.
        prepare: checks this rank's arguments.

    Raises:
        RankError: another rank has other facts, could not check its arguments, does not answer, or has ended.
        HeedfulError: this rank could not check its arguments; the others get to know.
    """
    error: HeedfulError | None = None
    prepared: Prepared[T] | None = None
    try:
        prepared = prepare()
        facts = {name: str(fact)[:_LONGEST_FACT] for name, fact in prepared.facts.items()}
        told = _Told(facts, 0 if prepared.seed is None else int(prepared.seed))
    except HeedfulError as own:
        error = own
        axis = ranks.axes[-1]
        told = _Told({}, failure=(axis.name(axis.rank), str(own)[:_LONGEST_FAILURE]))
    numbers = tuple(axis.next_call() for axis in ranks.axes)
    # What the ranks of one axis notice, those of the next get to know.
    for axis, number in reversed(list(zip(ranks.axes, numbers, strict=True))):
        try:
            told = _common(axis, _exchange(axis, told._replace(number=number)))
        except RankError as other:
            error = error or other
            told = _Told({}, failure=(other.rank, other.cause))
    if error is not None:
        raise error
    if told.failure is not None:
        raise RankError(*told.failure)
    assert prepared is not None
    return Agreement(prepared.value, torch.tensor(told.seed, dtype=torch.int64), numbers)


def _exchange(axis: Axis, told: _Told) -> list[_Told]:
    """Return what every rank of an axis tells."""
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    text = json.dumps(told, ensure_ascii=False).encode()
    assert len(text) <= MESSAGE_BYTES
    mine = torch.frombuffer(bytearray(text.ljust(MESSAGE_BYTES)), dtype=torch.uint8)
    messages = {rank: torch.empty_like(mine) for rank in others}
    axis.start(AGREEMENT_TAG, dict.fromkeys(others, mine), messages)()
    messages[axis.rank] = mine
    return [_read(messages[rank]) for rank in range(axis.size)]


def _read(message: Tensor) -> _Told:
    facts, seed, number, failure = json.loads(message.numpy().tobytes())
    return _Told(facts, seed, number, None if failure is None else (failure[0], failure[1]))


def _common(axis: Axis, told: list[_Told]) -> _Told:
    """Return what all ranks tell; or the first failure; or the first difference, as a failure of the minority."""
    for one in told:
        if one.failure is not None:
            return one
    everything = [one.facts | {"number of the call": str(one.number)} for one in told]
    for name in dict.fromkeys(name for facts in everything for name in facts):
        values = [facts.get(name, "nothing of that kind") for facts in everything]
        usual = Counter(values).most_common(1)[0][0]  # the first rank's, if there is no majority
        for rank, value in enumerate(values):
            if value != usual:
                like = (str(axis.name(r)) for r, other in enumerate(values) if other == usual)
                cause = f"{name}: expected {usual}, as on rank {', '.join(like)}; received {value}"
                return _Told({}, failure=(axis.name(rank), cause))
    return told[0]


def agree_on_backward(ranks: Ranks, call: str, number: int) -> tuple[int, ...]:
    """Begin a backward pass on all ranks, that of the same call, and return its own number on each axis.

    Raises:
        KernelError: the pass is to be differentiated itself.
        RankError: another rank differentiates another call, does not answer, or has ended.
    """
    if torch.is_grad_enabled():
        raise KernelError(
            f"{call} cannot be differentiated twice: its gradients have no graph. Pass create_graph=False, "
            "or compute gradients of gradients in one process, attention(…, kernel='reference')."
        )
    facts = {"call": f"the backward pass of {call}", "call to differentiate": number}
    return agree(ranks, lambda: Prepared(None, facts)).numbers


def describe(tensor: Tensor | None, **free: int) -> str:
    """Return a tensor's dtype and shape, for the facts of a rank.

    Args:
        tensor: the tensor; None is described, too.
        **free: names of dimensions whose size may differ between ranks, and which they are.
    """
    if tensor is None:
        return "none"
    names: dict[int, Any] = {dim % max(tensor.dim(), 1): name for name, dim in free.items()}
    shape = ", ".join(str(names.get(dim, size)) for dim, size in enumerate(tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} ({shape})"


def digest(*tensors: Tensor) -> str:
    """Return a short text that differs between different tensors."""
    hashed = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
