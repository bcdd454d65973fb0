"""Our own kernel on CPUs, compiled from native/: every mask, grouped heads, log-sum-exp, dropout by seed."""

import torch
from torch import Tensor

from heedful.dropout import draw_seed
from heedful.kernels.native import calls, library, operators, structs
from heedful.modes import eager, transforming
from heedful.problem import AttentionProblem

NAME = "native"
MOST = 2**31 - 1  # of queries, keys, …: int32 counts them


def refusal(problem: AttentionProblem) -> str | None:
    """It runs float32, bfloat16 and float16 on CPUs, where the library was built."""
    query, sizes = problem.query, problem.sizes
    if library.missing:
        return library.missing
    if not query.is_cpu:
        return f"the native kernel runs on CPUs only, not on {query.device.type}"
    if query.dtype not in structs.DTYPES:
        return "the native kernel has no float64: its sums are float32"
    if sizes.D == 0 or sizes.Dv == 0:
        return "the native kernel takes no head size of 0"
    if not torch.compiler.is_compiling() and max(sizes) > MOST:  # else a guard on every size
        return (
            f"the native kernel counts up to {MOST}, and one of the sizes {tuple(sizes)} is larger"
        )
    if transforming():
        return "the native kernel has no rules for torch.func's transforms and forward-mode derivatives"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor | None]:
    """One call of the library, past PyTorch's dispatcher where neither gradients nor a mode need to see it."""
    query, key, value = problem.query, problem.key, problem.value
    start, stop, mask = _sight(problem)
    bias, sinks = problem.bias, problem.sinks
    if bias is not None:
        bias = bias.to(torch.float32)[(None,) * (4 - bias.dim())]
    if sinks is not None:
        sinks = sinks.to(torch.float32).contiguous()
    seed = draw_seed() if problem.dropout_p > 0 else None
    tensors = (query, key, value, start, stop, mask, bias, sinks, seed)
    numbers = (problem.factor, problem.softcap or 0.0, problem.dropout_p)
    if problem.needs_grad or not eager(*tensors):
        return operators.attention_forward(*tensors, *numbers)
    return calls.forward(*tensors, *numbers, wants_lse=problem.return_lse)


def _sight(problem: AttentionProblem) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What the mask lowers to: start and stop of runs of keys, or else a Boolean tensor."""
    if problem.mask is None:
        return None, None, None
    if problem.intervals is None:
        return None, None, problem.dense_mask
    return problem.intervals.start.contiguous(), problem.intervals.stop.contiguous(), None


def scratch_bytes(problem: AttentionProblem) -> int:
    """A tile of scores, weights, output and copied rows for each thread."""
    sizes = problem.sizes
    return torch.get_num_threads() * 4 * 64 * (2 * sizes.D + 2 * sizes.Dv + 2 * 64)


def notes(problem: AttentionProblem) -> str:
    """The instruction set, and which tensors are copied first."""
    tensors = {"query": problem.query, "key": problem.key, "value": problem.value}
    copied = [name for name, tensor in tensors.items() if tensor.stride(-1) != 1]
    remark = f"copies {', '.join(copied)}, whose last dimension is not contiguous"
    return f"{library.isa}; {remark}" if copied else f"{library.isa}"
