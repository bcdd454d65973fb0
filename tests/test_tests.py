"""Every test asserts something."""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ASSERTING = ("assert", "raises", "warns", "gradcheck", "gradgradcheck", "opcheck")


def functions_of(source: str) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }


def asserts(function: ast.FunctionDef, helpers: dict[str, ast.FunctionDef]) -> bool:
    """Check whether a function asserts: by a statement, by a function with an asserting name, or by a helper."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name.startswith(ASSERTING):
                return True
            helper = helpers.get(name)
            if helper and helper is not function and asserts(helper, helpers):
                return True
    return False


def silent_tests(source: str) -> list[str]:
    functions = functions_of(source)
    tests = [function for name, function in functions.items() if name.startswith("test_")]
    return [test.name for test in tests if not asserts(test, functions)]


@pytest.mark.parametrize("path", sorted(HERE.rglob("test_*.py")), ids=lambda path: path.stem)
def test_every_test_asserts(path):
    assert not silent_tests(path.read_text(encoding="utf-8"))


def test_a_test_without_an_assertion_is_found():
    assert silent_tests("def test_nothing():\n    compute()") == ["test_nothing"]
    assert not silent_tests("def test_something():\n    torch.testing.assert_close(a, b)")
    assert not silent_tests("def agree(): assert x\ndef test_something():\n    agree()")
