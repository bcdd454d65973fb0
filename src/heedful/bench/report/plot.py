"""Time against length and memory against length, as a picture."""

# What is imported here comes with the extra:
# pyright: reportMissingImports=false
from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.bench.measuring import Budget, take_turns
from heedful.bench.peers import EXTRA
from heedful.bench.settings import Setting
from heedful.bench.worker import Worker
from heedful.errors import ArgumentError, MissingExtraError

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
QUICK_LENGTHS = (32, 64)
HEADS, HEAD_SIZE = 8, 64
TURNS = Budget(seconds=1.0, least_turns=3)
NAMES = {
    "heedful": "heedful.attention()",
    "sdpa": "PyTorch's scaled_dot_product_attention()",
    "textbook": "scores, weights, output one by one",
}
FORMATS = (".png", ".svg")


def check(path: Path) -> None:
    """Find out now whether a picture can be drawn.

    Raises:
        ArgumentError: the name ends in no format there is.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(
            "--plot",
            expected="a name that ends in .png or .svg",
            received=str(path),
            remedy="The ending says which of the two is drawn.",
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--plot", EXTRA) from error


def picture(path: Path, *, quick: bool, announce: Callable[[str], None]) -> bytes:
    """Measure causal attention over lengths and draw it, in the format of the file's name.

    Args:
        path: names the format only.
        quick: a few short lengths.
        announce: told what begins.
    """
    lengths = QUICK_LENGTHS if quick else LENGTHS
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    memory: dict[str, list[float]] = {name: [] for name in NAMES}
    for length in lengths:
        announce(f"the plot at {length} tokens")
        setting = Setting(1, HEADS, length, HEAD_SIZE, mask="causal")
        for name, (seconds, added) in _measure(setting).items():
            times[name].append(seconds)
            memory[name].append(added)
    return _draw(lengths, times, memory, path.suffix.lower().removeprefix("."))


def _measure(setting: Setting) -> dict[str, tuple[float, float]]:
    """Seconds and bytes of one call of each."""
    workers = {name: Worker(name, setting) for name in NAMES}
    try:
        added = {name: worker.memory() for name, worker in workers.items()}
        times = take_turns({name: worker.seconds for name, worker in workers.items()}, TURNS)
    finally:
        for worker in workers.values():
            worker.close()
    return {name: (times.median(name), added[name]) for name in NAMES}


def _draw(
    lengths: tuple[int, ...],
    times: dict[str, list[float]],
    memory: dict[str, list[float]],
    form: str,
) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, label in NAMES.items():
        left.plot(lengths, [seconds * 1e3 for seconds in times[name]], "o-", label=label)
        right.plot(lengths, [added / 2**20 for added in memory[name]], "o-", label=label)
    _label(left, lengths, "milliseconds per call")
    _label(right, lengths, "MiB that one call adds")
    left.set_yscale("log")
    right.set_yscale("symlog", linthresh=1)
    right.set_ylim(bottom=0)
    left.legend(frameon=False)
    figure.suptitle(f"Causal attention, {HEADS} heads, head size {HEAD_SIZE}, fp32")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form, metadata={"Date": None} if form == "svg" else None)
    return drawn.getvalue()


def _label(axes: Any, lengths: tuple[int, ...], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xlabel("tokens")
    axes.set_title(what)
    axes.grid(alpha=0.3)
