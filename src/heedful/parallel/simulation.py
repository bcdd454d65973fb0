"""Ranks that are threads of one process: the same code as on many machines, for tests and for trying out."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from heedful.errors import RankError
from heedful.parallel.axes import Axis, SimulatedMesh, Wait, count_sent

T = TypeVar("T")


def simulate(function: Callable[[SimulatedMesh], T], *sizes: int, timeout: float = 60.0) -> list[T]:
    """Run a function on simulated ranks, each a thread of this process, and return what each of them returns.

    Args:
        function: called once for each rank, with the mesh as that rank sees it. It takes the place of a group.
        *sizes: the number of ranks, or the sizes of a mesh of several dimensions.
        timeout: how many seconds a rank waits for a message.

    Returns:
        The results, in the order of the ranks.

    Raises:
        Exception: a rank raised it. If several did, the first that does not blame another rank.

    Examples:
        >>> simulate(lambda group: group.axes[0].rank ** 2, 3)
        [0, 1, 4]
    """
    post = _Post(math.prod(sizes), timeout)
    results: list[T | None] = [None] * post.ranks
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = function(SimulatedMesh(_axes(post, rank, sizes)))
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the caller's thread
            errors[rank] = error
        finally:
            post.leave(rank)

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(post.ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors.items(), key=lambda item: (isinstance(item[1], RankError), item[0]))[1]
    return results  # pyright: ignore[reportReturnType] - every thread has returned


def _axes(post: _Post, rank: int, sizes: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the axes of a mesh as one rank sees them; the last one runs fastest."""
    axes: list[Axis] = []
    step = post.ranks
    for size in sizes:
        step //= size
        place = rank // step % size
        axes.append(
            _ThreadAxis(post, rank, place, [rank + (i - place) * step for i in range(size)])
        )
    return tuple(axes)


class _Post:
    """Delivers messages between threads."""

    def __init__(self, ranks: int, timeout: float) -> None:
        self.ranks: int = ranks
        self._timeout: float = timeout
        self._changed: threading.Condition = threading.Condition()
        self._messages: dict[tuple[int, int, int], deque[Tensor]] = {}
        self._left: set[int] = set()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def send(self, sender: int, receiver: int, tag: int, message: Tensor) -> None:
        with self._changed:
            self._messages.setdefault((sender, receiver, tag), deque()).append(message.clone())
            self._changed.notify_all()

    def receive(self, sender: int, receiver: int, tag: int, message: Tensor) -> None:
        address, deadline = (sender, receiver, tag), time.monotonic() + self._timeout
        with self._changed:
            while not self._messages.get(address):
                if sender in self._left:
                    raise RankError(sender, "it has ended")
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise RankError(sender, f"it did not answer within {self._timeout} s")
            message.copy_(self._messages[address].popleft())


class _ThreadAxis:
    """Ranks that are threads."""

    def __init__(self, post: _Post, number: int, rank: int, numbers: list[int]) -> None:
        self.rank: int = rank
        self.size: int = len(numbers)
        self._post: _Post = post
        self._number: int = number
        self._numbers: list[int] = numbers
        self._calls: int = -1

    def name(self, rank: int) -> int:
        return self._numbers[rank]

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def start(self, tag: int, send: Mapping[int, Tensor], receive: Mapping[int, Tensor]) -> Wait:
        count_sent(tag, send)
        for peer, tensor in send.items():
            self._post.send(self._number, self._numbers[peer], tag, tensor)

        @torch.no_grad()
        def wait() -> None:
            for peer, tensor in receive.items():
                self._post.receive(self._numbers[peer], self._number, tag, tensor)

        return wait
