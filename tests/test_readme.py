"""The README's examples run, in the order in which a reader would type them."""

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_python_runs(capsys):
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


def test_the_readmes_links_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (README.parent / link).exists(), link
