"""The native kernel on CPUs, compiled from native/. It supports every option except float64 and double backward."""

import torch
from torch import Tensor

from heedful.kernels.native import calls, library, operators, structs
from heedful.metering import peak_bytes
from heedful.modes import eager, transforming
from heedful.problem import AttentionProblem
from heedful.statistics import Statistics

NAME = "native"
_Maybe = Tensor | None
MAX_SIZE = 2**31 - 1  # of every dimension: key ranges are int32
UNMEASURED = ("neon", "neon_bf16")  # instruction sets whose speed is only expected


def refusal(problem: AttentionProblem) -> str | None:
    """Return why the kernel cannot run the problem: the library, the device, the dtype, a size or a transform."""
    query, sizes = problem.query, problem.sizes
    if library.missing:
        return library.missing
    if not query.is_cpu:
        return f"the native kernel runs on CPUs only, not on {query.device.type}"
    if query.dtype not in structs.DTYPES:
        return "the native kernel has no float64: its sums are float32"
    if sizes.D == 0 or sizes.Dv == 0:
        return "the native kernel does not support a head size of 0"
    # Not under torch.compile, where the graph would get a guard on every size.
    if not torch.compiler.is_compiling() and max(sizes) > MAX_SIZE:
        return f"the native kernel supports sizes up to {MAX_SIZE}, and one of {tuple(sizes)} is larger"
    if problem.placement is not None and problem.dropout_p > 0:
        return "the native kernel counts queries, keys and heads from 0, and dropout of a part does not"
    if transforming():
        return "the native kernel has no rules for torch.func's transforms and forward-mode derivatives"
    return None


def run(problem: AttentionProblem) -> tuple[Tensor, Tensor | None]:
    """Call the library, bypassing PyTorch's dispatcher if neither gradients nor a mode need to see the call."""
    tensors = _lowered_tensors(problem)
    numbers = (problem.factor, problem.softcap or 0.0, problem.dropout_p)
    if problem.needs_grad or not eager(*tensors):
        return operators.attention_forward(*tensors, *numbers)
    return calls.forward(*tensors, *numbers, wants_lse=problem.return_lse)


def summarize(
    problem: AttentionProblem,
    lse: _Maybe,
    regions: tuple[Tensor, Tensor] | None,
    shift: int,
    for_each_query: bool,
    for_each_key: bool,
    top_k: int,
    cell: list[int],
) -> Statistics[Tensor]:
    """Compute statistics of the weights of a problem that it does not refuse; `calls` describes the arguments."""
    query, key, _, *masks, bias, sinks, _ = _lowered_tensors(problem)
    bias, sinks = (None if tensor is None else tensor.detach() for tensor in (bias, sinks))
    return Statistics(
        *operators.attention_summary(
            *(query.detach(), key.detach(), lse, *masks, bias, sinks, *(regions or (None, None))),
            *(problem.factor, problem.softcap or 0.0, shift),
            *(for_each_query, for_each_key, top_k, cell),
        )
    )


def _lowered_tensors(
    problem: AttentionProblem,
) -> tuple[Tensor, Tensor, Tensor, _Maybe, _Maybe, _Maybe, _Maybe, _Maybe, _Maybe]:
    """Return the tensors that the library's functions take, from the query to the seed."""
    start, stop, mask = _lowered_mask(problem)
    bias, sinks = problem.bias, problem.sinks
    if bias is not None:
        bias = bias.to(torch.float32)[(None,) * (4 - bias.dim())]
    if sinks is not None:
        sinks = sinks.to(torch.float32).contiguous()
    seed = problem.draw_seed() if problem.dropout_p > 0 else None
    return problem.query, problem.key, problem.value, start, stop, mask, bias, sinks, seed


def _lowered_mask(problem: AttentionProblem) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the mask as start and stop of key ranges, or else as a Boolean tensor; None for what is not used."""
    if problem.mask is None:
        return None, None, None
    if problem.intervals is None:
        return None, None, problem.dense_mask
    return problem.intervals.start.contiguous(), problem.intervals.stop.contiguous(), None


def scratch_bytes(problem: AttentionProblem) -> int:
    """Ask the library what its threads need; to that, add the tensors made for it and the log-sum-exp for gradients."""
    threads = torch.get_num_threads() if library.parallel_for else 1
    core = library.library.heedful_forward_scratch(
        structs.pack_sizes(problem.sizes, problem.query.dtype), threads
    )
    B, Hq, _, Tq, *_ = problem.sizes
    lse = 4 * B * Hq * Tq if problem.needs_grad and not problem.return_lse else 0
    return peak_bytes(problem, _prepare) + core + lse


def _prepare(problem: AttentionProblem) -> list[Tensor | None]:
    """Return what lies in memory while the library runs, besides output and log-sum-exp."""
    query, key, value, *others = _lowered_tensors(problem)
    return [*map(calls.contiguous_rows, (query, key, value)), *others]


def notes(problem: AttentionProblem) -> str:
    """Return the instruction set in use, whether it is unmeasured, and the tensors that are copied first."""
    remarks = [f"{library.isa}"]
    if library.isa in UNMEASURED:
        remarks.append("its speed is expected, not measured: no Arm machine has timed it")
    tensors = {"query": problem.query, "key": problem.key, "value": problem.value}
    copied = [name for name, tensor in tensors.items() if tensor.stride(-1) != 1]
    if copied:
        remarks.append(f"copies {', '.join(copied)}, whose last dimension is not contiguous")
    return "; ".join(remarks)
