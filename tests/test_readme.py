"""The README's examples run, in the order in which a reader would type them."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heedful.cli import app

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example writes a page
    pytest.importorskip(
        "transformers",
        reason="transformers is missing; install it with: pip install -e '.[transformers]'",
    )
    examples = re.findall(
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
    assert len(examples) >= 3
    assert names["output"].shape == (2, 8, 300, 64)
    assert names["certificate"].exact
    printed = capsys.readouterr().out
    assert "kernel" in printed
    assert "weights" in printed
    assert (tmp_path / "page.html").exists()


def test_the_readmes_links_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (README.parent / link).exists(), link


CHECKED = """import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length=16):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out)
        self.W_key = nn.Linear(d_in, d_out)
        self.W_value = nn.Linear(d_in, d_out)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), 1).bool())

    def forward(self, x):
        batch, num_tokens, _ = x.shape
        queries, keys, values = self.W_query(x), self.W_key(x), self.W_value(x)

        scores = queries @ keys.transpose(1, 2)
        scores.masked_fill(self.mask[:num_tokens, :num_tokens], -torch.inf)
        weights = torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)
        return weights @ values
"""


def test_the_report_in_the_readme_is_what_heedful_check_prints(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text(CHECKED)
    monkeypatch.chdir(tmp_path)
    command = ["check", "my.py:CausalAttention", "--with", "d_in=3", "--with", "d_out=4"]
    printed = CliRunner().invoke(app, command).stdout
    shown = re.search(
        r"```\n(CausalAttention: .*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert shown is not None
    seconds = re.compile(r", [\d.]+ s\)")
    assert seconds.sub(")", printed).strip() == seconds.sub(")", shown[1]).strip()
