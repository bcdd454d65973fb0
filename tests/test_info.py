"""`heedful info` describes the installation as text and as JSON."""

import json

import torch
from typer.testing import CliRunner

import heedful
from heedful.cli import app
from heedful.kernels.native import library


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["info", *arguments])
    assert result.exit_code == 0
    return result.stdout


def test_json_and_text_agree():
    description, text = json.loads(run("--json")), run()
    assert description["versions"]["heedful"] == heedful.__version__
    assert description["versions"]["torch"] == torch.__version__
    assert description["threads"] == torch.get_num_threads()
    assert (description["isa"] is None) == (description["missing"] is not None)
    for value in (
        *description["versions"].values(),
        *description["kernels"].values(),
        *description["isas"],
    ):
        assert value in text


def test_it_explains_why_the_native_kernel_is_missing(monkeypatch):
    monkeypatch.setattr(library, "missing", "no compiler")
    monkeypatch.setattr(library, "isa", None)
    description = json.loads(run("--json"))
    assert description["missing"] == "no compiler"
    assert description["isa"] is None
    assert set(description["kernels"].values()) == {"torch_sdpa"}
    assert "native     cannot be used: no compiler" in run()
