"""Ranks that are threads of one process: the same code as on many machines, for tests and for trying out."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(eq=False)
class _Letter:
    """A message under way.

    Attributes:
        message: what the sender has in memory.
        taken: whether the receiver has copied it.
    """

    message: Tensor
    taken: bool = False


class _Post:
    """Delivers messages between threads. Like gloo, it keeps no copy of them."""

    def __init__(self, ranks: int, timeout: float) -> None:
        self.ranks: int = ranks
        self._timeout: float = timeout
        self._changed: threading.Condition = threading.Condition()
        self._letters: dict[tuple[int, int, int], deque[_Letter]] = {}
        self._left: set[int] = set()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def send(self, sender: int, receiver: int, tag: int, message: Tensor) -> _Letter:
        letter = _Letter(message)
        with self._changed:
            self._letters.setdefault((sender, receiver, tag), deque()).append(letter)
            self._changed.notify_all()
        return letter

    def receive(self, sender: int, receiver: int, tag: int, message: Tensor) -> None:
        with self._changed:
            letters = self._letters.setdefault((sender, receiver, tag), deque())
        self._wait(sender, lambda: bool(letters))
        letter = letters.popleft()
        message.copy_(letter.message)
        with self._changed:
            letter.taken = True
            self._changed.notify_all()

    def wait_until_taken(self, receiver: int, letter: _Letter) -> None:
        self._wait(receiver, lambda: letter.taken)

    def _wait(self, other: int, done: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: done() or other in self._left, self._timeout)
            if done():
                return
            ended = other in self._left
        raise RankError(
            other, "it has ended" if ended else f"it did not answer within {self._timeout} s"
        )


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
        sent = {
            self._numbers[peer]: self._post.send(self._number, self._numbers[peer], tag, tensor)
            for peer, tensor in send.items()
        }

        @torch.no_grad()
        def wait() -> None:
            for peer, tensor in receive.items():
                self._post.receive(self._numbers[peer], self._number, tag, tensor)
            for receiver, letter in sent.items():
                self._post.wait_until_taken(receiver, letter)

        return wait
