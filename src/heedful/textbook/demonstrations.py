"""Measurements that show why attention is built as it is.

They cover the division by √d, dropout, the stable softmax, and the copy when heads are merged. Every function returns
its measurements and prints nothing. Functions that draw random numbers use torch's generator, so `torch.manual_seed`
before the call makes them reproducible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heedful.errors import ArgumentError
from heedful.textbook.checks import check_sizes
from heedful.textbook.simplified import weights_by_naive_softmax, weights_by_stable_softmax

# --- why scores are divided by √d --------------------------------------------------------------------


@dataclass(frozen=True)
class DotProductVariance:
    """The variance of dot products of random vectors, before and after the division by √d.

    Attributes:
        d: the number of features of each vector.
        variance: the variance of q·k, about d.
        scaled_variance: the variance of q·k / √d, about 1.
        standard_error: the relative standard error of both, which is due to chance.
    """

    d: int
    variance: float
    scaled_variance: float
    standard_error: float


def variance_of_dot_products(d: int, *, draws: int = 1000) -> DotProductVariance:
    """Measure the variance of q·k for standard normal vectors.

    q·k is the sum of d independent products of variance 1. Its variance is therefore d, and that of q·k / √d is 1 for
    any d (Vaswani et al. 2017, §3.2.1, footnote 4). Each product has a fourth moment of 9, so the relative standard
    error of a variance over n draws is √((2 + 6/d) / n). Reproduces the law variance.dot_product.

    Args:
        d: the number of features of each vector.
        draws: the number of pairs of vectors.

    Returns:
        The measurement.

    Raises:
        ArgumentError: an argument is below 1.

    Examples:
        >>> measured = variance_of_dot_products(64, draws=10_000)
        >>> abs(measured.scaled_variance - 1) < 6 * measured.standard_error
        True
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
    """The softmax of scores that were multiplied by a factor.

    Attributes:
        factor: the factor.
        weights: the weights.
        keys_in_use: exp(entropy), which is n if n keys have equal weights and 1 if one key has all the weight.
    """

    factor: float
    weights: tuple[float, ...]
    keys_in_use: float


def sharpness(scores: Float[Tensor, " T"], factor: float) -> Sharpness:
    """Compute softmax(factor · scores). The larger the scores, the fewer keys share the weight.

    Reproduces the figures softmax.unscaled (factor 1) and softmax.times8 (factor 8). If a softmax gives all weight to
    one key, no gradient reaches any score. Unscaled scores of a large d have this effect before any training.

    Args:
        scores: (T,).
        factor: the factor.

    Returns:
        The weights, and the number of keys that share them.

    Examples:
        >>> sharpness(torch.tensor([1.0, 1.0]), factor=8.0).weights
        (0.5, 0.5)
    """
    weights = torch.softmax(factor * scores, dim=-1)
    entropy = torch.special.entr(weights).sum()
    return Sharpness(factor, tuple(weights.tolist()), entropy.exp().item())


# --- what dropout does to the weights ----------------------------------------------------------------


@dataclass(frozen=True)
class DropoutEffect:
    """The effect of dropout on weights, over many draws.

    Attributes:
        p: the dropout probability.
        dropped: the fraction of weights that became 0, about p.
        min_growth, max_growth: the range of survivor / weight; both are 1 / (1 − p).
        drift: the largest distance between the mean of the draws and the weight, in standard errors.
        min_row_sum, max_row_sum: the range of the row sums, which are no longer 1 in a single draw.
    """

    p: float
    dropped: float
    min_growth: float
    max_growth: float
    drift: float
    min_row_sum: float
    max_row_sum: float


def effect_of_dropout(
    weights: Float[Tensor, "*rows T"], p: float, *, draws: int = 1000
) -> DropoutEffect:
    """Apply dropout to weights many times, and compare the results with the weights.

    Survivors are scaled by 1 / (1 − p), which keeps the expectation of each weight w: (1 − p) · w / (1 − p) = w. The
    standard error of its mean over n draws is w · √(p / (1 − p) / n).

    Args:
        weights: (…, T).
        p: the dropout probability.
        draws: the number of draws.

    Returns:
        The measurement.

    Raises:
        ArgumentError: p is not strictly between 0 and 1, so that nothing or everything is dropped.

    Examples:
        >>> effect = effect_of_dropout(torch.tensor([0.25, 0.75]), p=0.5)
        >>> effect.min_growth, effect.max_growth
        (2.0, 2.0)
    """
    check_sizes(draws=draws)
    if not 0.0 < p < 1.0:
        raise ArgumentError(
            "p",
            expected="a probability strictly between 0 and 1",
            received=repr(p),
            remedy="Pass the fraction of weights to drop, such as 0.5.",
        )
    dropped_weights = nn.Dropout(p)(weights.expand(draws, *weights.shape))
    row_sums = dropped_weights.sum(dim=-1)

    visible = weights > 0  # dropout cannot zero what a mask has already zeroed
    before, after = weights[visible], dropped_weights[:, visible]
    growth = (after / before)[after > 0]
    standard_errors = before * math.sqrt(p / (1 - p) / draws)
    drift = (after.mean(dim=0) - before).abs() / standard_errors
    return DropoutEffect(
        p=p,
        dropped=(after == 0).double().mean().item(),
        min_growth=growth.min().item(),
        max_growth=growth.max().item(),
        drift=drift.max().item(),
        min_row_sum=row_sums.min().item(),
        max_row_sum=row_sums.max().item(),
    )


