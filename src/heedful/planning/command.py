"""The command `heedful plan`: from options to predictions, printed."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import Any

import torch

from heedful.parallel import AttentionSizes, Hardware, Rate, plan
from heedful.planning.options import read_amount, read_count, read_dtype, read_mask
from heedful.planning.rates import measure_rate, measured_peak
from heedful.planning.text import as_text
from heedful.screen import print_out, with_unit

MEASURED: str = "measured"


def print_plan(
    *,
    tokens: str,
    ranks: int,
    sizes: dict[str, int],
    dtype: str,
    mask: str,
    bandwidth: str,
    latency: float,
    flops: str,
    float32_flops: str | None,
    json: bool,
) -> None:
    """Print what attention over many ranks would take, and which split of the ranks is the best.

    Args:
        tokens: the number of all tokens, such as "1M".
        ranks: how many ranks there are.
        sizes: batch, query_heads, key_heads, head_size and value_size.
        dtype: the short name of the dtype of query, key and value.
        mask: "causal", "full", "window:SIZE" or "documents:LENGTH,…".
        bandwidth: bytes per second of each rank, such as "50GB/s".
        latency: microseconds of a message.
        flops: how many FLOP/s attention reaches on a rank, or "measured".
        float32_flops: the same in float32; None: as many.
        json: print one JSON document instead of text.

    Raises:
        ArgumentError: an option cannot be used.
    """
    count, number = read_count("--tokens", tokens), read_dtype(dtype)
    attention = AttentionSizes(**sizes, dtype=number)
    read = read_mask(mask, count)
    per_second = read_amount("--bandwidth", bandwidth, "B/s")
    rate, wide_rate, source = _rates(flops, float32_flops, attention)
    hardware = Hardware(rate, wide_rate, per_second, latency * 1e-6)
    found = plan(read, count, ranks, attention, hardware)
    problem = {"tokens": count, "ranks": ranks, **sizes, "dtype": dtype, "mask": mask}
    if json:
        print_out(json_module.dumps(problem | {"hardware": asdict(hardware)} | _as_json(found)))
    else:
        print_out(as_text(found, problem, _hardware_line(hardware, source), sys.stdout))


def _rates(flops: str, float32_flops: str | None, sizes: AttentionSizes) -> tuple[Rate, Rate, str]:
    """Return how fast attention is computed in its dtype and in float32, and where that comes from."""
    if flops != MEASURED:
        number = read_amount("--flops", flops, "FLOP/s")
        rate = wide_rate = Rate(number, number)
        source = "as given"
    else:
        rate = wide_rate = measure_rate(sizes, sizes.dtype)
        if float32_flops is None and sizes.narrow < 4:
            wide_rate = measure_rate(sizes, torch.float32)
        peak = measured_peak()
        share = f", {wide_rate.forward / peak:.0%} of the peak of float32" if peak else ""
        source = f"measured here on {torch.get_num_threads()} threads{share}"
    if float32_flops is not None:
        number = read_amount("--float32-flops", float32_flops, "FLOP/s")
        wide_rate = Rate(number, number)
    return rate, wide_rate, source


def _hardware_line(hardware: Hardware, source: str) -> str:
    rate, wide = hardware.rate, hardware.wide_rate
    forward, backward = (
        with_unit(number, "FLOP/s", 1000) for number in (rate.forward, rate.backward)
    )
    line = f"Each rank computes {forward} forward and {backward} backward ({source})"
    if wide != rate:
        line += f", in float32 {with_unit(wide.forward, 'FLOP/s', 1000)} forward"
    bandwidth = with_unit(hardware.bandwidth, "B/s", 1000)
    latency = f" after {hardware.latency * 1e6:g} µs" if hardware.latency else ""
    return f"{line}; it sends and receives {bandwidth}{latency}."


def _as_json(found: Any) -> dict[str, Any]:
    splits = [
        {"name": split.name, "seconds": split.seconds} | asdict(split) for split in found.splits
    ]
    refused = [{"name": name, "reason": reason} for name, reason in found.refused]
    return {"splits": splits, "refused": refused, "best": found.best.name, "reason": found.reason}
