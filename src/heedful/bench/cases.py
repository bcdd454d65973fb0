"""What is measured, and what each case must reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from heedful.bench.models import GPT2, MINILM, SMOLLM2, ModelSetting
from heedful.bench.settings import Setting
from heedful.errors import ArgumentError


@dataclass(frozen=True)
class Requirement:
    """A number to reach.

    Attributes:
        quantity: "speed": `against`'s time divided by ours;
            "share": of the peak named `against`;
            "small": `bound` times SDPA's speed where SDPA takes `SMALL_SECONDS` or more, else at most
            `MOST_ADDED` seconds more than SDPA;
            "memory": bytes that one call adds, at most;
            "equal": the results on 1, 2 and 4 threads, to the last bit.
        bound: the number.
        against: a peer or a peak.
    """

    quantity: Literal["speed", "share", "small", "memory", "equal"]
    bound: float = 0.0
    against: str = ""


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: what `--case` calls it.
        group: the rows it belongs to, in words.
        setting: what all contenders compute: one attention, or a whole model with its attention replaced.
        requirements: what ours must reach.
        peers: who is timed beside ours, where installed; the first is the baseline.
        isa: the instruction set that ours is told to use, in a process of its own; "": the machine's best.
        ours: which contender is ours.
    """

    name: str
    group: str
    setting: Setting | ModelSetting
    requirements: tuple[Requirement, ...] = ()
    peers: tuple[str, ...] = ("sdpa",)
    isa: str = ""
    ours: str = "heedful"


SMALL_SECONDS, MOST_ADDED = 50e-6, 12e-6
LONGEST = Setting(1, 1, 65536, 64, mask="causal")
MOST_MEMORY = 64 * 2**20
EVERYONE = ("sdpa", "textbook", "onnxruntime", "openvino", "jax", "x-transformers")

PREFILL = {
    "12x1024x64": Setting(1, 12, 1024, 64),
    "12x2048x64": Setting(1, 12, 2048, 64),
    "12x4096x64": Setting(1, 12, 4096, 64),
    "8x2048x128": Setting(1, 8, 2048, 128),
}
COMPARED = "12x1024x64"  # the shape on which everyone is timed; on the others, SDPA and OpenVINO

# What each dtype must reach, against SDPA if nothing else is named.
FULL = {"fp32": 2.2, "bf16": 3.8, "fp16": 2.0}
CAUSAL = {"fp32": 2.5, "bf16": 4.5, "fp16": 2.0}
OPENVINO = {"full": 1.15, "causal": 2.0}
SHARE = {"fp32": 0.80, "bf16": 0.72}
PEAK = {"fp32": "fma", "bf16": "bf16"}
WINDOW = {"fp32": (20, 3), "bf16": (30, 4)}  # SDPA with the dense mask, compiled FlexAttention
DECODE = {"fp32": 3, "bf16": 25}
BANDWIDTH = 0.75
TRAINING = {"fp32": 2.5, "bf16": 3.0}
DROPOUT = {"fp32": 8.0, "bf16": 8.0}
PADDED = {"fp32": 3.5, "bf16": 6.0}
MODELS = {  # what is done, and what it must reach against SDPA
    "prefill-bf16": (ModelSetting(SMOLLM2, "forward", 1, 2048, dtype="bf16"), 2.0),
    "prefill-fp32": (ModelSetting(SMOLLM2, "forward", 1, 2048), 1.2),
    "generate-bf16": (ModelSetting(SMOLLM2, "generate", 1, 1024, generated=32, dtype="bf16"), 1.3),
    "batch-bf16": (ModelSetting(SMOLLM2, "forward", 8, 1024, padded=True, dtype="bf16"), 2.0),
    "embed-fp32": (ModelSetting(MINILM, "forward", 8, 256, padded=True), None),
    "train-fp32": (ModelSetting(GPT2, "train", 1, 1024), None),
}


def _table() -> Iterator[Case]:
    yield from _prefill("full", FULL)
    yield from _prefill("causal", CAUSAL)
    for dtype, share in SHARE.items():
        yield Case(
            f"peak-{dtype}",
            "share of the measured peak",
            Setting(1, 8, 4096, 128, dtype=dtype),
            (Requirement("share", share, PEAK[dtype]),),
        )
    for dtype, (sdpa, flex) in WINDOW.items():
        yield Case(
            f"window-{dtype}",
            "causal & window 256",
            Setting(1, 12, 4096, 64, mask="window", dtype=dtype),
            (Requirement("speed", sdpa, "sdpa"), Requirement("speed", flex, "flex")),
            ("sdpa", "flex"),
        )
    yield from _decode()
    yield from _against_sdpa(
        "training", TRAINING, Setting(1, 12, 2048, 64, mask="causal", backward=True)
    )
    yield from _against_sdpa(
        "dropout", DROPOUT, Setting(1, 12, 2048, 64, mask="causal", dropout_p=0.1, backward=True)
    )
    yield from _against_sdpa("padded", PADDED, Setting(8, 12, 512, 64, mask="padding"))
    yield from _small()
    yield from _others()
    for name, (setting, ratio) in MODELS.items():
        yield Case(
            f"models-{name}",
            "whole models of transformers",
            setting,
            () if ratio is None else (Requirement("speed", ratio, "sdpa"),),
            peers=("sdpa", "accelerate"),
        )


