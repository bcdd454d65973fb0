"""Measure attention over 1, 2, 4 and 8 processes of this machine, and write docs/scaling.md.

    python benchmarks/scaling.py --page docs/scaling.md     all of it, in less than ten minutes on an idle machine
    python benchmarks/scaling.py --quick                    small sizes, to try it; prints the page

Each rank is a process with one thread and the gloo backend. The page states what is measured, what is predicted by
`heedful.parallel.plan`, and the error of the predictions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from heedful import attention
from heedful.bench.machine import this_machine
from heedful.masks import Causal, Documents, Mask, Window
from heedful.parallel import (
    AttentionSizes,
    Hardware,
    MeshSplit,
    ParallelPlan,
    Rate,
    balanced_order,
    count_traffic,
    mesh_attention,
    plan,
    predict_cost,
    ring_attention,
    ulysses_attention,
)
from heedful.parallel.travel import KEYS_PER_MESSAGE
from heedful.planning.rates import measure_rate
from heedful.planning.text import seconds
from heedful.screen import with_unit

TEXT = Path(__file__).with_name("scaling.md")
FASTER_BY, MEMORY_SHARE = 1.6, 1 / 3  # what has to hold: of two ranks, and of a rank of four
SPLITS = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (8, 1), (4, 2), (2, 4), (1, 8)]


@dataclass(frozen=True)
class Sizes:
    """How large the measured attentions are.

    Attributes:
        tokens: of the table of splits.
        long_tokens: of the comparison of two ranks with one.
        memory_tokens: of the comparison of memory.
        runs: how often each is timed.
    """

    tokens: int
    long_tokens: int
    memory_tokens: int
    runs: int


FULL = Sizes(8192, 16_384, 262_144, 3)
QUICK = Sizes(1024, 2048, 32_768, 2)
SHAPE = AttentionSizes(batch=1, query_heads=8, key_heads=2, head_size=64, value_size=64)
FEW_HEADS = AttentionSizes(batch=1, query_heads=2, key_heads=2, head_size=64, value_size=64)
ONE_HEAD = AttentionSizes(batch=1, query_heads=1, key_heads=1, head_size=64, value_size=64)


def on_processes(function: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """Run a function in processes that form a group, and return what each of them returns."""
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_member, args=(function, rank, ranks, folder, arguments))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                sys.exit(f"a process of {function.__name__} ended with {process.exitcode}")
        return [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(ranks)]


def _member(function: Any, rank: int, ranks: int, folder: str, arguments: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(minutes=10),
    )
    torch.save(function(rank, *arguments), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def measure_link(rank: int) -> tuple[float, float]:
    """Return the latency and the bandwidth between two ranks that send to one another at the same time."""

    def exchange(count: int, repeats: int) -> float:
        mine, theirs = torch.zeros(count), torch.zeros(count)
        times: list[float] = []
        for _ in range(repeats):
            dist.barrier()
            start = time.perf_counter()
            for work in [dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)]:
                assert work is not None
                work.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    exchange(1, 3)
    latency = exchange(1, 50)
    message = KEYS_PER_MESSAGE * SHAPE.key_heads * 2 * SHAPE.head_size
    return latency, 4 * message / max(exchange(message, 20) - latency, 1e-9)


@dataclass(frozen=True)
class Run:
    """What one rank measured: seconds of each pass and run, bytes that it sent, and memory that it added."""

    forward: list[float]
    backward: list[float]
    forward_bytes: int
    backward_bytes: int
    memory: int


def run_attention(
    rank: int,
    split: tuple[int, int] | None,
    tokens: int,
    sizes: AttentionSizes,
    runs: int,
    backward: bool,
) -> Run:
    """Time attention on a mesh of (ring, ulysses) ranks; None: in one process, without any."""
    options: dict[str, Any] = {}
    function: Any = attention
    if split is not None:
        function = ring_attention if split[1] == 1 else ulysses_attention
        options["group"] = dist.group.WORLD
        if min(split) > 1:
            function, options["group"] = mesh_attention, dist.init_device_mesh("cpu", split)
    ranks = dist.get_world_size()
    _measure(rank, ranks, function, 16 * ranks, sizes, 1, backward, options)  # connects the ranks
    return _measure(rank, ranks, function, tokens, sizes, runs, backward, options)


def _measure(
    rank: int,
    ranks: int,
    function: Any,
    tokens: int,
    sizes: AttentionSizes,
    runs: int,
    backward: bool,
    options: dict[str, Any],
) -> Run:
    mask, before = Causal(), resident_bytes()
    order = balanced_order(mask, tokens, ranks)
    options = options | ({"order": order} if options else {})
    leaves = _inputs(len(order.places[rank]), sizes, backward)
    run = Run([], [], 0, 0, 0)
    for _ in range(runs):
        dist.barrier()
        with count_traffic() as traffic:
            start = time.perf_counter()
            output = function(*leaves, mask, **options)
            run.forward.append(time.perf_counter() - start)
            sent_forward = traffic.bytes
            dist.barrier()
            if backward:
                towards = torch.ones_like(output)
                start = time.perf_counter()
                torch.autograd.grad(output, leaves, towards)
                run.backward.append(time.perf_counter() - start)
        run = replace(run, forward_bytes=sent_forward, backward_bytes=traffic.bytes - sent_forward)
        del output
    return replace(run, memory=peak_resident_bytes() - before)


def _inputs(tokens: int, sizes: AttentionSizes, backward: bool) -> list[torch.Tensor]:
    """Return random query, key and value."""
    heads = sizes.query_heads, sizes.key_heads, sizes.key_heads
    numbers = sizes.head_size, sizes.head_size, sizes.value_size
    return [
        torch.randn(sizes.batch, h, tokens, d).requires_grad_(backward)
        for h, d in zip(heads, numbers, strict=True)
    ]


def resident_bytes() -> int:
    """Return the memory of this process, and begin to note its peak anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Return the most memory of this process since then."""
    return _status("VmHWM")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return 1024 * int(found[1])


def slowest(runs: list[Run], times: str) -> float:
    """Return the median of the times until the last rank has ended."""
    return statistics.median(
        max(each) for each in zip(*(getattr(run, times) for run in runs), strict=True)
    )


def name_of(split: tuple[int, int]) -> str:
    """Return the name of a split, as `heedful plan` has it."""
    ring, ulysses = split
    if ulysses == 1:
        return f"ring {ring}"
    return f"Ulysses {ulysses}" if ring == 1 else f"ring {ring} × Ulysses {ulysses}"


def splits_table(sizes: Sizes, rate: Rate, latency: float, bandwidth: float) -> str:
    """Return measured and predicted times, bytes and memory of all splits of up to 8 ranks."""
    cores = this_machine().cores
    titles = ["bytes sent", "predicted", "memory", "predicted"]
    rows = [
        ["split", *["forward", "predicted", "error"], *["backward", "predicted", "error"], *titles]
    ]
    errors: list[float] = []
    for split in SPLITS:
        ranks = split[0] * split[1]
        share = min(1.0, cores / ranks)  # of a core, that each rank has
        slower = Rate(rate.forward * share, rate.backward * share)
        hardware = Hardware(slower, slower, bandwidth * share, latency)
        predicted = _split_of(plan(Causal(), sizes.tokens, ranks, SHAPE, hardware), split)
        runs = on_processes(run_attention, ranks, split, sizes.tokens, SHAPE, sizes.runs, True)
        order = balanced_order(Causal(), sizes.tokens, ranks)
        cost = predict_cost(Causal(), order, SHAPE, ulysses=split[1])
        counted = (
            tuple(run.forward_bytes for run in runs),
            tuple(run.backward_bytes for run in runs),
        )
        assert counted == (cost.forward_bytes, cost.backward_bytes), "bytes differ from prediction"
        row = [name_of(split)]
        for measured, expected in (
            (slowest(runs, "forward"), predicted.forward_seconds),
            (slowest(runs, "backward"), predicted.backward_seconds),
        ):
            errors.append(expected / measured - 1)
            row += [seconds(measured), seconds(expected), f"{errors[-1]:+.0%}"]
        sent = max(run.forward_bytes + run.backward_bytes for run in runs)
        memory = max(run.memory for run in runs)
        row += [with_unit(sent, "B"), with_unit(predicted.sent_bytes, "B")]
        row += [with_unit(memory, "B"), with_unit(predicted.memory_bytes, "B")]
        rows.append(row)
    mean = statistics.mean(map(abs, errors))
    note = f"The predicted times are off by {mean:.0%} on average, and by {max(errors, key=abs):+.0%} at most."
    return f"{_markdown(rows)}\n\n{note}"


def _split_of(found: ParallelPlan, split: tuple[int, int]) -> MeshSplit:
    return next(s for s in found.splits if (s.ring, s.ulysses) == split)


def two_ranks(sizes: Sizes) -> str:
    """Return how much faster two ranks are than one, on one thread each."""
    splits = {"one process, attention()": None, "ring of 1 rank": (1, 1), "ring of 2 ranks": (2, 1)}
    splits["Ulysses on 2 ranks"] = (1, 2)
    found: dict[str, tuple[float, float]] = {}
    for name, split in splits.items():
        ranks = 1 if split is None else split[0] * split[1]
        runs = on_processes(
            run_attention, ranks, split, sizes.long_tokens, FEW_HEADS, sizes.runs, True
        )
        found[name] = slowest(runs, "forward"), slowest(runs, "backward")
    one, ring = found["one process, attention()"], found["ring of 1 rank"]
    rows = [["", "forward", "backward", "both, against attention()", "both, against a ring of 1"]]
    for name, times in found.items():
        ratios = [f"{sum(other) / sum(times):.2f}" for other in (one, ring)]
        rows.append([name, *map(seconds, times), *ratios])
    forward = one[0] / found["ring of 2 ranks"][0]
    both = sum(ring) / sum(found["ring of 2 ranks"])
    verdict = (
        f"Two ranks of a ring are {forward:.2f} times as fast as one process forward, and {both:.2f} times as fast as "
        f"a ring of one rank in both passes; {FASTER_BY} is required: "
        f"{'it holds' if min(forward, both) >= FASTER_BY else 'it does not hold'}."
    )
    return f"{_markdown(rows)}\n\n{verdict}"


def long_memory(sizes: Sizes) -> str:
    """Return how much memory a rank of four adds, as a share of what one process adds."""
    (one,) = on_processes(run_attention, 1, None, sizes.memory_tokens, ONE_HEAD, 1, False)
    runs = on_processes(run_attention, 4, (4, 1), sizes.memory_tokens, ONE_HEAD, 1, False)
    most = max(run.memory for run in runs)
    rows = [["", "memory that it adds", "share"]]
    rows.append(["one process, attention()", with_unit(one.memory, "B"), "1"])
    for rank, run in enumerate(runs):
        rows.append(
            [f"rank {rank} of 4", with_unit(run.memory, "B"), f"{run.memory / one.memory:.2f}"]
        )
    holds = "it holds" if most <= MEMORY_SHARE * one.memory else "it does not hold"
    verdict = (
        f"The largest share is {most / one.memory:.2f}; {MEMORY_SHARE:.2f} is allowed: {holds}."
    )
    return f"{_markdown(rows)}\n\n{verdict}"


def predictions() -> str:
    """Return what 1M tokens would take on 64 GPUs."""
    tokens, ranks = 2**20, 64
    sizes = AttentionSizes(1, 32, 8, 128, 128, torch.bfloat16)
    fast, slow = Rate(400e12, 300e12), Rate(40e12, 30e12)
    ids = torch.arange(tokens) // 32_768
    masks: list[tuple[str, Mask]] = [("causal", Causal()), ("window of 4096", Window(4096))]
    masks.append(("causal, packed documents of 32,768 tokens", Causal() & Documents(ids)))
    parts: list[str] = []
    for name, mask in masks:
        for how, wide in (("float32 in the ring, as it is now", slow), ("bf16 throughout", fast)):
            found = plan(mask, tokens, ranks, sizes, Hardware(fast, wide, 50e9, 5e-6))
            rows = [["split", "forward", "backward", "waiting", "memory", "bytes sent", "busiest"]]
            for split in found.splits:
                bold = "**" if split is found.best else ""
                waiting = f"{split.waiting_seconds / split.seconds:.0%}"
                rows.append(
                    [
                        f"{bold}{split.name}{bold}",
                        seconds(split.forward_seconds),
                        seconds(split.backward_seconds),
                        waiting,
                        with_unit(split.memory_bytes, "B"),
                        with_unit(split.sent_bytes, "B"),
                        f"{split.busiest:.2f}",
                    ]
                )
            parts.append(
                f"### {name.capitalize()}; {how}\n\n{_markdown(rows)}\n\n"
                f"Take {found.best.name}: {found.reason}."
            )
    return "\n\n".join(parts)


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|---" + "|---:" * (len(rows[0]) - 1) + "|")
    return "\n".join(lines)


def make_page(sizes: Sizes) -> str:
    """Measure everything, and return the page."""
    torch.set_num_threads(1)
    machine = this_machine()
    (latency, bandwidth), _ = on_processes(measure_link, 2)
    rate = measure_rate(SHAPE, torch.float32)
    _progress("splits")
    table = splits_table(sizes, rate, latency, bandwidth)
    _progress("two ranks")
    speed = two_ranks(sizes)
    _progress("memory")
    memory = long_memory(sizes)
    _progress("predictions")
    load = os.getloadavg()[2]
    values = {
        "machine": f"{machine.processor}, {machine.cores} cores, torch {machine.torch}, kernel {machine.isa}",
        "quick": ""
        if sizes is FULL
        else "**Measured with small sizes (--quick): the times mean little.**\n\n",
        "busy": ""
        if load <= machine.cores + 1
        else f"**The machine was busy with other work (load {load:.0f}): the times mean little.**\n\n",
        "rate": f"{with_unit(rate.forward, 'FLOP/s', 1000)} forward and "
        f"{with_unit(rate.backward, 'FLOP/s', 1000)} backward",
        "link": f"{with_unit(bandwidth, 'B/s', 1000)} after {latency * 1e6:.0f} µs",
        "tokens": f"{sizes.tokens:,}",
        "long_tokens": f"{sizes.long_tokens:,}",
        "memory_tokens": f"{sizes.memory_tokens:,}",
        "runs": str(sizes.runs),
        "splits_table": table,
        "two_ranks": speed,
        "long_memory": memory,
        "predictions": predictions(),
    }
    page = TEXT.read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], page)


def _progress(stage: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {stage} …", file=sys.stderr, flush=True)


def main() -> None:
    """Read the options, measure, and write or print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--page", type=Path, help="the file to write; default: print it")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["heedful.parallel"])
    page = make_page(QUICK if options.quick else FULL)
    if options.page is None:
        print(page)
    else:
        options.page.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
