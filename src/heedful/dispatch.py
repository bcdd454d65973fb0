"""Choose the kernel that runs a problem, and explain why the others do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heedful.errors import ArgumentError, KernelError
from heedful.kernels import Kernel, flex, native, online, reference, torch_sdpa
from heedful.masks import MAX_KEY_RANGES, Mask
from heedful.problem import FEW_QUERIES, AttentionProblem
from heedful.screen import aligned, with_unit
from heedful.tables import table

KERNELS: dict[str, Kernel] = {
    module.NAME: cast(Kernel, cast(ModuleType, module))
    for module in (native, torch_sdpa, flex, reference, online)
}
AUTO: str = "auto"
AMX: bool = (  # in PyTorch's kernel, which ATEN_CPU_CAPABILITY can limit
    torch.cpu._is_amx_tile_supported() and torch.backends.cpu.get_cpu_capability() == "AVX512"
)
MAX_REFERENCE_BYTES: int = 2**30  # of scores and weights; beyond, block by block


def ranking(problem: AttentionProblem) -> Iterator[str]:
    """Yield the kernels that ``kernel="auto"`` may choose; the first that does not refuse the problem is chosen."""
    if problem.query.dtype != torch.float64:  # float64 is for comparisons and double backward
        yield from _fast_kernels(problem)
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    scores = B * Hq * Tq * Tk * max(problem.query.element_size(), 4)
    large = 3 * scores > MAX_REFERENCE_BYTES  # scores, exponentials and weights
    yield from ("online", "reference") if large else ("reference", "online")


def _fast_kernels(problem: AttentionProblem) -> tuple[str, ...]:
    """Return the fast kernels for the problem's device, the fastest first."""
    if problem.query.is_cpu:
        prefers_torch = _why_torch_is_faster(problem) is not None
        return ("torch_sdpa", "native") if prefers_torch else ("native", "torch_sdpa")
    if problem.query.is_cuda and problem.intervals is not None and not problem.plain_causal:
        return ("flex", "torch_sdpa")
    return ("torch_sdpa",)


def _why_torch_is_faster(problem: AttentionProblem) -> str | None:
    """Return why PyTorch's kernel is faster than ours on this CPU, if it skips as much; None if ours is faster."""
    bf16, isa = problem.query.dtype == torch.bfloat16, native.library.isa
    many_queries = problem.sizes.Tq > FEW_QUERIES
    if AMX and bf16 and isa != "amx":
        reason = f"it multiplies bfloat16 on this machine's AMX tiles, and ours uses {isa}"
    elif isa == "generic" and many_queries:
        reason = "ours has no code for this machine's vector instructions"
    elif isa == "neon_bf16" and bf16 and many_queries:
        reason = (
            "it is expected to use this machine's products of bfloat16 matrices, which ours does not use; "
            "no Arm machine has measured either"
        )
    else:
        return None
    skips_as_much = problem.mask is None or problem.plain_causal
    return reason if skips_as_much and problem.dropout_p == 0 else None


def choose(problem: AttentionProblem, kernel: str = AUTO) -> Kernel:
    """Return the kernel of that name, or with "auto" the best that can run the problem.

    Raises:
        ArgumentError: there is no kernel of that name.
        KernelError: the kernel refuses the problem; the message has its reason, and the kernels that can run it.
    """
    if kernel == AUTO:
        return next(
            KERNELS[name] for name in ranking(problem) if not KERNELS[name].refusal(problem)
        )
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ArgumentError(
            "kernel",
            expected=", ".join(map(repr, (AUTO, *KERNELS))),
            received=repr(kernel),
            remedy='"auto" chooses the fastest that can run the problem.',
        )
    reason = KERNELS[kernel].refusal(problem)
    if reason:
        able = [name for name, other in KERNELS.items() if not other.refusal(problem)]
        raise KernelError(
            f"kernel {kernel!r} cannot run this problem: {reason}. "
            f"These can: {', '.join(able)}; or use kernel={AUTO!r}."
        )
    return KERNELS[kernel]


