"""Which kernel runs a problem, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from heedful.errors import ArgumentError, KernelError
from heedful.kernels import Kernel, flex, native, online, reference, torch_sdpa
from heedful.masks import Mask
from heedful.problem import AttentionProblem

KERNELS = {
    module.NAME: cast(Kernel, cast(ModuleType, module))
    for module in (native, torch_sdpa, flex, reference, online)
}
AUTO = "auto"
AMX = torch.cpu._is_amx_tile_supported()
DECODED = 8  # queries at most, for which reading keys and values is what takes the time
LARGEST_REFERENCE = 2**30  # bytes of scores; beyond, block by block


def ranking(problem: AttentionProblem) -> Iterator[str]:
    """The kernels that ``kernel="auto"`` may take, the first that does not refuse being the one."""
    if problem.query.dtype != torch.float64:  # which is to compare with, and differentiate twice
        yield from _fast(problem)
    large = reference.scratch_bytes(problem) > LARGEST_REFERENCE
    yield from ("online", "reference") if large else ("reference", "online")


def _fast(problem: AttentionProblem) -> tuple[str, ...]:
    """The fast kernels on the problem's device, the fastest first."""
    if problem.query.is_cpu:
        return ("torch_sdpa", "native") if _slower(problem) else ("native", "torch_sdpa")
    if problem.query.is_cuda and problem.intervals is not None and not problem.plain_causal:
        return ("flex", "torch_sdpa")
    return ("torch_sdpa",)


def _slower(problem: AttentionProblem) -> str | None:
    """Why PyTorch's kernel is the faster one on this CPU, where it skips as much as ours; None: ours is."""
    if AMX and problem.query.dtype == torch.bfloat16:
        reason = "it multiplies bfloat16 on this machine's AMX tiles"
    elif native.library.isa == "generic" and problem.sizes.Tq > DECODED:
        reason = "ours has no instructions of this machine's own to use"
    else:
        return None
    skips_as_much = problem.mask is None or problem.plain_causal
    return reason if skips_as_much and problem.dropout_p == 0 else None


def choose(problem: AttentionProblem, kernel: str = AUTO) -> Kernel:
    """The kernel named, or the best that can run the problem.

    Raises:
        ArgumentError: there is no kernel of that name.
        KernelError: the kernel named refuses the problem; the text has its reason, and who would run it.
    """
    if kernel == AUTO:
        return next(
            KERNELS[name] for name in ranking(problem) if not KERNELS[name].refusal(problem)
        )
    if kernel not in KERNELS:
        raise ArgumentError(
            "kernel",
            expected=", ".join(map(repr, (AUTO, *KERNELS))),
            received=repr(kernel),
            remedy='"auto" takes the fastest that can run the problem.',
        )
    reason = KERNELS[kernel].refusal(problem)
    if reason:
        able = [name for name, other in KERNELS.items() if not other.refusal(problem)]
        raise KernelError(
            f"kernel {kernel!r} cannot run this problem: {reason}. "
            f"These can: {', '.join(able)}; or leave it to kernel={AUTO!r}."
        )
    return KERNELS[kernel]


@dataclass(frozen=True)
class Plan:
    """What `attention` would do with a problem, and why; printed, a table.

    Attributes:
        kernel: the one that runs.
        others: every other kernel with the reason why it does not, in the order in which they are tried.
        problem: shapes, dtype and device in words.
        mask: what the mask lowers to, in words.
        pairs: (query, key) pairs that are seen, over batch and heads.
        flops: floating-point operations of the forward pass that the pairs need.
        bytes: what must be read and written at least: query, key, value, output.
        scratch_bytes: what the kernel takes beside them.
        notes: what to know of how the kernel computes it.
    """

    kernel: str
    others: tuple[tuple[str, str], ...]
    problem: str
    mask: str
    pairs: int
    flops: int
    bytes: int
    scratch_bytes: int
    notes: str

    def __str__(self) -> str:
        rows = [
            ("problem", self.problem),
            ("mask", self.mask),
            ("kernel", self.kernel + (f" ({self.notes})" if self.notes else "")),
            ("FLOPs", _with_unit(self.flops, "FLOP", 1000)),
            (
                "memory",
                f"{_with_unit(self.bytes, 'B')} in and out, {_with_unit(self.scratch_bytes, 'B')} scratch",
            ),
            *((f"not {name}", reason) for name, reason in self.others),
        ]
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    kernel: str = AUTO,
    **options,
) -> Plan:
    """Say which kernel `attention` would run on these arguments, and why not the others; computes nothing.

    Args:
        query, key, value, mask, kernel: as `attention` takes them.
        **options: the other arguments of `attention`.

    Raises:
        ArgumentError, KernelError: as `attention` would.
    """
    problem = AttentionProblem(query, key, value, mask, **options)
    chosen = choose(problem, kernel)
    B, Hq, _, Tq, _, D, Dv = problem.sizes
    element = query.element_size()
    return Plan(
        kernel=chosen.NAME,
        others=tuple(_others(problem, chosen.NAME, kernel)),
        problem=f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}, "
        f"{str(query.dtype).removeprefix('torch.')} on {query.device}",
        mask=_describe_mask(problem),
        pairs=problem.pairs,
        flops=2 * (D + Dv) * problem.pairs,
        bytes=element * (query.numel() + key.numel() + value.numel() + B * Hq * Tq * Dv),
        scratch_bytes=chosen.scratch_bytes(problem),
        notes=chosen.notes(problem),
    )


def _others(problem: AttentionProblem, chosen: str, asked: str) -> list[tuple[str, str]]:
    """Every kernel but the chosen one, with the reason why it does not run."""
    ranked = list(ranking(problem))
    order = ranked + [name for name in KERNELS if name not in ranked]
    reasons = []
    for name in order:
        if name == chosen:
            continue
        reason = KERNELS[name].refusal(problem)
        if reason is None and asked != AUTO:
            reason = f"could run it, but {chosen!r} was asked for"
        elif reason is None and name in ranked:
            reason = f"could run it, but {chosen!r} comes first"
            if name == "native" and (faster := _slower(problem)):
                reason += f": {faster}"
        elif reason is None:
            reason = (
                f"could run it, but only when asked for by name: {KERNELS[name].notes(problem)}"
            )
        reasons.append((name, reason))
    return reasons


def _describe_mask(problem: AttentionProblem) -> str:
    """The mask, its form, and the share of scores it leaves."""
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    if problem.mask is None:
        return "none: every query sees every key"
    if problem.intervals is None:
        form = "dense, because no two runs of keys say it"
    else:
        form = (
            "one run of keys per query"
            if problem.intervals.runs == 1
            else "two runs of keys per query"
        )
    share = problem.pairs / max(B * Hq * Tq * Tk, 1)
    return f"{problem.mask!r}: {form}, {share:.1%} of the scores"


def _with_unit(amount: float, unit: str, base: int = 1024) -> str:
    """1536 B as '1.5 KiB'."""
    prefixes = ("", "Ki", "Mi", "Gi", "Ti") if base == 1024 else ("", "k", "M", "G", "T")
    for prefix in prefixes[:-1]:
        if amount < base:
            return f"{amount:.3g} {prefix}{unit}"
        amount /= base
    return f"{amount:.3g} {prefixes[-1]}{unit}"
