"""Is the result right? A speed-up is worth nothing before float64 has said so.

The error of an output or gradient is its distance from the float64 reference, relative to the reference's norm. Ours
may be `MOST_ERROR` times the baseline's, or a quarter of the dtype's epsilon. Of large problems the first heads
are held to float64, and the other heads to the baseline.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.bench.contender import Contender
from heedful.bench.peers import module_output, torch_module
from heedful.bench.settings import DTYPES, SEED, Inputs
from heedful.dropout import draw_seed
from heedful.functional import attention
from heedful.problem import AttentionProblem

MOST_ERROR = 1.5
MOST_ELSEWHERE = (
    4.0  # times the baseline's error: how far ours may be from the baseline, which itself errs
)
MOST_SCORES = 2**25  # float64 scores of the part that is compared with the reference: 256 MiB
NAMES = ("output", "grad query", "grad key", "grad value")


@dataclass(frozen=True)
class Check:
    """How far one result is from float64.

    Attributes:
        quantity: "output", "grad query", …
        error: ours, relative.
        baseline: the baseline's; NaN where there is none to be had.
        allowed: what ours may be.
        elsewhere: the largest relative distance of a head of ours from the baseline's; NaN where not compared.
        elsewhere_allowed: what that may be.
    """

    quantity: str
    error: float
    baseline: float
    allowed: float
    elsewhere: float = 0.0
    elsewhere_allowed: float = 0.0

    @property
    def right(self) -> bool:
        """False for NaN, too."""
        return self.error <= self.allowed and self.elsewhere <= self.elsewhere_allowed


def check(inputs: Inputs, ours: Sequence[Tensor], baseline: Sequence[Tensor]) -> tuple[Check, ...]:
    """Ours held to the reference, with the error that the baseline has."""
    part, heads, entries = first_heads(inputs)
    floor = torch.finfo(DTYPES[inputs.setting.dtype]).eps / 4
    checks = []
    for name, right, mine, theirs in zip(NAMES, reference(part), ours, baseline, strict=False):
        count = heads * part.setting.Hq // part.setting.key_heads if name in NAMES[:2] else heads
        error = relative_error(mine[:entries, :count], right)
        base = relative_error(theirs[:entries, :count], right)
        checks.append(
            Check(
                name,
                error,
                base,
                max(MOST_ERROR * base, floor),
                elsewhere=largest_head_error(mine, theirs),
                elsewhere_allowed=max(MOST_ELSEWHERE * base, 4 * floor),
            )
        )
    return tuple(checks)


def check_alone(result: Tensor, right: Tensor, baseline: Tensor, dtype: str) -> tuple[Check, ...]:
    """One output as a whole, with the error that a baseline has."""
    base = relative_error(baseline, right)
    allowed = max(MOST_ERROR * base, torch.finfo(DTYPES[dtype]).eps / 4)
    return (Check("output", relative_error(result, right), base, allowed),)


def first_heads(inputs: Inputs) -> tuple[Inputs, int, int]:
    """The first key/value heads, with their query heads, of the first batch entries; how many of each."""
    setting = inputs.setting
    group = setting.Hq // setting.key_heads
    most = max(1, MOST_SCORES // (group * setting.Tq * setting.keys))
    heads = min(setting.key_heads, most)
    entries = max(1, min(setting.B, most // heads))
    if setting.mask == "padding":
        entries = setting.B
        heads = 1
    part = replace(setting, B=entries, Hq=heads * group, Hkv=heads)

    def cut(tensor: Tensor, count: int) -> Tensor:
        return tensor.detach()[:entries, :count].requires_grad_(setting.backward)

    return (
        replace(
            inputs,
            setting=part,
            query=cut(inputs.query, heads * group),
            key=cut(inputs.key, heads),
            value=cut(inputs.value, heads),
            grad_output=inputs.grad_output[:entries, : heads * group],
        ),
        heads,
        entries,
    )


def reference(inputs: Inputs) -> tuple[Tensor, ...]:
    """Output and gradients in float64; with dropout, what our kernels drop after `torch.manual_seed(SEED)`."""
    query, key, value = tensors = [
        tensor.detach().double().requires_grad_(inputs.setting.backward)
        for tensor in (inputs.query, inputs.key, inputs.value)
    ]
    dropout_p = inputs.setting.dropout_p
    output = seeded(
        lambda: attention(query, key, value, inputs.mask, dropout_p=dropout_p, kernel="reference")
    )
    assert isinstance(output, Tensor)  # not asked for the lse
    if not inputs.setting.backward:
        return (output,)
    gradients = torch.autograd.grad(output, tensors, inputs.grad_output.double())
    return output.detach(), *gradients


def seeded(run: Callable[[], object]) -> object:
    """What it gives at a known random state; the caller's stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return run()


def results_of(contender: Contender) -> tuple[Tensor, ...]:
    """What it computes, at a known random state."""
    raw = seeded(contender.run)
    return tuple(tensor.detach() for tensor in contender.tensors(raw))


def dropping_baseline(inputs: Inputs) -> tuple[Tensor, ...]:
    """PyTorch's attention, made to drop the weights that ours drop: its error is what ours may be held to."""
    setting = inputs.setting
    tensors = inputs.query, inputs.key, inputs.value
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        problem = AttentionProblem(*tensors, inputs.mask, dropout_p=setting.dropout_p)
        survivors = problem.survivors(draw_seed(), 0, setting.keys)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Dropout mask should only be used for testing")
        output, _ = torch._scaled_dot_product_attention_math(  # pyright: ignore[reportPrivateImportUsage]
            *tensors, None, setting.dropout_p, setting.mask == "causal", survivors
        )
    gradients = torch.autograd.grad(output, tensors, inputs.grad_output)
    return output.detach(), *gradients


def module_reference(inputs: Inputs) -> Tensor:
    """What the module computes, in float64."""
    module, x = torch_module(inputs)
    with torch.no_grad():
        return module_output(
            module.double(),
            x.double(),
            lambda *tensors: attention(*tensors, kernel="reference"),
        )


def relative_error(result: Tensor, right: Tensor) -> float:
    right = right.detach().double()
    return ((result.double() - right).norm() / right.norm()).item()


def largest_head_error(result: Tensor, other: Tensor) -> float:
    """The largest relative distance of one head's result from the other's; NaN where there is one."""
    difference = (result.float() - other.float()).flatten(2).norm(dim=2)
    return (difference / other.float().flatten(2).norm(dim=2)).max().item()
