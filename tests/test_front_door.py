"""Importing the package is quick and has no side effects."""

import ast
import inspect
import re
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
    assert len(source.splitlines()) <= 96
    allowed = (ast.Expr, ast.ImportFrom, ast.Assign)
    others = [node for node in ast.parse(source).body if not isinstance(node, allowed)]
    # Only the import for type checkers, whose run-time twin is delayed.
    assert [ast.unparse(node.test) for node in others] == ["TYPE_CHECKING"]


def test_every_name_is_imported_on_first_use():
    program = (
        "import sys, heedful; assert 'torch' not in sys.modules; "
        "assert set(heedful.__all__) <= set(dir(heedful)); "
        "from heedful import check; assert check is heedful.check is heedful.conformance.check; "
        "assert not hasattr(heedful, 'chekc')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["command", "practising.command", "grading.command"])
def test_commands_whose_targets_run_in_other_processes_import_no_torch(command):
    program = f"import sys, heedful.conformance.{command}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_loads_nothing_heavy():
    """Besides torch, only `executing` and `jaxtyping` (0.02 s), which import the standard library and numpy."""
    program = (
        "import sys, torch; before = set(sys.modules); from heedful import attention; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)); "
        "print(*[name for name in set(sys.modules) - before if name.startswith('torch')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    packages, parts_of_torch = done.stdout.split("\n")[:2]
    assert set(packages.split()) <= {"heedful", "executing", "jaxtyping", "numpy", "torch"}
    assert not re.search(r"_dynamo|_inductor|flex_attention|onnx", parts_of_torch)


def test_importing_changes_no_global_state():
    states = (
        "torch.get_rng_state().sum().item(), torch.get_num_threads(), torch.get_default_dtype(), "
        "str(warnings.filters), torch.nn.functional.scaled_dot_product_attention"
    )
    program = f"import torch, warnings; before = ({states}); from heedful import *; assert before == ({states})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
