"""Why attention is built as it is, as numbers: the √d, the dropout, the stable softmax, the copy after the heads.

Every function returns its measurements and prints nothing. Those that draw use torch's generator, so
`torch.manual_seed` before the call makes them repeatable.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.errors import ArgumentError
from heedful.textbook.checks import check_sizes
from heedful.textbook.simplified import weights_by_naive_softmax, weights_by_stable_softmax

# --- why scores are divided by √d --------------------------------------------------------------------


@dataclass(frozen=True)
class DotProductVariance:
    """How far dot products of random vectors spread, before and after the division by √d."""

    d: int
    variance: float  # about d
    scaled_variance: float  # about 1
    standard_error: float  # of both, relative: how far chance alone moves them


def variance_of_dot_products(d: int, *, draws: int = 1000) -> DotProductVariance:
    """The variance of q·k over `draws` pairs of standard normal vectors of d features.

    q·k adds d independent products of variance 1, so its variance is d and that of q·k / √d is 1, whatever d
    (Vaswani et al. 2017, §3.2.1, footnote 4). Each product has a fourth moment of 9, which makes the relative
    standard error of a variance over n draws √((2 + 6/d) / n). Law variance.dot_product.
    """
    check_sizes(d=d, draws=draws)
    queries = torch.randn(draws, d)
    keys = torch.randn(draws, d)
    scores = (queries * keys).sum(dim=-1)
    scaled_scores = scores / d**0.5
    return DotProductVariance(
        d=d,
        variance=scores.var(correction=0).item(),
        scaled_variance=scaled_scores.var(correction=0).item(),
        standard_error=math.sqrt((2 + 6 / d) / draws),
    )


@dataclass(frozen=True)
class Sharpness:
    """What softmax makes of scores after they were multiplied by a factor."""

    factor: float
    weights: tuple[float, ...]
    keys_in_use: (
        float  # exp(entropy): n if the weights spread evenly over n keys, 1 if one key has it all
    )


def sharpness(scores: Tensor, factor: float) -> Sharpness:
    """softmax(factor · scores) for scores (T,): the larger the scores, the fewer keys share the weight.

    Figures softmax.unscaled (factor 1) and softmax.times8 (factor 8). A softmax that gives one key everything
    passes no gradient on to any score; unscaled scores of a large d do that before any training.
    """
    weights = torch.softmax(factor * scores, dim=-1)
    entropy = torch.special.entr(weights).sum()
    return Sharpness(factor, tuple(weights.tolist()), entropy.exp().item())


# --- what dropout does to the weights ----------------------------------------------------------------


@dataclass(frozen=True)
class DropoutEffect:
    """What dropout did to weights, over many draws."""

    p: float
    dropped: float  # the share of weights that became 0: about p
    least_growth: float  # survivor / weight, the smallest and
    greatest_growth: float  # the largest seen: both 1 / (1 - p)
    drift: float  # the mean's distance from the weight, in standard errors, at its largest
    least_row_sum: float  # a single draw's rows no longer add up to 1
    greatest_row_sum: float


def effect_of_dropout(weights: Tensor, p: float, *, draws: int = 1000) -> DropoutEffect:
    """Drop weights (..., T) `draws` times with probability p and compare with the weights themselves.

    Survivors grow by 1 / (1 − p), so that each weight keeps its expectation: (1 − p) · w / (1 − p) = w. The
    standard error of its mean over n draws is w · √(p / (1 − p) / n).

    Raises:
        ArgumentError: p outside (0, 1): without drops or without survivors there is nothing to compare.
    """
    check_sizes(draws=draws)
    if not 0.0 < p < 1.0:
        raise ArgumentError(
            "p",
            expected="a probability between 0 and 1, neither included",
            received=repr(p),
            remedy="Pass the share of weights to drop, such as 0.5.",
        )
    dropped_weights = nn.Dropout(p)(weights.expand(draws, *weights.shape))
    row_sums = dropped_weights.sum(dim=-1)

    seen = weights > 0  # what a mask zeroed before, dropout cannot zero
    before, after = weights[seen], dropped_weights[:, seen]
    growth = (after / before)[after > 0]
    standard_errors = before * math.sqrt(p / (1 - p) / draws)
    drift = (after.mean(dim=0) - before).abs() / standard_errors
    return DropoutEffect(
        p=p,
        dropped=(after == 0).double().mean().item(),
        least_growth=growth.min().item(),
        greatest_growth=growth.max().item(),
        drift=drift.max().item(),
        least_row_sum=row_sums.min().item(),
        greatest_row_sum=row_sums.max().item(),
    )


# --- where naive softmax leaves the numbers a dtype has ----------------------------------------------


@dataclass(frozen=True)
class NaiveSoftmaxRange:
    """Between which scores exp(s) / Σ exp(s) is right in a dtype, and what comes out beyond."""

    dtype: torch.dtype
    keys: int
    lowest: float
    highest: float
    naive_just_above: float  # a weight at highest + 1: for several keys a silent 0, as exp fits but the sum does not
    naive_far_above: float  # a weight at 2 · highest: NaN, as inf / inf
    stable_far_above: float  # the stable softmax there: 1 / keys, as everywhere


def range_of_naive_softmax(dtype: torch.dtype, *, keys: int = 6) -> NaiveSoftmaxRange:
    """Find by bisection for which s a row of `keys` scores, all of them s, still gets weights of 1 / keys.

    The sum of the exponentials is what overflows first: at log(largest number / keys), 86.9 for six keys in
    float32. Downwards every exponential becomes 0, and 0 / 0 is NaN.
    """
    check_sizes(keys=keys)

    def weight_at(score: float, softmax: Callable[[Tensor], Tensor]) -> float:
        return softmax(torch.full((keys,), score, dtype=dtype))[0].item()

    def is_right(score: float) -> bool:
        rounding = torch.finfo(dtype).eps
        return math.isclose(
            weight_at(score, weights_by_naive_softmax), 1 / keys, rel_tol=4 * rounding
        )

    def last_right(right: float, wrong: float) -> float:
        for _ in range(64):  # each step halves the gap, more often than float64 has digits
            middle = (right + wrong) / 2
            right, wrong = (middle, wrong) if is_right(middle) else (right, middle)
        return torch.tensor(right, dtype=dtype).item()

    lowest, highest = last_right(0.0, -1000.0), last_right(0.0, 1000.0)
    return NaiveSoftmaxRange(
        dtype=dtype,
        keys=keys,
        lowest=lowest,
        highest=highest,
        naive_just_above=weight_at(highest + 1, weights_by_naive_softmax),
        naive_far_above=weight_at(2 * highest, weights_by_naive_softmax),
        stable_far_above=weight_at(2 * highest, weights_by_stable_softmax),
    )


# --- the copy when heads are put side by side --------------------------------------------------------


def contiguous_copies(*, heads: int, tokens: int, batch: int = 2, head_dim: int = 4) -> bool:
    """Whether `.contiguous()` after moving heads behind tokens gives new memory: (B, H, T, D) → (B, T, H, D).

    It does, unless heads or tokens are one: exchanging with a dimension of size 1 moves nothing.
    """
    context_by_head = torch.zeros(batch, heads, tokens, head_dim)
    transposed = context_by_head.transpose(1, 2)
    return transposed.contiguous().data_ptr() != transposed.data_ptr()


def merge_by_matmul(weights: Tensor, values: Tensor) -> Tensor:
    """weights (B, H, T, T), values (B, H, T, D) → context (B, T, H*D), as `MultiHeadAttention` does it."""
    context_by_head = weights @ values
    return context_by_head.transpose(1, 2).flatten(start_dim=2)


def merge_by_einsum(weights: Tensor, values: Tensor) -> Tensor:
    """The same by einsum, whose result only looks as if it were in the order of its letters."""
    context_by_head = torch.einsum("bhij,bhjv->bihv", weights, values)
    return context_by_head.flatten(start_dim=2)


def merge_in_place(weights: Tensor, values: Tensor) -> Tensor:
    """The same head by head, each product written straight to its place: nothing is left to copy."""
    B, H, T, D = values.shape
    context = values.new_empty(B, T, H, D)
    for b in range(B):
        for h in range(H):
            torch.mm(weights[b, h], values[b, h], out=context[b, :, h])
    return context.flatten(start_dim=2)


def merge_by_fused_kernel(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Queries, keys, values (B, T, H, D), as a projection leaves them → context (B, T, H*D), by PyTorch's kernel.

    On a CPU it gives its output the memory order of its queries, by token, so transposing back undoes itself.
    """
    context_by_head = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
    )
    return context_by_head.transpose(1, 2).flatten(start_dim=2)


