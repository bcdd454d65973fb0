"""A plot of time and memory against length."""

# The imports within functions come with the extra "bench":
# pyright: reportMissingImports=false
from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from heedful.bench.worker import Worker
from heedful.bench.workload import AttentionWorkload
from heedful.errors import ArgumentError, MissingExtraError
from heedful.timing import Budget, take_turns

LENGTHS: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
QUICK_LENGTHS: tuple[int, ...] = (32, 64)
HEADS: int = 8
HEAD_SIZE: int = 64
BUDGET: Budget = Budget(seconds=1.0, min_turns=3)  # for each length
LABELS: dict[str, str] = {
    "heedful": "heedful.attention()",
    "sdpa": "PyTorch's scaled_dot_product_attention()",
    "textbook": "scores, weights, output one by one",
}
FORMATS: tuple[str, ...] = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Check whether a plot can be drawn.

    Args:
        path: The file. Its suffix is the format.

    Raises:
        ArgumentError: The suffix is neither .png nor .svg.
        MissingExtraError: Matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(
            "--plot",
            expected="a name that ends in .png or .svg",
            received=str(path),
            remedy="The suffix determines the format.",
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--plot", "pictures") from error


def draw_plot(path: Path, *, quick: bool, announce: Callable[[str], None]) -> bytes:
    """Measure causal attention at several lengths and plot it.

    Args:
        path: The file whose suffix is the format. It is not written.
        quick: Measure at two short lengths only.
        announce: Called with the name of each stage as it begins.

    Returns:
        The content of the file.
    """
    lengths = QUICK_LENGTHS if quick else LENGTHS
    times: dict[str, list[float]] = {name: [] for name in LABELS}
    memory: dict[str, list[float]] = {name: [] for name in LABELS}
    for length in lengths:
        announce(f"the plot at {length} tokens")
        workload = AttentionWorkload(1, HEADS, length, HEAD_SIZE, mask="causal")
        for name, (seconds, added) in _measure(workload).items():
            times[name].append(seconds)
            memory[name].append(added)
    return _draw(lengths, times, memory, path.suffix.lower().removeprefix("."))


def _measure(workload: AttentionWorkload) -> dict[str, tuple[float, float]]:
    """Return the seconds of one call of each contender, and the bytes that it adds."""
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, workload)) for name in LABELS}
        added = {name: worker.memory() for name, worker in workers.items()}
        times = take_turns({name: worker.seconds for name, worker in workers.items()}, BUDGET)
    return {name: (times.median(name), added[name]) for name in LABELS}


def _draw(
    lengths: tuple[int, ...],
    times: dict[str, list[float]],
    memory: dict[str, list[float]],
    file_format: str,
) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, label in LABELS.items():
        left.plot(lengths, [seconds * 1e3 for seconds in times[name]], "o-", label=label)
        right.plot(lengths, [added / 2**20 for added in memory[name]], "o-", label=label)
    _label(left, lengths, "milliseconds per call")
    _label(right, lengths, "MiB that one call adds")
    left.set_yscale("log")
    right.set_yscale("symlog", linthresh=1)
    right.set_ylim(bottom=0)
    left.legend(frameon=False)
    figure.suptitle(f"Causal attention, {HEADS} heads, head size {HEAD_SIZE}, fp32")
    content = io.BytesIO()
    metadata = {"Date": None} if file_format == "svg" else None
    figure.savefig(content, format=file_format, metadata=metadata)
    return content.getvalue()


def _label(axes: Any, lengths: tuple[int, ...], title: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xlabel("tokens")
    axes.set_title(title)
    axes.grid(alpha=0.3)
