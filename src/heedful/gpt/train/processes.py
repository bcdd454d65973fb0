"""The processes of a run: how they begin together, and how they end together."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from heedful.errors import ArgumentError, RankError
from heedful.gpt.train.mesh import choose_mesh, launched_rank
from heedful.gpt.train.ranks import OneRank

TIMEOUT: timedelta = timedelta(minutes=5)  # for an answer of another rank within a step
GRACE: float = (
    5.0  # seconds in which torchrun ends a rank after another failed; then it ends by itself
)
REDISTRIBUTING = "torch.distributed.tensor._redistribute"
FAILURE = "failure"  # the rank that failed first, and why


@contextmanager
def ranks_for(mesh: str | None) -> Iterator[OneRank]:
    """Begin a run with the other processes that torchrun has started, if there are any.

    A rank that fails in the block tells the others, which end too. A rank that has ended makes the others end within
    seconds, and one that does not answer within `TIMEOUT`.

    Args:
        mesh: the value of the option --mesh; None without it.

    Yields:
        This rank.

    Raises:
        ArgumentError: the mesh does not fit the processes.
        RankError: another rank failed, has ended, or does not answer.
    """
    try:
        sizes = choose_mesh(mesh)
    except ArgumentError:
        if launched_rank() > 0:
            time.sleep(GRACE)  # the first rank says it, and torchrun ends the others
        raise
    if sizes is None:
        yield OneRank()
        return
    from heedful.gpt.train.many_ranks import ManyRanks  # takes a second

    logging.getLogger(REDISTRIBUTING).setLevel(logging.ERROR)  # else each rank prints advice to us
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    own = PrefixStore("gloo", store)
    dist.init_process_group("gloo", store=own, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield ManyRanks(sizes, TIMEOUT)
    except BaseException as error:
        if not _follows(error):
            store.compare_set(FAILURE, "", f"{rank} {type(error).__name__}: {error}")
            raise
        raise _first_failure(store, rank, size) from error
    dist.destroy_process_group()


def _follows(error: BaseException) -> bool:
    """Return whether an error says no more than that another rank is missing."""
    if isinstance(error, RankError | dist.DistError):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error)


def _first_failure(store: Store, rank: int, size: int) -> RankError:
    """Return which rank failed, and why: what it said, or that it said nothing. It takes `GRACE`."""
    end = time.monotonic() + GRACE
    try:
        store.set(f"following/{rank}", "")
        time.sleep(max(0.0, end - time.monotonic()))
        if store.check([FAILURE]):
            culprit, _, cause = store.get(FAILURE).decode().partition(" ")
            return RankError(int(culprit), cause)
        others = [other for other in range(size) if other != rank]
        silent = [other for other in others if not store.check([f"following/{other}"])]
    except dist.DistError:  # the first rank keeps the store, if torchrun does not
        silent = [0]
    return RankError(
        silent[0] if silent else rank,
        f"it has ended, or did not answer within {TIMEOUT.total_seconds():.0f} seconds",
    )
