"""Accuracy checks: results are compared with float64 before anything is timed.

The error of an output or gradient is the norm of its difference from the float64 reference, divided by the norm of
the reference. Our error may be `ERROR_FACTOR` times the baseline's, or a quarter of the dtype's epsilon, whichever is
larger. For large workloads only the first heads are compared with float64, and the other heads with the baseline.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.bench.peers import Contender
from heedful.bench.peers.modules import build_module, module_output
from heedful.bench.workload import DTYPES, SEED, WorkloadInputs
from heedful.dropout import draw_seed
from heedful.functional import attention
from heedful.problem import AttentionProblem
from heedful.summaries import summarize

ERROR_FACTOR: float = 1.5
# How far a head may be from the baseline, which itself has an error, in units of that error.
HEAD_ERROR_FACTOR: float = 4.0
CHECKED_TOKENS: int = 64  # of a summary
MAX_SCORES: int = 2**25  # compared with the reference: 256 MiB in float64
NAMES: tuple[str, ...] = ("output", "grad query", "grad key", "grad value")


@dataclass(frozen=True)
class AccuracyCheck:
    """The error of one result.

    Attributes:
        quantity: "output", "grad query", ….
        error: Our relative error.
        baseline: The baseline's relative error.
        allowed: The maximum for `error`.
        elsewhere: The largest relative difference of one head from the baseline's. 0: heads were not compared.
        elsewhere_allowed: The maximum for `elsewhere`.
    """

    quantity: str
    error: float
    baseline: float
    allowed: float
    elsewhere: float = 0.0
    elsewhere_allowed: float = 0.0

    @property
    def right(self) -> bool:
        """True if the errors are within their limits. NaN is not."""
        return self.error <= self.allowed and self.elsewhere <= self.elsewhere_allowed


def check_heads(
    inputs: WorkloadInputs, ours: Sequence[Tensor], baseline: Sequence[Tensor]
) -> tuple[AccuracyCheck, ...]:
    """Check the output and gradients of an attention.

    Args:
        inputs: The inputs.
        ours: Our output (B, Hq, Tq, D), and the gradients of query, key and value with a backward pass.
        baseline: The same results of the baseline.

    Returns:
        One check for each result.
    """
    part, heads, entries = first_heads(inputs)
    group = part.workload.Hq // part.workload.key_heads
    floor = _error_floor(inputs.workload.dtype)
    checks = []
    for name, right, mine, theirs in zip(NAMES, reference(part), ours, baseline, strict=False):
        count = heads * group if name in ("output", "grad query") else heads
        error = relative_error(mine[:entries, :count], right)
        base = relative_error(theirs[:entries, :count], right)
        checks.append(
            AccuracyCheck(
                name,
                error,
                base,
                max(ERROR_FACTOR * base, floor),
                elsewhere=largest_head_error(mine, theirs),
                elsewhere_allowed=max(HEAD_ERROR_FACTOR * base, 4 * floor),
            )
        )
    return tuple(checks)


def check_summary(inputs: WorkloadInputs, ours: Sequence[Tensor]) -> tuple[AccuracyCheck, ...]:
    """Check what the last keys of a causal workload receive, and the entropies of the last queries if they are there.

    Only the last queries see the last keys, so that they alone are computed in float64.
    """
    T = inputs.workload.Tq
    checked = min(T, CHECKED_TOKENS)
    query, key = inputs.query[:, :, -checked:].double(), inputs.key.double()
    right = summarize(query, key, inputs.mask, queries=(T - checked, T))
    floor = _error_floor(inputs.workload.dtype)
    return tuple(
        AccuracyCheck(
            name,
            relative_error(mine[..., -checked:], exact[..., -checked:]),
            baseline=0.0,
            allowed=floor,
        )
        for name, mine, exact in zip(
            ("received mass", "entropy"), ours, (right.received_mass, right.entropy), strict=False
        )
        if exact is not None
    )


def check_whole(
    result: Tensor,
    right: Tensor,
    baseline: Tensor,
    dtype: str,
    *,
    quantity: str = "output",
    floors: int = 1,
) -> AccuracyCheck:
    """Check one result as a whole.

    Args:
        result: Our result.
        right: The reference, in float64.
        baseline: The baseline's result.
        dtype: A key of `DTYPES`.
        quantity: The name of the result.
        floors: How many times the error that is always allowed may be made: more in a model of many layers.
    """
    base = relative_error(baseline, right)
    allowed = max(ERROR_FACTOR * base, floors * _error_floor(dtype))
    return AccuracyCheck(quantity, relative_error(result, right), base, allowed)


def _error_floor(dtype: str) -> float:
    """Return the error that is always allowed: a quarter of the dtype's epsilon."""
    return torch.finfo(DTYPES[dtype]).eps / 4