@dataclass(frozen=True)
class MemoryUse:
    """What a function did to memory: the copies it called for, the loops compiled for it, the bytes it took."""

    copy_calls: int  # calls of aten::clone and aten::copy_
    generated_loops: int  # kernels that torch.compile wrote for it
    bytes_allocated: int  # the sizes of all new tensors, its result included


def memory_use(function: Callable[..., Tensor], *inputs: Tensor) -> MemoryUse:
    """Run a function eagerly and count its copies and the bytes of the tensors that its operations returned."""
    with _AllocationCounter() as counter:
        function(*inputs)
    return MemoryUse(counter.copy_calls, 0, counter.bytes_allocated)


def compiled_memory_use(function: Callable[..., Tensor], *inputs: Tensor) -> MemoryUse:
    """Compile a function for the CPU and count the same in the program that torch.compile generated.

    Takes seconds and needs a C++ compiler. It resets torch.compile's caches, so that there is code to read.

    Raises:
        ArgumentError: an input that is not on the CPU.
        RuntimeError: the generated program allocates nothing that this function can recognise.
    """
    from torch._inductor.utils import run_and_get_code  # slow to import, and of use to no one else

    for tensor in inputs:
        if tensor.device.type != "cpu":
            raise ArgumentError(
                "inputs",
                expected="tensors on the CPU",
                received=f"one on {tensor.device}",
                remedy="Move them by .cpu(): programs for other devices allocate in other words.",
            )
    torch.compiler.reset()
    _, programs = run_and_get_code(torch.compile(function), *inputs)
    program = "\n".join(programs)
    buffers = re.findall(
        r"= empty_strided_cpu\(\(([\d, ]+)\), \([\d, ]*\), torch\.(\w+)\)", program
    )
    if not buffers:
        raise RuntimeError(
            "The compiled program, if there is one, allocates nothing that this function can recognise."
        )
    return MemoryUse(
        copy_calls=len(re.findall(r"aten\.(?:clone|copy_)\.\w+\(", program)),
        generated_loops=len(re.findall(r"= async_compile\.cpp\w*\(", program)),
        bytes_allocated=sum(
            math.prod(int(size) for size in sizes.split(",") if size.strip())
            * getattr(torch, dtype).itemsize
            for sizes, dtype in buffers
        ),
    )


class _AllocationCounter(TorchDispatchMode):
    """Sees every operation below autograd; counts copies, and results that lie in none of their inputs' memory."""

    def __init__(self) -> None:
        super().__init__()
        self.copy_calls = self.bytes_allocated = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.copy_calls += func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_)
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if tensor.untyped_storage().data_ptr() not in given:
                self.bytes_allocated += tensor.untyped_storage().nbytes()
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
