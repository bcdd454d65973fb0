"""`heedful train --mesh` in real processes: the losses of one process, and what happens if one of them fails."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from many_ranks import GRACE, TIMEOUT, train
from typer.testing import CliRunner

from heedful.cli import app
from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.gpt.train.mesh import Mesh
from heedful.gpt.train.sharded_state import load_shards
from heedful.gpt.train.state import load_state

pytest.importorskip("safetensors", reason="pip install -e '.[train]'")
pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")

TINY = """
tokenizer = "bytes"
steps = 20
batch_size = 2
accumulation = 2
clip = 1.0  # about the norm of the gradients: some steps are clipped
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
    write_files()


def write_files() -> None:
    Path("sea.txt").write_text("The sea is calm to-night.\nThe tide is full,\n" * 30)
    Path("sky.txt").write_text("The sky is dark, and so it goes.\n" * 30)
    Path("tiny.toml").write_text(TINY)


def begin(out: str) -> list[str]:
    return ["sea.txt", "sky.txt", "--config", "tiny.toml", "--out", out]


def losses(out: str) -> list[float]:
    rows = csv.DictReader(Path(out, "losses.csv").read_text().splitlines())
    return [float(row["training"]) for row in rows]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Train in one process, and return the folder of the run, without and with dropout."""
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files()
        for out, p in (("0.0", 0.0), ("0.3", 0.3)):
            Path("tiny.toml").write_text(TINY.replace("dropout = 0.0", f"dropout = {p}"))
            assert CliRunner().invoke(app, ["train", *begin(out)]).exit_code == 0
    return folder


MESHES = ["dp=2", "cp=2", "tp=2", "dp=2,cp=2", "dp=2,tp=2", "cp=2,tp=2", "dp=2,cp=2,tp=2"]


QUICK = [("dp=2", 0.3), ("tp=2", 0.3)]


@pytest.mark.parametrize(
    ("mesh", "dropout"),
    [
        pytest.param(mesh, dropout, marks=() if (mesh, dropout) in QUICK else SLOW)
        for mesh in MESHES
        for dropout in (0.0, 0.3)
    ],
)
def test_a_mesh_has_the_losses_of_one_process(mesh, dropout, one):
    Path("tiny.toml").write_text(TINY.replace("dropout = 0.0", f"dropout = {dropout}"))
    assert go(*begin("many"), mesh=mesh) == {0}, Path("err.0").read_text()
    assert losses("many") == pytest.approx(losses(f"{one}/{dropout}"), abs=1e-4)
    assert_same_state("many", f"{one}/{dropout}")


def assert_same_state(many: str, one: str) -> None:
    """Compare weights, the averages of gradients and the state of torch's generator."""
    found = load_shards(Path(many, "training-000000000020"), {})
    expected, _ = load_state(Path(one, "training.safetensors"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        size = tensor.abs().max().item() if tensor.is_floating_point() else 0
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-3 * size, msg=name)


@SLOW
def test_ranks_with_unequal_numbers_of_targets_have_the_losses_of_one_process():
    for out, mesh in (("single", ""), ("many", "dp=2,cp=2")):
        assert go(*begin(out), mesh=mesh, failing="ignore targets") == {0}
    assert losses("many") == pytest.approx(losses("single"), abs=1e-4)


# --- checkpoints ---------------------------------------------------------------------------------------


def state_of(out: str) -> set[str]:
    """Return the names of the checkpoints in the folder of a run, and of what is left of unfinished ones."""
    return {path.name for path in Path(out).glob("*training*")} | {
        path.name for path in Path(out).glob(".*")
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("dp=2", "cp=2"),
        pytest.param("dp=2", "cp=2,tp=2", marks=SLOW),
        pytest.param("cp=2,tp=2", "", marks=SLOW),
        pytest.param("", "dp=2,tp=2", marks=SLOW),
        pytest.param("dp=2,cp=2", "tp=2", marks=SLOW),
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_losses_on_another_mesh(first, second, one):
    assert go(*begin("many"), mesh=first, failing="is interrupted") == {130}
    assert len(losses("many")) == 8  # of 20
    assert state_of("many") == {"training-000000000008" if first else "training.safetensors"}
    assert go("--out", "many", "--resume", mesh=second) == {0}
    assert state_of("many") == {"training-000000000020" if second else "training.safetensors"}
    assert losses("many") == pytest.approx(losses(f"{one}/0.0"), abs=1e-4)
    assert Path("many/report.txt").exists()


def go(*arguments: str, mesh: str, failing: str = "") -> set[int]:
    """Run the command on a mesh, or in one process, and return the exit codes."""
    ranks = 2 ** mesh.count("2")
    on = ("--mesh", mesh) if mesh else ()
    return set(train(ranks, *arguments, *on, failing=failing))


def test_the_first_rank_alone_prints_and_writes_a_model_for_generate(one):
    assert go(*begin("many"), mesh="dp=2") == {0}
    assert "2 ranks (dp=2,cp=1,tp=1)" in Path("out.0").read_text()
    assert Path("out.1").read_text() == Path("err.1").read_text() == ""
    prompt = ["generate", "--prompt", "The sea", "--temperature", "0", "--tokens", "20", "--from"]
    texts = [CliRunner().invoke(app, [*prompt, out]).output for out in (f"{one}/0.0", "many")]
    assert len(texts[0]) > 20
    assert texts[0] == texts[1]


@SLOW
def test_a_checkpoint_interrupted_while_it_is_written_is_never_taken_for_a_whole_one(one):
    codes = train(2, *begin("many"), "--mesh", "dp=2", failing="dies while it writes")
    assert codes == [2, -9]
    left = state_of("many")
    assert "training-000000000010" in left
    assert "training-000000000020" not in left
    assert go("--out", "many", "--resume", mesh="cp=2") == {0}
    assert state_of("many") == {"training-000000000020"}
    assert losses("many") == pytest.approx(losses(f"{one}/0.0"), abs=1e-4)


def test_a_damaged_checkpoint_of_many_ranks_is_refused():
    assert go(*begin("many"), mesh="dp=2", failing="is interrupted") == {130}
    shard = sorted(Path("many/training-000000000008").glob("shard-*"))[1]
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    result = CliRunner().invoke(app, ["train", "--resume", "--out", "many"])
    assert result.exit_code == 2
    assert f"changed or missing files: {shard.name}" in result.stderr


# --- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "cause"),
    [
        ("dies", "rank 2: it has ended, or did not answer within 60 seconds"),
        pytest.param(
            "hangs", "rank 2: it has ended, or did not answer within 4 seconds", marks=SLOW
        ),
        ("raises", "rank 2: ZeroDivisionError: on purpose"),
    ],
)
def test_a_rank_that_fails_ends_the_others_in_time_and_is_named(failing, cause):
    Path("tiny.toml").write_text(TINY.replace("batch_size = 2", "batch_size = 3"))
    codes = train(3, *begin("many"), "--mesh", "dp=3", failing=failing)
    assert time.time() - Path("failed").stat().st_mtime < TIMEOUT + GRACE + 3
    assert codes[:2] == [2, 2]
    for rank in (0, 1):
        assert cause in Path(f"err.{rank}").read_text()


# --- arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "complaint"),
    [
        ("pp=2", "received 'pp=2'"),
        ("dp=2,dp=2", "received 'dp=2'"),
        ("dp=0", "received 'dp=0'"),
        ("dp", "received 'dp'"),
        ("", "received ''"),
        ("dp=2", "torchrun --nproc-per-node 2 -m heedful train … --mesh dp=2"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(mesh, complaint):
    result = CliRunner().invoke(app, ["train", *begin("many"), "--mesh", mesh])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not Path("many").exists()


@pytest.mark.parametrize(
    ("ranks", "arguments", "complaint"),
    [
        (3, ["--mesh", "dp=2"], "torchrun --nproc-per-node 2 -m heedful train … --mesh dp=2"),
        (2, [], "a mesh of 2 ranks"),
    ],
)
def test_a_mesh_of_other_ranks_than_torchrun_has_started_is_refused(
    ranks, arguments, complaint, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    result = CliRunner().invoke(app, ["train", *begin("many"), *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not Path("many").exists()


@pytest.mark.parametrize(
    ("mesh", "complaint"),
    [
        ("dp=4", "batch_size: expected a multiple of 4"),
        ("cp=3", "context_length: expected a multiple of 3"),
        ("tp=4", "num_kv_heads: expected a multiple of 4"),
        ("tp=2", "d_mlp: expected a multiple of 2"),
    ],
)
def test_a_mesh_that_does_not_divide_a_model_or_its_batches_is_refused(mesh, complaint):
    shape = GPTConfig.llama(num_heads=4, num_kv_heads=2, context_length=32, d_mlp=33)
    with pytest.raises(ArgumentError, match=complaint):
        Mesh.parse(mesh).check_fits(shape, batch_size=2)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--mesh", "cp=3"], "context_length: expected a multiple of 3"),
        pytest.param(
            ["--mesh", "cp=3", "--config", "fits.toml", "--minutes", "1"],
            "a budget of steps or tokens",
            marks=SLOW,
        ),
    ],
)
def test_what_is_wrong_with_a_run_is_said_by_the_first_rank(arguments, complaint):
    Path("fits.toml").write_text(TINY.replace("context_length = 32", "context_length = 33"))
    assert train(3, *begin("many"), *arguments) == [2, 2, 2]
    assert complaint in Path("err.0").read_text()
    assert not Path("many").exists()


def test_kernels_are_compared_in_one_process():
    result = CliRunner().invoke(app, ["train", "--against", "torch_sdpa", "--mesh", "dp=2"])
    assert result.exit_code == 2
    assert "none with --against" in result.stderr


# --- torchrun ------------------------------------------------------------------------------------------


def torchrun(*arguments: str) -> subprocess.Popen[str]:
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "heedful"]
    return subprocess.Popen(
        [sys.executable, "-m", *command, "train", *arguments, "--mesh", "dp=2"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@SLOW
def test_torchrun_trains_and_ctrl_c_saves_the_run(one):
    endless = TINY.replace("steps = 20", "steps = 1000000")
    Path("tiny.toml").write_text(endless.replace("evaluations = 2", "evaluations = 100000"))
    run = torchrun(*begin("endless"))
    assert run.stdout is not None
    assert any("step 10/" in line for line in run.stdout)
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=100)
    assert "Interrupted, and saved after step" in printed
    assert len(state_of("endless")) == 1
    Path("tiny.toml").write_text(TINY)
    printed, _ = torchrun(*begin("many")).communicate(timeout=100)
    assert "2 ranks (dp=2,cp=1,tp=1)" in printed
    assert losses("many") == pytest.approx(losses(f"{one}/0.0"), abs=1e-4)