def first_heads(inputs: WorkloadInputs) -> tuple[WorkloadInputs, int, int]:
    """Return the inputs of the heads that are compared with the reference: as many as `MAX_SCORES` allows.

    Returns:
        The inputs, the number of key/value heads, and the number of batch entries.
    """
    workload = inputs.workload
    group = workload.Hq // workload.key_heads
    affordable = max(1, MAX_SCORES // (group * workload.Tq * workload.keys))
    heads = min(workload.key_heads, affordable)
    entries = max(1, min(workload.B, affordable // heads))
    if workload.mask == "padding":  # whose lengths belong to the whole batch
        entries = workload.B
        heads = 1
    part = replace(workload, B=entries, Hq=heads * group, Hkv=heads)

    def cut(tensor: Tensor, count: int) -> Tensor:
        return tensor.detach()[:entries, :count].requires_grad_(workload.backward)

    return (
        replace(
            inputs,
            workload=part,
            query=cut(inputs.query, heads * group),
            key=cut(inputs.key, heads),
            value=cut(inputs.value, heads),
            grad_output=inputs.grad_output[:entries, : heads * group],
        ),
        heads,
        entries,
    )


def reference(inputs: WorkloadInputs) -> tuple[Tensor, ...]:
    """Compute output and gradients in float64, with the dropout of our kernels after `torch.manual_seed(SEED)`."""
    query, key, value = tensors = [
        tensor.detach().double().requires_grad_(inputs.workload.backward)
        for tensor in (inputs.query, inputs.key, inputs.value)
    ]
    dropout_p = inputs.workload.dropout_p
    output = run_seeded(
        lambda: attention(query, key, value, inputs.mask, dropout_p=dropout_p, kernel="reference")
    )
    assert isinstance(output, Tensor)  # the log-sum-exp is not requested
    if not inputs.workload.backward:
        return (output,)
    gradients = torch.autograd.grad(output, tensors, inputs.grad_output.double())
    return output.detach(), *gradients


def run_seeded(run: Callable[[], object]) -> object:
    """Run a function with the random state of `SEED`, and restore the caller's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return run()


def results_of(contender: Contender) -> tuple[Tensor, ...]:
    """Run a contender with the random state of `SEED` and return its results."""
    raw = run_seeded(contender.run)
    return tuple(tensor.detach() for tensor in contender.tensors(raw))


def dropout_baseline(inputs: WorkloadInputs) -> tuple[Tensor, ...]:
    """Compute output and gradients by PyTorch's attention, with the same weights dropped as by our kernels."""
    workload = inputs.workload
    tensors = inputs.query, inputs.key, inputs.value
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        problem = AttentionProblem(*tensors, inputs.mask, dropout_p=workload.dropout_p)
        survivors = problem.dropout_factors(draw_seed(), 0, workload.keys) > 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Dropout mask should only be used for testing")
        output, _ = torch._scaled_dot_product_attention_math(  # pyright: ignore[reportPrivateImportUsage]
            *tensors, None, workload.dropout_p, workload.mask == "causal", survivors
        )
    gradients = torch.autograd.grad(output, tensors, inputs.grad_output)
    return output.detach(), *gradients


def module_reference(inputs: WorkloadInputs) -> Tensor:
    """Compute the output of the whole module in float64."""
    module, x = build_module(inputs)
    with torch.no_grad():
        return module_output(
            module.double(),
            x.double(),
            lambda *tensors: attention(*tensors, kernel="reference"),
        )


def relative_error(result: Tensor, right: Tensor) -> float:
    """Return the norm of the difference, divided by the norm of `right`."""
    right = right.detach().double()
    return ((result.double() - right).norm() / right.norm()).item()


def largest_head_error(result: Tensor, other: Tensor) -> float:
    """Return the largest relative difference of one head. NaN: a result contains NaN.

    Args:
        result: (B, H, T, D).
        other: (B, H, T, D).
    """
    difference = (result.float() - other.float()).flatten(2).norm(dim=2)
    return (difference / other.float().flatten(2).norm(dim=2)).max().item()
