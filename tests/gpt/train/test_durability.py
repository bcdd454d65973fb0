"""What a run of `heedful train` survives: kills at random moments, and flipped bits in its files."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from heedful.cli import app
from heedful.gpt.train.state import load_state
from heedful.gpt.train.trainer import Trainer

pytest.importorskip("safetensors", reason="pip install -e '.[train]'")
pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")

TINY = """
tokenizer = "bytes"
steps = 24
batch_size = 2
evaluations = 12
evaluation_batches = 1
sample_tokens = 4
precision = "float32"
[model]
d_model = 16
num_layers = 2
num_heads = 2
num_kv_heads = 1
d_mlp = 32
context_length = 32
dropout = 0.2
"""
KILLED_ON_PURPOSE = -signal.SIGKILL


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    """Create a working folder with a book and a configuration, and enter it."""
    monkeypatch.chdir(tmp_path)
    Path("sea.txt").write_text("The sea is calm to-night.\nThe tide is full,\n" * 30)
    Path("tiny.toml").write_text(TINY)


def arguments(out: str) -> list[str]:
    """Return the command that continues the run in a folder, or begins it."""
    if Path(out).exists():
        return ["train", "--resume", "--out", out]
    return ["train", "sea.txt", "--config", "tiny.toml", "--out", out]


def train_here(folder: str, out: str) -> None:
    """Run the command in this process, which may be killed."""
    os.chdir(folder)
    torch.set_num_threads(1)
    app(arguments(out))


def progress(out: str) -> tuple[dict[str, torch.Tensor], str]:
    """Return all that is left of a run: the state after its last step, weights included, and its losses."""
    tensors, facts = load_state(Path(out, "training.safetensors"))
    assert facts["step"] == 24
    return tensors, Path(out, "losses.csv").read_text()


def same(one: tuple[dict[str, torch.Tensor], str], other: tuple[dict[str, torch.Tensor], str]):
    """Return whether two runs have ended with the same bits."""
    return (
        one[1] == other[1]
        and one[0].keys() == other[0].keys()
        and all(torch.equal(one[0][name], other[0][name]) for name in one[0])
    )


# --- kills -------------------------------------------------------------------------------------------


def killed_runs_equal_a_whole_one(kills: int) -> None:
    """Kill runs at random moments and resume each until it ends; compare it with a run that was left alone."""
    context = multiprocessing.get_context("forkserver")  # its processes need not import torch again
    context.set_forkserver_preload(["heedful.gpt.train.command", "matplotlib.figure"])
    dice = random.Random(0)

    def train(out: str, seconds: float | None) -> int:
        process = context.Process(target=train_here, args=(str(Path.cwd()), out))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        assert process.exitcode in (0, KILLED_ON_PURPOSE)
        return process.exitcode

    train("warm", None)
    began = time.perf_counter()
    train("whole", None)
    duration = time.perf_counter() - began
    whole, number = progress("whole"), 0
    while kills > 0:
        out, number = f"out{number}", number + 1
        while kills > 0 and train(out, dice.uniform(0, duration)) == KILLED_ON_PURPOSE:
            kills -= 1
        assert train(out, None) == 0
        assert same(progress(out), whole), f"{out} differs, with {kills} kills to go"


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_equals_a_whole_one():
    killed_runs_equal_a_whole_one(3)


@pytest.mark.slow
def test_runs_that_are_killed_a_hundred_times_equal_a_whole_one():
    killed_runs_equal_a_whole_one(100)


# --- flipped bits ------------------------------------------------------------------------------------


def flipped_bits_change_nothing(flips: int) -> None:
    """Flip one random bit of a random file of a half-done run: it is refused, or ends with the same bits."""
    take_step = Trainer.take_step

    def interrupted(trainer: Trainer) -> float:
        if trainer.step == 18:
            signal.raise_signal(signal.SIGINT)
        return take_step(trainer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", interrupted)
        assert CliRunner().invoke(app, arguments("half")).exit_code == 130
    shutil.copytree("half", "whole")
    assert CliRunner().invoke(app, arguments("whole")).exit_code == 0
    whole, names = progress("whole"), sorted(path.name for path in Path("half").iterdir())
    dice = random.Random(0)
    refused = 0
    for flip in range(flips):
        shutil.copytree("half", "flipped")
        path = Path("flipped", dice.choice(names))
        content = bytearray(path.read_bytes())
        position, bit = dice.randrange(len(content)), dice.randrange(8)
        content[position] ^= 1 << bit
        path.write_bytes(content)
        result = CliRunner().invoke(app, arguments("flipped"))
        description = f"flip {flip}: bit {bit} of byte {position} of {path.name}: {result.output}"
        if result.exit_code == 0:
            assert same(progress("flipped"), whole), description
        else:
            assert result.exit_code == 2, description
            assert result.stderr.startswith("heedful train: "), description
            assert result.stderr.count("\n") == 1, description
            assert "; received " in result.stderr, description
            refused += 1
        shutil.rmtree("flipped")
    assert 0 < refused < flips


def test_twenty_five_flipped_bits_are_harmless_or_refused():
    flipped_bits_change_nothing(25)


@pytest.mark.slow
def test_five_hundred_flipped_bits_are_harmless_or_refused():
    flipped_bits_change_nothing(500)