def _against_sdpa(name: str, required: dict[str, float], setting: Setting) -> Iterator[Case]:
    group = {
        "training": "forward and backward",
        "dropout": "forward and backward with dropout",
        "padded": "padded batch",
    }[name]
    for dtype, ratio in required.items():
        yield Case(
            f"{name}-{dtype}",
            group,
            replace(setting, dtype=dtype),
            (Requirement("speed", ratio, "sdpa"),),
        )


def _prefill(mask: Literal["full", "causal"], required: dict[str, float]) -> Iterator[Case]:
    for shape, setting in PREFILL.items():
        for dtype, ratio in required.items():
            requirements = (Requirement("speed", ratio, "sdpa"),)
            peers = EVERYONE if shape == COMPARED else ("sdpa", "openvino")
            if dtype != "fp16":
                requirements += (Requirement("speed", OPENVINO[mask], "openvino"),)
            yield Case(
                f"{mask}-{shape}-{dtype}",
                f"{mask} forward",
                replace(setting, mask=mask, dtype=dtype),
                requirements,
                peers if dtype != "fp16" else ("sdpa",),
            )


def _decode() -> Iterator[Case]:
    for B in (1, 8):
        for dtype, ratio in DECODE.items():
            yield Case(
                f"decode-b{B}-{dtype}",
                "decode: one query on 4096 keys",
                Setting(B, 32, 1, 128, Hkv=8, Tk=4096, dtype=dtype),
                (Requirement("speed", ratio, "sdpa"), Requirement("share", BANDWIDTH, "read")),
            )


def _small() -> Iterator[Case]:
    for B in (1, 4, 16):
        for T in (1, 8, 32, 128):
            for dtype in ("fp32", "bf16"):
                yield Case(
                    f"small-b{B}-t{T}-{dtype}",
                    "small calls",
                    Setting(B, 12, T, 64, dtype=dtype),
                    (Requirement("small", 0.95, "sdpa"),),
                )


def _others() -> Iterator[Case]:
    for dtype in ("fp32", "bf16"):
        for mask in ("full", "causal"):
            yield Case(
                f"avx2-{mask}-{dtype}",
                "on AVX2 alone",
                Setting(1, 12, 1024, 64, mask=mask, dtype=dtype),
                (Requirement("speed", 1.0, "sdpa"),),
                isa="avx2",
            )
    yield Case(
        "module-fp32",
        "a whole module: projections, 12 heads, projection",
        Setting(4, 12, 512, 64),
        peers=("nn.MultiheadAttention",),
        ours="heedful module",
    )
    for dtype in ("fp32", "bf16"):
        yield Case(
            f"memory-{dtype}",
            "memory that one call adds",
            replace(LONGEST, dtype=dtype),
            (Requirement("memory", MOST_MEMORY),),
            peers=(),
        )
    for dtype in ("fp32", "bf16", "fp16"):
        yield Case(
            f"threads-{dtype}",
            "the same bits on 1, 2 and 4 threads",
            Setting(1, 8, 300, 64, Hkv=4, mask="causal", backward=True, dtype=dtype),
            (Requirement("equal"),),
            peers=(),
        )


CASES = tuple(_table())


def choose(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases named, in the table's order; a name stands for all that begin with it: "decode", "full-8x2048x128".

    Raises:
        ArgumentError: a name stands for none; the text has all of them.
    """
    for name in names:
        if not any(_stands_for(name, case) for case in CASES):
            firsts = dict.fromkeys(case.name.split("-")[0] for case in CASES)
            raise ArgumentError(
                "--case",
                expected=f"the beginning of a case's name, up to a dash: {', '.join(firsts)}",
                received=repr(name),
                remedy=f"In full they are {', '.join(case.name for case in CASES)}.",
            )
    return tuple(
        case for case in CASES if not names or any(_stands_for(name, case) for name in names)
    )


def _stands_for(name: str, case: Case) -> bool:
    return case.name == name or case.name.startswith(f"{name}-")
