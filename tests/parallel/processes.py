"""Real processes with gloo: what they run, and how a test starts them."""

import json
import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from parallel_cases import make_call, of_one_rank, order_of

from heedful.errors import HeedfulError
from heedful.masks import Causal, Documents, Sinks, Window
from heedful.parallel import (
    contiguous_order,
    mesh_attention,
    ring_attention,
    ulysses_attention,
)
from heedful.parallel.axes import ProcessAxis

TIMEOUT = 3.0  # seconds that a rank waits for another, in the tests of failures
SEED = 5


def run(function, ranks, folder: Path, *arguments) -> None:
    """Run a function of (rank, …) in processes that form a group; they meet by a file in the folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["processes"])
    processes = [
        context.Process(target=_member, args=(function, rank, ranks, folder, *arguments))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode is not None, "a process hangs"


def _member(function, rank, ranks, folder, *arguments):
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT if function is fail else 60)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=timeout)
    function(rank, ranks, folder, *arguments)
    if function is not fail:
        dist.destroy_process_group()


def cases(ranks):
    """Return functions with calls and the sizes of their mesh."""
    ids = torch.tensor([0] * 9 + [1] * 20 + [2] * 3 + [3] * 18)
    window = make_call(
        2, 8, 2, 50, 8, 6, Causal() & (Sinks(2) | Window(9)), bias=(8, 50, 50), sinks=True
    )
    packed = make_call(1, 8, 4, 50, 4, 4, Causal() & Documents(ids), dropout_p=0.4, softcap=3.0)
    found = [(ring_attention, window, (ranks,)), (ring_attention, packed, (ranks,))]
    found += [(ulysses_attention, window, (ranks,)), (ulysses_attention, packed, (ranks,))]
    if ranks % 2 == 0:
        found += [
            (mesh_attention, window, (2, ranks // 2)),
            (mesh_attention, packed, (2, ranks // 2)),
        ]
    return found


def compute(rank, ranks, folder):
    """Save what every case finds on this rank."""
    found = []
    for function, call, sizes in cases(ranks):
        torch.manual_seed(SEED + rank)  # the first rank's seed is that of one process
        group = dist.group.WORLD
        if len(sizes) > 1:
            group = dist.init_device_mesh("cpu", sizes, mesh_dim_names=("ring", "ulysses"))
        found.append(of_one_rank(call, function, group, order_of(call, ranks)))
    torch.save(found, folder / f"{rank}.pt")


def fail(rank, ranks, folder, how, attend=ring_attention):
    """Save the error of this rank, and after how many seconds it came."""
    x = torch.randn(1, 3, 4, 8, requires_grad=True)
    order = contiguous_order(4 * ranks, ranks)
    ring_attention(x, x, x, group=dist.group.WORLD, order=order)  # all are connected
    if rank == 1 and how in ("dies in a round", "hangs in a round"):
        start = ProcessAxis.start
        calls = iter(range(100))
        end = (
            (lambda: os._exit(1)) if how == "dies in a round" else (lambda: time.sleep(3 * TIMEOUT))
        )
        ProcessAxis.start = lambda *a: (next(calls) == 2 and end()) or start(*a)
    began = time.monotonic()
    error = None
    try:
        if rank == 1 and how == "dies":
            os._exit(1)
        if rank == 1 and how == "hangs":
            time.sleep(3 * TIMEOUT)
        if rank == 1 and how == "dies while one waits and one has not called":
            time.sleep(0.3)
            os._exit(1)
        if rank == 0 and how == "dies while one waits and one has not called":
            time.sleep(0.6)
        mine = x.to(torch.float64) if rank == 1 and how == "dtype" else x
        key = mine[:, :1] if rank == 1 and how == "shape" else mine
        mask = Causal() if rank == 1 and how == "mask" else None
        if rank == 1 and how == "fails":
            key = key[:, :, 1:]
        output = attend(mine, key, key, mask, group=dist.group.WORLD, order=order)
        if rank == 1 and how == "dies between the passes":
            os._exit(1)
        output.sum().backward()
    except HeedfulError as caught:
        error = caught
    seconds = time.monotonic() - began
    report = {"error": str(error), "rank": getattr(error, "rank", None), "seconds": seconds}
    (folder / f"{rank}.json").write_text(json.dumps(report))
    time.sleep(0.5)  # the others shall not take this rank's end for the cause
    os._exit(0)
