"""The groups that ranks form, with one operation: to start messages, and wait for them later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from heedful.errors import ArgumentError, RankError

T = TypeVar("T")
Wait = Callable[[], None]


class Axis(Protocol):
    """Some ranks that send messages to one another.

    Attributes:
        rank: the place of this rank among them.
        size: how many they are.
    """

    rank: int
    size: int

    def name(self, rank: int) -> int:
        """Return the number that a rank has among all processes."""
        ...

    def start(self, tag: int, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> Wait:
        """Start messages to and from other ranks, and return a function that waits for them.

        Args:
            tag: the number of the messages, equal on both sides.
            send: what each of these ranks gets: contiguous, and not to be written to before the end of the wait.
            receive: the memory for what each of these ranks sends.

        Raises:
            RankError: in the wait, a rank has ended or does not answer in time. The messages to the others are sent.
        """
        ...

    def next_call(self) -> int:
        """Return how many calls this rank has made on the axis before."""
        ...


@dataclass
class Traffic:
    """What a rank has sent.

    Attributes:
        bytes: the sizes of queries, keys, values, outputs and gradients.
        agreement_bytes: the sizes of what ranks tell each other of their arguments.
    """

    bytes: int = 0
    agreement_bytes: int = 0


_counted: ContextVar[Traffic | None] = ContextVar("traffic", default=None)
AGREEMENT_TAG: int = 0


def first_tag(number: int) -> int:
    """Return the first tag of a call's messages.

    Calls that follow one another have different ones, so that what is left of a call that failed is never taken for a
    message of the next.
    """
    return 1 + (number % 2**14 << 16)


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count what this rank sends, in the thread that enters the context.

    Yields:
        The counts, which grow while the context lasts.

    Examples:
        >>> with count_traffic() as traffic:
        ...     pass
        >>> traffic.bytes
        0
    """
    token = _counted.set(Traffic())
    try:
        counted = _counted.get()
        assert counted is not None
        yield counted
    finally:
        _counted.reset(token)


def count_sent(tag: int, send: Mapping[int, Tensor]) -> None:
    """Add messages to the counts of this thread, if it counts."""
    counted = _counted.get()
    if counted is None:
        return
    sent = sum(tensor.numel() * tensor.element_size() for tensor in send.values())
    if tag == AGREEMENT_TAG:
        counted.agreement_bytes += sent
    else:
        counted.bytes += sent


class ProcessAxis:
    """The ranks of a process group of `torch.distributed`."""

    _calls: dict[str, int] = {}  # noqa: RUF012 - by the group's name, which is unique in a process

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group: dist.ProcessGroup = group
        self.rank: int = group.rank()
        self.size: int = group.size()

    def name(self, rank: int) -> int:
        return dist.get_global_rank(self.group, rank)

    def next_call(self) -> int:
        name = self.group.group_name
        self._calls[name] = self._calls.get(name, -1) + 1
        return self._calls[name]

    def start(self, tag: int, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> Wait:
        count_sent(tag, send)
        failures: list[RankError] = []

        def attempt(peer: int, act: Callable[[], T]) -> T | None:
            """Keep a failure for later: the other ranks shall get their messages first."""
            try:
                with self._named(peer):
                    return act()
            except RankError as error:
                failures.append(error)

        def started(
            operation: Callable[..., dist.Work | None], side: str, messages: Mapping[int, Tensor]
        ) -> list[tuple[int, dist.Work]]:
            start_one = partial(operation, group=self.group, tag=tag)
            works = [
                (peer, attempt(peer, partial(start_one, tensor, **{side: peer})))
                for peer, tensor in messages.items()
                if tensor.numel()
            ]
            return [(peer, work) for peer, work in works if work is not None]

        sent = started(dist.isend, "group_dst", send)
        received = started(dist.irecv, "group_src", receive)

        def wait() -> None:
            for peer, work in sent:
                attempt(peer, work.wait)
            for peer, work in received:
                if not failures:
                    attempt(peer, work.wait)
            if failures:
                raise failures[0]

        return wait

    @contextmanager
    def _named(self, peer: int) -> Iterator[None]:
        """Raise the errors of PyTorch as errors that name a rank."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            if "Timed out" in reason:
                cause = "it did not answer within the group's timeout: it hangs, or has not made this call"
            else:
                cause = "it has ended, or its connection is lost"
            raise RankError(self.name(peer), f"{cause} ({reason})") from error


@dataclass(frozen=True)
class SimulatedMesh:
    """The ranks that `simulate` runs, as one of them sees them.

    Attributes:
        axes: one axis for each dimension.
    """

    axes: tuple[Axis, ...]


Group = dist.ProcessGroup | DeviceMesh | SimulatedMesh


@dataclass(frozen=True)
class Ranks:
    """All ranks of a group or mesh, in one row: the last axis runs fastest.

    Attributes:
        axes: the axes of the mesh; one for a group.
    """

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def rank(self) -> int:
        """The place of this rank."""
        place = 0
        for axis in self.axes:
            place = place * axis.size + axis.rank
        return place


def ranks_of(group: Group, *, dimensions: tuple[int, ...] = (1, 2)) -> Ranks:
    """Return the ranks of a group.

    Raises:
        ArgumentError: the group is none, this process is no part of it, or it has another number of dimensions.
    """
    axes: tuple[Axis, ...] = ()
    if isinstance(group, SimulatedMesh):
        axes = group.axes
    elif isinstance(group, DeviceMesh) and group.get_coordinate() is not None:
        axes = tuple(ProcessAxis(group.get_group(axis)) for axis in range(group.ndim))
    elif isinstance(group, dist.ProcessGroup) and group.rank() >= 0:
        axes = (ProcessAxis(group),)
    if len(axes) not in dimensions:
        raise ArgumentError(
            "group",
            expected=f"a process group or a DeviceMesh of {' or '.join(map(str, dimensions))} dimensions "
            "that this process is part of",
            received=f"{type(group).__name__} of {len(axes)} dimensions" if axes else repr(group),
            remedy="torch.distributed.init_device_mesh('cpu', (ranks,)) makes one; simulate() runs without processes.",
        )
    return Ranks(axes)