@dataclass(frozen=True, repr=False)
class Plan:
    """The kernel that `attention` would use for a problem, with the reasons. It prints as a table.

    Attributes:
        kernel: the name of the kernel that runs.
        others: every other kernel with the reason why it does not run, in the order in which they are tried.
        problem: shapes, dtype and device in words.
        mask: what the mask lowers to, in words.
        pairs: the number of visible (query, key) pairs, over batch and heads; None for a mask
            without values, of fake tensors or on the device "meta".
        flops: the floating-point operations that the forward pass needs for the pairs; None likewise.
        bytes: the sizes of query, key, value and output, in bytes.
        scratch_bytes: the memory that the forward pass needs besides them, in bytes: the largest number of bytes that
            exist at once, on as many threads as torch.get_num_threads() says, with what it keeps for a backward pass.
            It is exact to 20 % or 64 KiB, except for "flex", whose code is not known before it is compiled.
        notes: what users should know about how the kernel computes the result.

    Examples:
        >>> query = torch.zeros(1, 1, 4, 8)
        >>> plan = explain(query, query, query, kernel="reference")
        >>> plan.kernel, plan.pairs, plan.flops
        ('reference', 16, 512)
    """

    kernel: str
    others: tuple[tuple[str, str], ...]
    problem: str
    mask: str
    pairs: int | None
    flops: int | None
    bytes: int
    scratch_bytes: int
    notes: str

    def __repr__(self) -> str:
        return f"Plan(kernel={self.kernel!r}, mask={self.mask!r}, pairs={self.pairs}, flops={self.flops})"

    def __str__(self) -> str:
        return aligned(self._rows())

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return table(self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("problem", self.problem),
            ("mask", self.mask),
            ("kernel", self.kernel + (f" ({self.notes})" if self.notes else "")),
            ("FLOPs", "unknown" if self.flops is None else with_unit(self.flops, "FLOP", 1000)),
            (
                "memory",
                f"{with_unit(self.bytes, 'B')} in and out, {with_unit(self.scratch_bytes, 'B')} scratch",
            ),
            *((f"not {name}", reason) for name, reason in self.others),
        ]


def explain(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    kernel: str = AUTO,
    **options: Any,
) -> Plan:
    """Explain which kernel `attention` would run on these arguments, and why not the others. Nothing is computed.

    Args:
        query: as `attention` takes it.
        key: as `attention` takes it.
        value: as `attention` takes it.
        mask: as `attention` takes it.
        kernel: as `attention` takes it.
        **options: the other arguments of `attention`: bias, scale, softcap, sinks, dropout_p, return_lse.

    Returns:
        The plan; ``print(plan)`` shows it as a table.

    Raises:
        ArgumentError: the arguments do not fit together, as in `attention`.
        KernelError: the kernel requested by name cannot run them, as in `attention`.

    Examples:
        >>> from heedful import Causal, explain
        >>> query = torch.zeros(1, 1, 4, 8)
        >>> explain(query, query, query, Causal()).mask
        'Causal(): one key range per query, 62.5% of the scores'
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
        flops=None if problem.pairs is None else 2 * (D + Dv) * problem.pairs,
        bytes=element * (query.numel() + key.numel() + value.numel() + B * Hq * Tq * Dv),
        scratch_bytes=chosen.scratch_bytes(problem),
        notes=chosen.notes(problem),
    )


def _others(problem: AttentionProblem, chosen: str, requested: str) -> list[tuple[str, str]]:
    """Return every kernel except the chosen one, with the reason why it does not run."""
    ranked = list(ranking(problem))
    order = ranked + [name for name in KERNELS if name not in ranked]
    reasons: list[tuple[str, str]] = []
    for name in order:
        if name == chosen:
            continue
        reason = KERNELS[name].refusal(problem)
        if reason is None and requested != AUTO:
            reason = f"could run it, but {chosen!r} was requested"
        elif reason is None and name in ranked:
            reason = f"could run it, but {chosen!r} comes first"
            if name == "native" and (faster := _why_torch_is_faster(problem)):
                reason += f": {faster}"
        elif reason is None:
            reason = f"could run it, but only if requested by name: {KERNELS[name].notes(problem)}"
        reasons.append((name, reason))
    return reasons


def _describe_mask(problem: AttentionProblem) -> str:
    """Describe the mask, its form, and the share of scores that it keeps."""
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    if problem.mask is None:
        return "none: every query sees every key"
    if problem.intervals is None:
        form = f"dense, because {MAX_KEY_RANGES} key ranges per query cannot express it"
    else:
        form = (
            "one key range per query"
            if problem.intervals.ranges == 1
            else f"up to {problem.intervals.ranges} key ranges per query"
        )
    if problem.pairs is None:
        return f"{problem.mask!r}: {form}"
    share = problem.pairs / max(B * Hq * Tq * Tk, 1)
    return f"{problem.mask!r}: {form}, {share:.1%} of the scores"
