"""Shapes in annotations: run-time checks accept right shapes and reject wrong ones."""

import os
import subprocess
import sys

import pytest

# Modules are instrumented when they are imported, so every check runs in a process of its own.
PROGRAM = """
import sys
from jaxtyping import TypeCheckError, install_import_hook

with install_import_hook({modules!r}, "beartype.beartype"):
    import torch
    import heedful
    from heedful import AttentionResult, Causal, Padding, attention, merge, scores
    from heedful.intervals import Intervals
    from heedful.problem import AttentionProblem

torch.manual_seed(0)
Q, K, V = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
{program}
"""
MODULES = [
    "heedful.functional",
    "heedful.intervals",
    "heedful.masks",
    "heedful.problem",
    "heedful.result",
    "heedful.scores",
]
RIGHT = """
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    q, k, v = Q.to(dtype), K.to(dtype), V.to(dtype)
    for kernel in ("auto", "reference", "online"):
        attention(q, k, v, kernel=kernel)
        attention(q, k, v, Causal(align="end"), kernel=kernel, sinks=torch.zeros(6, dtype=dtype))
        attention(q, k, v, torch.rand(5, 7) > 0.3, bias=torch.zeros(6, 1, 7), kernel=kernel)
        attention(q, k, v, Padding([3, 7]), dropout_p=0.5, softcap=5.0, kernel=kernel)
        result = attention(q, k, v, return_lse=True, kernel=kernel)
        merge(result, result)
    for leading in ((), (3,), (2, 3), (2, 2, 3)):
        query, key = torch.zeros(*leading, 5, 8, dtype=dtype), torch.zeros(*leading, 7, 8, dtype=dtype)
        heedful.scaled_dot_product_attention(query, key, key, torch.ones(5, 7).bool())
scores.alibi(6, 5, 7)
heedful.explain(Q, K, V, Causal(align="start"))
"""
WRONG = {
    "a query of three dimensions": "attention(Q[0], K, V)",
    "a key of another head size": "attention(Q, K[..., :7], V)",
    "integers": "attention(Q.long(), K.long(), V.long())",
    "sinks of two dimensions": "attention(Q, K, V, sinks=torch.zeros(6, 1))",
    "a mask of numbers": "attention(Q, K, V, torch.zeros(5, 7))",
    "a problem whose value has other heads": "AttentionProblem(Q, K, V[:, :1])",
    "intervals of two dimensions": "Intervals(torch.zeros(5, 1).int(), torch.zeros(5, 1).int(), 7)",
    "scores of three dimensions": "scores.softmax_with_sinks(Q[0], None)",
}


def assert_runs(program: str) -> None:
    """Run a program with run-time checks; fail if it raises."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(modules=MODULES, program=program)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_right_shapes_pass_run_time_checks():
    assert_runs(RIGHT)


def test_wrong_shapes_fail_run_time_checks():
    calls = [
        f"try:\n    {call}\nexcept TypeCheckError:\n    pass\nelse:\n    sys.exit({name!r})"
        for name, call in WRONG.items()
    ]
    assert_runs("\n".join(calls))


@pytest.mark.parametrize("kernel", ["reference", "torch_sdpa"])
def test_a_kernel_with_a_wrong_output_fails_run_time_checks(kernel):
    """The annotation of the result is checked, too."""
    assert_runs(
        f"from heedful import dispatch\n"
        f"chosen = dispatch.KERNELS[{kernel!r}]\n"
        f"chosen.refusal = lambda problem: None\n"
        f"chosen.run = lambda problem: (problem.query[:, :, 1:], None)\n"
        f"try:\n    attention(Q, Q, Q, kernel={kernel!r})\n"
        f"except TypeCheckError:\n    pass\n"
        f"else:\n    sys.exit('not detected')"
    )
