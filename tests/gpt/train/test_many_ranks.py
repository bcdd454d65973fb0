"""`heedful train --mesh` in real processes: the losses of one process, and what happens if one of them fails."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from many_ranks import train
from typer.testing import CliRunner

from heedful.cli import app

pytest.importorskip("safetensors", reason="pip install -e '.[train]'")
pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")

TINY = """
tokenizer = "bytes"
steps = 20
batch_size = 4
evaluations = 2
evaluation_batches = 1
sample_tokens = 4
precision = "float32"
[model]
d_model = 16
num_layers = 2
num_heads = 4
num_kv_heads = 2
d_mlp = 32
context_length = 32
dropout = 0.0
"""
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    """Create a working folder with two books and a configuration, and enter it."""
    monkeypatch.chdir(tmp_path)
    Path("sea.txt").write_text("The sea is calm to-night.\nThe tide is full,\n" * 30)
    Path("sky.txt").write_text("The sky is dark, and so it goes.\n" * 30)
    Path("tiny.toml").write_text(TINY)


def begin(out: str) -> list[str]:
    return ["sea.txt", "sky.txt", "--config", "tiny.toml", "--out", out]


def losses(out: str) -> list[float]:
    rows = csv.DictReader(Path(out, "losses.csv").read_text().splitlines())
    return [float(row["training"]) for row in rows]


@pytest.fixture
def one():
    """Train in one process, and return the losses."""
    assert CliRunner().invoke(app, ["train", *begin("one")]).exit_code == 0
    return losses("one")


MESHES = ["dp=2", "cp=2", "tp=2", "dp=2,cp=2", "dp=2,tp=2", "cp=2,tp=2"]


@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_has_the_losses_of_one_process(mesh, one):
    ranks = 2 ** mesh.count("2")
    codes = train(ranks, *begin("many"), "--mesh", mesh)
    assert codes == [0] * ranks, Path("err.0").read_text()
    assert losses("many") == pytest.approx(one, abs=1e-4)