# --- where the naive softmax leaves the range of a dtype ---------------------------------------------


@dataclass(frozen=True)
class NaiveSoftmaxRange:
    """The range of scores in which exp(s) / Σ exp(s) is correct in a dtype, and its results beyond.

    Attributes:
        dtype: the dtype.
        keys: the number of keys, which all have the same score.
        lowest, highest: the range.
        naive_just_above: a weight at highest + 1. For several keys it is a silent 0: exp does not overflow, but the sum
            does.
        naive_far_above: a weight at 2 · highest, which is NaN, from inf / inf.
        stable_far_above: the same weight from the stable softmax, which is 1 / keys as everywhere.
    """

    dtype: torch.dtype
    keys: int
    lowest: float
    highest: float
    naive_just_above: float
    naive_far_above: float
    stable_far_above: float


def range_of_naive_softmax(dtype: torch.dtype, *, keys: int = 6) -> NaiveSoftmaxRange:
    """Find, by bisection, the scores s for which `keys` equal scores s still get weights of 1 / keys.

    The first overflow is that of the sum of the exponentials, at log(largest number / keys): 86.9 for six keys in
    float32. For very negative scores, every exponential underflows to 0, and 0 / 0 is NaN.

    Args:
        dtype: a floating dtype.
        keys: the number of scores in the row.

    Returns:
        The range.

    Raises:
        ArgumentError: `keys` is below 1.

    Examples:
        >>> round(range_of_naive_softmax(torch.float32).highest, 1)
        86.9
    """
    check_sizes(keys=keys)

    def weight_at(score: float, softmax: Callable[[Tensor], Tensor]) -> float:
        return softmax(torch.full((keys,), score, dtype=dtype))[0].item()

    def is_correct(score: float) -> bool:
        rounding = torch.finfo(dtype).eps
        return math.isclose(
            weight_at(score, weights_by_naive_softmax), 1 / keys, rel_tol=4 * rounding
        )

    def last_correct(correct: float, wrong: float) -> float:
        for _ in range(64):  # each step halves the interval, and float64 has fewer binary digits
            middle = (correct + wrong) / 2
            correct, wrong = (middle, wrong) if is_correct(middle) else (correct, middle)
        return torch.tensor(correct, dtype=dtype).item()

    lowest, highest = last_correct(0.0, -1000.0), last_correct(0.0, 1000.0)
    return NaiveSoftmaxRange(
        dtype=dtype,
        keys=keys,
        lowest=lowest,
        highest=highest,
        naive_just_above=weight_at(highest + 1, weights_by_naive_softmax),
        naive_far_above=weight_at(2 * highest, weights_by_naive_softmax),
        stable_far_above=weight_at(2 * highest, weights_by_stable_softmax),
    )


# --- the copy when heads are merged ------------------------------------------------------------------


def contiguous_copies(*, heads: int, tokens: int, batch: int = 2, head_dim: int = 4) -> bool:
    """Check whether `.contiguous()` copies when heads move behind tokens: (B, H, T, D) → (B, T, H, D).

    It does, unless there is a single head or a single token: swapping with a dimension of size 1 moves nothing.

    Args:
        heads: the number of heads, H.
        tokens: the number of tokens, T.
        batch: the number of batch entries, B.
        head_dim: the number of features of each head, D.

    Returns:
        Whether the result has new memory.

    Examples:
        >>> contiguous_copies(heads=2, tokens=3)
        True
        >>> contiguous_copies(heads=1, tokens=3)
        False
    """
    context_by_head = torch.zeros(batch, heads, tokens, head_dim)
    transposed = context_by_head.transpose(1, 2)
    return transposed.contiguous().data_ptr() != transposed.data_ptr()


def merge_by_matmul(
    weights: Float[Tensor, "B H T T"], values: Float[Tensor, "B H T D"]
) -> Float[Tensor, "B T H*D"]:
    """Compute the context with a matrix product, as `MultiHeadAttention` does.

    Args:
        weights: (B, H, T, T).
        values: (B, H, T, D).

    Returns:
        The context (B, T, H*D).

    Examples:
        >>> merge_by_matmul(torch.rand(2, 3, 5, 5), torch.rand(2, 3, 5, 4)).shape
        torch.Size([2, 5, 12])
    """
    context_by_head = weights @ values
    return context_by_head.transpose(1, 2).flatten(start_dim=2)


