"""The package as it is imported: small, quick, and without side effects."""

import ast
import inspect
import subprocess
import sys

import pytest

import heedful


def test_everything_exported_exists_and_is_documented():
    assert sorted(heedful.__all__) == heedful.__all__
    for name in heedful.__all__:
        assert inspect.getdoc(getattr(heedful, name)), name


def test_the_front_door_is_one_screen_of_re_exports():
    source = inspect.getsource(heedful)
    assert len(source.splitlines()) <= 70
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign)
    assert all(isinstance(node, allowed) for node in ast.parse(source).body)


def test_importing_adds_little_to_torch():
    """At most 0.3 s on top of `import torch`; the least of five, each in a process of its own."""
    program = "import time, torch; start = time.perf_counter(); import heedful; print(time.perf_counter() - start)"
    seconds = min(
        float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
        )
        for _ in range(5)
    )
    assert seconds <= 0.3


@pytest.mark.parametrize(
    "state",
    [
        "torch.get_rng_state().sum().item()",
        "torch.get_num_threads()",
        "torch.get_default_dtype()",
        "str(warnings.filters)",
        "torch.nn.functional.scaled_dot_product_attention",
    ],
)
def test_importing_changes_no_global_state(state):
    program = f"import torch, warnings; before = {state}; import heedful; assert before == {state}, {state}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
