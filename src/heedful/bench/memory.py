"""Cases that measure the memory that one call adds."""

from __future__ import annotations

from torch import Tensor

from heedful.bench.accuracy import check_whole
from heedful.bench.cases import BenchCase
from heedful.bench.results import CaseResult
from heedful.bench.worker import Worker
from heedful.bench.workload import AttentionWorkload, make_inputs
from heedful.functional import attention
from heedful.kernels.torch_sdpa import pytorch_sdpa
from heedful.masks import Causal

CHECKED_QUERIES: int = 64  # the last ones, which see nearly all keys


def measure_memory(case: BenchCase, workload: AttentionWorkload) -> CaseResult:
    """Measure by how much one call raises the peak of resident memory in a fresh process.

    The output of the last queries is compared with float64.

    Args:
        case: The case.
        workload: The case's workload, or a smaller one. It is causal.
    """
    inputs = make_inputs(workload)
    with Worker(case.ours, workload) as worker:
        added = worker.memory()
        (output,) = worker.results()
    query, key, value = inputs.query[:, :, -CHECKED_QUERIES:], inputs.key, inputs.value
    mask = Causal(align="end")
    right = attention(query.double(), key.double(), value.double(), mask, kernel="reference")
    assert isinstance(right, Tensor)  # the log-sum-exp is not requested
    visible = mask.dense(query.shape[2], workload.keys)
    baseline = pytorch_sdpa(query, key, value, attn_mask=visible)
    check = check_whole(output[:, :, -CHECKED_QUERIES:], right, baseline, workload.dtype)
    return CaseResult(case, workload, inputs.kernel, checks=(check,), memory=added)
