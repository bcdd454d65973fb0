"""`heedful info`: what this installation computes with, as text and as JSON."""

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


def test_json_holds_what_the_text_says():
    found, text = json.loads(run("--json")), run()
    assert found["versions"]["heedful"] == heedful.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert (found["isa"] is None) == (found["missing"] is not None)
    for said in (*found["versions"].values(), *found["kernels"].values(), *found["isas"]):
        assert said in text


def test_it_says_why_the_native_kernel_is_missing(monkeypatch):
    monkeypatch.setattr(library, "missing", "no compiler")
    monkeypatch.setattr(library, "isa", None)
    found = json.loads(run("--json"))
    assert found["missing"] == "no compiler"
    assert found["isa"] is None
    assert set(found["kernels"].values()) == {"torch_sdpa"}
    assert "native     missing: no compiler" in run()
