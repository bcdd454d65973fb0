"""What the README shows is what one gets: its examples run, its output, picture and numbers are made again."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heedful.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_readmes_python_runs(capsys, tmp_path, monkeypatch):
    """Each example needs no other ones than the two of the first screen: the module, and the call."""
    monkeypatch.chdir(tmp_path)  # an example writes a page
    monkeypatch.syspath_prepend(tmp_path)
    pytest.importorskip(
        "transformers",
        reason="transformers is missing; install it with: pip install -e '.[transformers]'",
    )
    module, call, *others = blocks("python")
    (tmp_path / "my.py").write_text(module)
    first: dict[str, Any] = {}
    exec(compile(call, "README.md", "exec"), first)
    assert first["output"].shape == (2, 8, 300, 64)
    names: dict[str, Any] = {}
    for example in others:
        alone = dict(first)
        exec(compile(example, "README.md", "exec"), alone)
        names |= alone
    assert names["report"].ok
    assert names["model"].config._attn_implementation == "heedful"
    assert "kernel" in capsys.readouterr().out


def test_the_readmes_links_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_report_in_the_readme_is_what_heedful_check_prints(tmp_path, monkeypatch):
    first_attempt, *_ = blocks("python")
    (tmp_path / "my.py").write_text(first_attempt)
    monkeypatch.chdir(tmp_path)
    command = ["check", "my.py:CausalAttention", "--with", "d_in=3", "--with", "d_out=4"]
    printed = CliRunner().invoke(app, command).stdout
    shown = re.search(r"```\n(CausalAttention: 3 bugs.*?)```", README, re.DOTALL)
    assert shown is not None
    seconds = re.compile(r", [\d.]+ s\)")
    assert seconds.sub(")", printed).strip() == seconds.sub(")", shown[1]).strip()


def test_the_first_attempt_in_the_readme_gets_a_diff_for_each_bug_and_is_right_afterwards(
    tmp_path, monkeypatch
):
    first_attempt, *_ = blocks("python")
    (tmp_path / "my.py").write_text(first_attempt)
    monkeypatch.chdir(tmp_path)
    command = ["check", "my.py:CausalAttention", "--with", "d_in=3", "--with", "d_out=4"]
    written = CliRunner().invoke(app, [*command, "--write"]).stdout
    assert len(re.findall("^fix of ", written, re.MULTILINE)) == 3, written
    printed = CliRunner().invoke(app, command).stdout
    assert re.match(r"CausalAttention: no bug  \(", printed), printed


def test_the_picture_in_the_readme_is_what_heedful_show_draws(tmp_path, monkeypatch):
    """Releases of Matplotlib draw letters and cells differently, so that the texts in the picture are compared."""
    pytest.importorskip("matplotlib")
    shown = re.search(r"`heedful (show heedful.textbook:\w+ .*?)--out causal.svg`", README)
    assert shown is not None
    words = re.findall(r'"[^"]*"|\S+', shown[1])
    arguments = [word.strip('"') for word in words]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [*arguments, "--out", "causal.svg"])
    assert done.exit_code == 0, done.output
    drawn, kept = tmp_path / "causal.svg", ROOT / "docs" / "causal.svg"
    texts = [
        re.findall("<!-- (.*?) -->", path.read_text(encoding="utf-8")) for path in (drawn, kept)
    ]
    assert "journey" in texts[0]
    assert texts[0] == texts[1], f"copy {drawn} to docs/causal.svg"


def test_the_numbers_in_the_readme_are_those_measured():
    ours, theirs = re.findall(
        r"takes ([\d.]+) ms, and PyTorch's own attention ([\d.]+) ms", README
    )[0]
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert f"| `window-fp32` | sdpa | {ours} | {theirs} |" in benchmarks
    reported, planted, correct = re.findall(
        r"(\d+) of (\d+) planted bugs, and none in (\d+) correct", README
    )[0]
    conformance = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    assert f"| bug reported | {reported} of {planted}," in conformance
    assert f"| correct attentions | {correct} |\n| false alarms | 0 |" in conformance


def test_what_one_installs_is_offered():
    """Every extra that the README names exists."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"'(?:heedful|\.)\[([\w,]+)\]'", README)
    assert named
    assert {extra for names in named for extra in names.split(",")} <= set(
        project["optional-dependencies"]
    )
