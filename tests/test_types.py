"""What a type checker says of code that calls heedful."""

import subprocess
import sys
from pathlib import Path

SNIPPET = """
import torch
from heedful import AttentionResult, Causal, Window, attention
from heedful.result import AttentionResultWithMass
from typing import assert_type

x = torch.zeros(1, 1, 3, 8)
attention(x, x, x, Causal()).sum()
attention(x, x, x, torch.ones(3, 3).bool() & Causal() | Window(2)).transpose(1, 2)
assert_type(attention(x, x, x, return_lse=True), AttentionResult)
assert_type(attention(x, x, x, return_received_mass=True), AttentionResultWithMass)
output, lse = attention(x, x, x, scale=1.0, return_lse=True)
lse.sum()
def either(wanted: bool) -> None:
    attention(x, x, x, return_lse=wanted)
"""
WRONG = {
    "attention(x, x, x, return_lse=True).sum()": '"sum"',
    "attention(x, x, x, is_causal=True)": "No overloads",
}


def pyright(folder: Path, source: str) -> str:
    """Return what pyright prints of a file that imports this package."""
    package = Path(sys.modules["heedful"].__file__ or "").parents[1]
    (folder / "pyrightconfig.json").write_text(
        f'{{"extraPaths": ["{package}"], "typeCheckingMode": "standard"}}'
    )
    (folder / "use.py").write_text(source)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300).stdout


def test_the_result_of_attention_has_a_type(tmp_path):
    assert "0 errors" in pyright(tmp_path, SNIPPET)
    printed = pyright(tmp_path, SNIPPET + "\n".join(WRONG))
    assert f"{len(WRONG)} errors" in printed
    assert all(text in printed for text in WRONG.values())
