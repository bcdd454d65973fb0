"""The table of benchmark cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from heedful.bench.workload import (
    BERT,
    ENCODER,
    GPT2,
    MINILM,
    SMOLLM2,
    T5,
    AttentionWorkload,
    ModelWorkload,
)
from heedful.errors import ArgumentError


@dataclass(frozen=True)
class BenchCase:
    """One case.

    Attributes:
        name: The name for `--case`. It ends in the dtype.
        group: The heading under which reports list the case.
        workload: What all contenders compute: one attention, or a whole model with its attention replaced.
        peers: The peers that are timed if they are installed. The first one is the baseline.
        measures: "time"; "memory" that one call adds; or "threads": whether results depend on their number.
        peak: The name of the peak that limits the workload. "": none.
        probe_in_turn: Whether the peak is measured in turns with the contenders, for a more accurate share.
        isa: The instruction set that our kernel and the baseline are limited to, in processes of their own. "": none.
        ours: The name of our contender.
    """

    name: str
    group: str
    workload: AttentionWorkload | ModelWorkload
    peers: tuple[str, ...] = ("sdpa",)
    measures: Literal["time", "memory", "threads"] = "time"
    peak: str = ""
    probe_in_turn: bool = False
    isa: str = ""
    ours: str = "heedful"


ALL_PEERS: tuple[str, ...] = (
    "sdpa",
    "textbook",
    "onnxruntime",
    "openvino",
    "jax",
    "x-transformers",
    "zentorch",
)
PEAKS: dict[str, str] = {"fp32": "fma", "bf16": "bf16", "fp16": "fma"}  # that limit the arithmetic

PREFILL: dict[str, AttentionWorkload] = {
    "12x1024x64": AttentionWorkload(1, 12, 1024, 64),
    "12x2048x64": AttentionWorkload(1, 12, 2048, 64),
    "12x4096x64": AttentionWorkload(1, 12, 4096, 64),
    "8x2048x128": AttentionWorkload(1, 8, 2048, 128),
}
ALL_PEERS_SHAPE: str = (
    "12x1024x64"  # the other shapes are timed beside SDPA, OpenVINO and zentorch only
)
MODELS: dict[str, ModelWorkload] = {
    "prefill-bf16": ModelWorkload(SMOLLM2, "forward", 1, 2048, dtype="bf16"),
    "prefill-fp32": ModelWorkload(SMOLLM2, "forward", 1, 2048),
    "generate-bf16": ModelWorkload(SMOLLM2, "generate", 1, 1024, generated=32, dtype="bf16"),
    "batch-bf16": ModelWorkload(SMOLLM2, "forward", 8, 1024, padded=True, dtype="bf16"),
    "embed-fp32": ModelWorkload(MINILM, "forward", 8, 256, padded=True),
    "train-fp32": ModelWorkload(GPT2, "train", 1, 1024),
}
# PyTorch's own attention in unchanged models, with and without accelerate().
ACCELERATED: dict[str, ModelWorkload] = {
    "bert-fp32": ModelWorkload(BERT, "train", 8, 512, padded=True, dropout=True),
    "gpt2-fp32": ModelWorkload(GPT2, "train", 1, 1024, dropout=True),
    "t5-fp32": ModelWorkload(T5, "train", 4, 512, dropout=True),
    "encoder-fp32": ModelWorkload(ENCODER, "forward", 8, 512, padded=True),
    "encoder-full-fp32": ModelWorkload(ENCODER, "forward", 8, 512),
}


def _all_cases() -> Iterator[BenchCase]:
    yield from _prefill("full")
    yield from _prefill("causal")
    yield from _peak()
    yield from _window()
    yield from _decode()
    causal = AttentionWorkload(1, 12, 2048, 64, mask="causal", backward=True)
    yield from _dtypes("training", "forward and backward", causal)
    dropout = replace(causal, dropout_p=0.1)
    yield from _dtypes("dropout", "forward and backward with dropout", dropout)
    yield from _dtypes("padded", "padded batch", AttentionWorkload(8, 12, 512, 64, mask="padding"))
    yield from _small()
    yield from _avx2()
    yield BenchCase(
        "module-fp32",
        "a whole module: projections, 12 heads, projection",
        AttentionWorkload(4, 12, 512, 64),
        peers=("nn.MultiheadAttention",),
        ours="heedful module",
    )
    yield from _summaries()
    yield from _memory()
    yield from _threads()
    for name, workload in MODELS.items():
        yield BenchCase(
            f"models-{name}",
            "whole models of transformers",
            workload,
            peers=("sdpa", "accelerate"),
        )
    for name, workload in ACCELERATED.items():
        yield BenchCase(
            f"accelerate-{name}",
            "accelerate(): PyTorch's own attention in whole models",
            workload,
            ours="accelerate",
        )


def _prefill(mask: Literal["full", "causal"]) -> Iterator[BenchCase]:
    for shape, workload in PREFILL.items():
        peers = ALL_PEERS if shape == ALL_PEERS_SHAPE else ("sdpa", "openvino", "zentorch")
        for dtype in ("fp32", "bf16", "fp16"):
            yield BenchCase(
                f"{mask}-{shape}-{dtype}",
                f"{mask} forward",
                replace(workload, mask=mask, dtype=dtype),
                peers if dtype != "fp16" else ("sdpa",),
                peak=PEAKS[dtype],
            )


def _peak() -> Iterator[BenchCase]:
    for dtype in ("fp32", "bf16"):
        yield BenchCase(
            f"peak-{dtype}",
            "share of the measured peak",
            AttentionWorkload(1, 8, 4096, 128, dtype=dtype),
            peak=PEAKS[dtype],
            probe_in_turn=True,
        )


def _window() -> Iterator[BenchCase]:
    for dtype in ("fp32", "bf16"):
        yield BenchCase(
            f"window-{dtype}",
            "causal & window 256",
            AttentionWorkload(1, 12, 4096, 64, mask="window", dtype=dtype),
            ("sdpa", "flex"),
            peak=PEAKS[dtype],
        )


def _decode() -> Iterator[BenchCase]:
    for B in (1, 8):
        for dtype in ("fp32", "bf16"):
            yield BenchCase(
                f"decode-b{B}-{dtype}",
                "decode: one query on 4096 keys",
                AttentionWorkload(B, 32, 1, 128, Hkv=8, Tk=4096, dtype=dtype),
                peak="read",
                probe_in_turn=True,
            )


def _dtypes(name: str, group: str, workload: AttentionWorkload) -> Iterator[BenchCase]:
    """Yield one case in fp32 and one in bf16."""
    for dtype in ("fp32", "bf16"):
        yield BenchCase(f"{name}-{dtype}", group, replace(workload, dtype=dtype), peak=PEAKS[dtype])


def _small() -> Iterator[BenchCase]:
    for mask in ("full", "causal"):
        yield BenchCase(
            f"small-{mask}-fp32", "small calls", AttentionWorkload(1, 4, 1, 64, mask=mask)
        )
    for B in (1, 4, 16):
        for T in (1, 8, 32, 128):
            for dtype in ("fp32", "bf16"):
                yield BenchCase(
                    f"small-b{B}-t{T}-{dtype}",
                    "small calls",
                    AttentionWorkload(B, 12, T, 64, dtype=dtype),
                )


def _avx2() -> Iterator[BenchCase]:
    for dtype in ("fp32", "bf16"):
        for mask in ("full", "causal"):
            yield BenchCase(
                f"avx2-{mask}-{dtype}",
                "on AVX2 alone",
                AttentionWorkload(1, 12, 1024, 64, mask=mask, dtype=dtype),
                isa="avx2",
            )


def _summaries() -> Iterator[BenchCase]:
    for name, ours in (("summary", "summary"), ("received", "received mass")):
        yield BenchCase(
            f"{name}-bf16",
            "statistics of the weights, beside one attention",
            AttentionWorkload(1, 8, 32768, 64, mask="causal", dtype="bf16"),
            peers=("attention",),
            ours=ours,
        )


def _memory() -> Iterator[BenchCase]:
    for dtype in ("fp32", "bf16"):
        yield BenchCase(
            f"memory-{dtype}",
            "memory that one call adds",
            AttentionWorkload(1, 1, 65536, 64, mask="causal", dtype=dtype),
            peers=(),
            measures="memory",
        )


def _threads() -> Iterator[BenchCase]:
    for dtype in ("fp32", "bf16", "fp16"):
        yield BenchCase(
            f"threads-{dtype}",
            "the same bits on 1, 2 and 4 threads",
            AttentionWorkload(1, 8, 300, 64, Hkv=4, mask="causal", backward=True, dtype=dtype),
            peers=(),
            measures="threads",
        )


CASES: tuple[BenchCase, ...] = tuple(_all_cases())


def choose_cases(names: Sequence[str]) -> tuple[BenchCase, ...]:
    """Return the cases with the given names, in the order of the table.

    Args:
        names: Names of cases, or their beginnings up to a dash: "decode", "full-8x2048x128". Empty: all cases.

    Raises:
        ArgumentError: A name matches no case.

    >>> [case.name for case in choose_cases(["padded", "peak-fp32"])]
    ['peak-fp32', 'padded-fp32', 'padded-bf16']
    """
    for name in names:
        if not any(_matches(name, case) for case in CASES):
            beginnings = dict.fromkeys(case.name.split("-")[0] for case in CASES)
            raise ArgumentError(
                "--case",
                expected=f"the beginning of a case's name, up to a dash: {', '.join(beginnings)}",
                received=repr(name),
                remedy="`heedful bench --list` prints the full names.",
            )
    return tuple(case for case in CASES if not names or any(_matches(name, case) for name in names))


def _matches(name: str, case: BenchCase) -> bool:
    return case.name == name or case.name.startswith(f"{name}-")