def merge_by_einsum(
    weights: Float[Tensor, "B H T T"], values: Float[Tensor, "B H T D"]
) -> Float[Tensor, "B T H*D"]:
    """Compute the context with einsum, whose result only appears to be in the order of its letters.

    Args:
        weights: (B, H, T, T).
        values: (B, H, T, D).

    Returns:
        The context (B, T, H*D).

    Examples:
        >>> merge_by_einsum(torch.rand(2, 3, 5, 5), torch.rand(2, 3, 5, 4)).shape
        torch.Size([2, 5, 12])
    """
    context_by_head = torch.einsum("bhij,bhjv->bihv", weights, values)
    return context_by_head.flatten(start_dim=2)


def merge_in_place(
    weights: Float[Tensor, "B H T T"], values: Float[Tensor, "B H T D"]
) -> Float[Tensor, "B T H*D"]:
    """Compute the context head by head, and write each product directly to its place, so that nothing is copied.

    Args:
        weights: (B, H, T, T).
        values: (B, H, T, D).

    Returns:
        The context (B, T, H*D).

    Examples:
        >>> merge_in_place(torch.rand(2, 3, 5, 5), torch.rand(2, 3, 5, 4)).shape
        torch.Size([2, 5, 12])
    """
    B, H, T, D = values.shape
    context = values.new_empty(B, T, H, D)
    for b in range(B):
        for h in range(H):
            torch.mm(weights[b, h], values[b, h], out=context[b, :, h])
    return context.flatten(start_dim=2)


def merge_by_fused_kernel(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B T H D"],
    values: Float[Tensor, "B T H D"],
) -> Float[Tensor, "B T H*D"]:
    """Compute causal attention with PyTorch's fused kernel.

    On a CPU, its output has the memory order of its queries, by token, so that transposing back does not copy.

    Args:
        queries, keys, values: (B, T, H, D), in the order that a projection leaves them.

    Returns:
        The context (B, T, H*D).

    Examples:
        >>> merge_by_fused_kernel(*torch.rand(3, 2, 5, 3, 4)).shape
        torch.Size([2, 5, 12])
    """
    context_by_head = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
    )
    return context_by_head.transpose(1, 2).flatten(start_dim=2)


@dataclass(frozen=True)
class MemoryUse:
    """The copies and memory of a function.

    Attributes:
        copy_calls: the number of calls of aten::clone and aten::copy_.
        generated_loops: the number of kernels that torch.compile generated; 0 for an eager function.
        bytes_allocated: the total size of all new tensors, the result included.
    """

    copy_calls: int
    generated_loops: int
    bytes_allocated: int


def memory_use(function: Callable[..., Tensor], *inputs: Tensor) -> MemoryUse:
    """Run a function eagerly, and count its copies and the bytes of the tensors that its operations return.

    Args:
        function: the function.
        inputs: its arguments.

    Returns:
        The measurement.

    Examples:
        >>> memory_use(torch.clone, torch.zeros(10, dtype=torch.float32))
        MemoryUse(copy_calls=1, generated_loops=0, bytes_allocated=40)
    """
    with _AllocationCounter() as counter:
        function(*inputs)
    return MemoryUse(counter.copy_calls, 0, counter.bytes_allocated)


def compiled_memory_use(function: Callable[..., Tensor], *inputs: Tensor) -> MemoryUse:
    """Compile a function for the CPU, and count the copies, loops and bytes in the generated program.

    This takes seconds and needs a C++ compiler. It resets the caches of torch.compile, so that a program is generated.

    Args:
        function: the function.
        inputs: its arguments, on the CPU.

    Returns:
        The measurement.

    Raises:
        ArgumentError: an input is not on the CPU.
        RuntimeError: the generated program contains no allocation that this function recognizes.
    """
    from torch._inductor.utils import run_and_get_code  # slow to import, and only needed here

    for tensor in inputs:
        if tensor.device.type != "cpu":
            raise ArgumentError(
                "inputs",
                expected="tensors on the CPU",
                received=f"one on {tensor.device}",
                remedy="Move them with .cpu(): programs for other devices allocate differently.",
            )
    torch.compiler.reset()
    _, programs = run_and_get_code(torch.compile(function), *inputs)
    program = "\n".join(programs)
    buffers = re.findall(
        r"= empty_strided_cpu\(\(([\d, ]+)\), \([\d, ]*\), torch\.(\w+)\)", program
    )
    if not buffers:
        raise RuntimeError(
            "The compiled program, if there is one, contains no allocation that this function recognizes."
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
    """Intercepts every operation below autograd, and counts copies and results that share no memory with the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.copy_calls = self.bytes_allocated = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.copy_calls += func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_)
        input_memory = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            if tensor.untyped_storage().data_ptr() not in input_memory:
                self.bytes_allocated += tensor.untyped_storage().nbytes()
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
