"""`heedful train` on the command line: its files, interruptions, and resumed runs."""

import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from heedful.cli import app
from heedful.gpt import checkpoint
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import load_tokenizer
from heedful.gpt.train import plan
from heedful.gpt.train.bigram import Bigram
from heedful.gpt.train.compare import ComparedStep, KernelComparison
from heedful.gpt.train.loop import interruption
from heedful.gpt.train.loss import mean_loss
from heedful.gpt.train.progress import Clock
from heedful.gpt.train.run import open_run
from heedful.gpt.train.state import load_state, save_state
from heedful.gpt.train.trainer import Trainer

pytest.importorskip("safetensors", reason="pip install -e '.[train]'")
pytest.importorskip("tokenizers", reason="pip install -e '.[train]'")
pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")

TINY = """
tokenizer = "bytes"
batch_size = 2
evaluations = 3
evaluation_batches = 1
sample_tokens = 8
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
STEPS = 24  # an epoch of the two books has 19
PICTURE = b"\x89PNG"


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch):
    """Create a working folder with two books and a configuration, and enter it."""
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text(
        "The sea is calm to-night.\nThe tide is full,\n" * 16, encoding="utf-8"
    )
    Path("two.txt").write_text(
        "Naught’s had, all’s spent,\nwithout content.\n" * 14, encoding="utf-8"
    )
    Path("tiny.toml").write_text(TINY)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["train", *arguments])


def command(out: str) -> list[str]:
    named = ["--config", "tiny.toml", "--steps", str(STEPS), "--out", out]
    return ["one.txt", "two.txt", *named]


def start(out: str):
    return run(*command(out))


def weights(out: str) -> dict[str, torch.Tensor]:
    return dict(checkpoint.load(out).named_parameters())


def assert_same_runs(first: str, second: str) -> None:
    for one, other in zip(weights(first).items(), weights(second).items(), strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1]), one[0]
    states = [load_state(Path(out) / "training.safetensors")[0] for out in (first, second)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (Path(first) / "losses.csv").read_text() == (Path(second) / "losses.csv").read_text()


def table(out: str) -> list[dict[str, str]]:
    return list(csv.DictReader((Path(out) / "losses.csv").read_text().splitlines()))


def temporary_files() -> list[str]:
    return [str(path) for path in Path().rglob(".*")]


@pytest.fixture
def interrupted_run(shelf):
    """Start a run that Ctrl-C interrupts after step 13, in the middle of an epoch and between two checkpoints."""
    take_step = Trainer.take_step

    def interrupted(trainer):
        loss = take_step(trainer)
        if trainer.step == 13:
            signal.raise_signal(signal.SIGINT)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "take_step", interrupted)
        return start("out")


# --- the files of a run ------------------------------------------------------------------------------


def test_a_run_writes_a_model_its_losses_and_a_report():
    result = start("out")
    assert result.exit_code == 0, result.output
    assert {path.name for path in Path("out").iterdir()} == {
        *("run.json", "tokenizer_config.json", "corpus.json", "tokens.npy"),
        *("training.safetensors", "config.json", "model.safetensors"),
        *("losses.csv", "losses.png", "report.txt", "run.lock"),
    }
    assert Path("out/losses.png").read_bytes().startswith(PICTURE)
    rows = table("out")
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert [int(row["step"]) for row in rows if row["validation"]] == [8, 16, 24]
    assert int(rows[-1]["tokens"]) == STEPS * 2 * 32
    assert float(rows[-1]["training"]) < float(rows[0]["training"]) - 0.2
    assert result.output.count("│") >= 3  # samples
    assert temporary_files() == []


def test_the_report_compares_the_losses_of_the_model_and_the_bigram_model():
    result = start("out")
    report = Path("out/report.txt").read_text()
    assert report in result.output
    corpus, tokenizer = Corpus.load("out"), load_tokenizer("out")
    loss = mean_loss(checkpoint.load("out"), corpus.validation, 3, "float32")
    bigram = Bigram(corpus.train.tokens, tokenizer.vocab_size).loss(corpus.validation.tokens)
    assert f"validation loss   {loss:.3f} nats per token" in report
    assert f"bigram model      {bigram:.3f} nats per token" in report
    assert f"{abs(loss - bigram):.3f} {'below' if loss < bigram else 'above'}" in report
    assert re.search(r"[\d,]+ tokens/s", report)
    assert re.search(r"minutes: preparing \d+%, steps \d+%", report)


def test_the_same_command_trains_the_same_model():
    start("first")
    start("second")
    assert_same_runs("first", "second")


def test_minutes_that_preparing_uses_up_leave_one_step():
    result = run("one.txt", "--config", "tiny.toml", "--out", "out", "--minutes", "1e-6")
    assert result.exit_code == 0, result.output
    assert re.search(r"^steps +1, ", result.stdout, re.MULTILINE), result.output


def test_training_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    result = run("one.txt")
    assert result.stderr.startswith("heedful train: Training needs the extra 'train', which is not")


def test_tokens_and_minutes_are_budgets_as_well():
    common = ("one.txt", "--config", "tiny.toml")
    assert run(*common, "--out", "tokens", "--tokens", "300").exit_code == 0
    assert json.loads(Path("tokens/run.json").read_text())["steps"] == 5  # of 64 tokens
    result = run(*common, "--out", "minutes", "--minutes", "0.02")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("minutes/run.json").read_text())["steps"] > 5


def test_a_run_ends_when_its_time_is_up(monkeypatch):
    monkeypatch.setattr(plan, "_seconds_per_step", lambda trainer: 1e-6)  # far too optimistic
    result = run("one.txt", "--config", "tiny.toml", "--out", "out", "--minutes", "0.01")
    assert result.exit_code == 0, result.output
    assert "the time was up" in result.output
    rows = table("out")
    assert rows[-1]["validation"]
    assert run("--out", "out", "--resume").exit_code == 0
    assert len(table("out")) == len(rows)


def test_the_sonnets_are_read_without_a_book():
    result = run("--config", "tiny.toml", "--steps", "2", "--out", "out")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out/run.json").read_text())["books"][0].endswith("  sonnets")
    assert len(Corpus.load("out").train) > 80_000


def test_bfloat16_is_recorded_and_reported():
    Path("tiny.toml").write_text(TINY.replace("float32", "bfloat16"))
    result = start("out")
    assert "in bfloat16" in result.output
    assert json.loads(Path("out/run.json").read_text())["precision"] == "bfloat16"


# --- interrupted and resumed runs --------------------------------------------------------------------


def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(interrupted_run):
    assert interrupted_run.exit_code == 130
    assert "saved after step 13" in interrupted_run.output
    assert "heedful train --resume --out out" in interrupted_run.output
    assert load_state(Path("out/training.safetensors"))[1]["step"] == 13
    torch.manual_seed(123)  # another process has another random state
    resumed = run("--resume", "--out", "out")
    assert resumed.exit_code == 0, resumed.output
    assert "13 of them done" in resumed.output
    start("whole")
    assert_same_runs("whole", "out")


KILLED = """
import os, signal, sys
from heedful.cli import app
from heedful.gpt.train import {module} as module
original = module.{function}
def killing(*arguments, **options):
    result = original(*arguments, **options)
    if {condition}:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
module.{function} = killing
app(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("where", "saved"),
    [
        # after a step, between two checkpoints
        (
            {
                "module": "trainer",
                "function": "Trainer.take_step",
                "condition": "arguments[0].step == 13",
            },
            8,
        ),
        # while a checkpoint is written: the history is written, the state is not
        pytest.param(
            {"module": "run", "function": "write_history", "condition": "len(arguments[1]) == 16"},
            8,
            marks=pytest.mark.slow,
        ),
        # the state is written, the model is not
        pytest.param(
            {"module": "run", "function": "save_state", "condition": "arguments[2]['step'] == 16"},
            16,
            marks=pytest.mark.slow,
        ),
        # before the first checkpoint
        pytest.param(
            {
                "module": "trainer",
                "function": "Trainer.take_step",
                "condition": "arguments[0].step == 5",
            },
            0,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_killed_run_loses_only_the_steps_since_the_checkpoint(where, saved):
    start("whole")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED.format(**where), "train", *command("out")],
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run("--resume", "--out", "out")
    assert resumed.exit_code == 0, resumed.output
    if saved:
        assert f"{saved} of them done" in resumed.output
    assert_same_runs("whole", "out")


def test_the_time_of_all_processes_is_counted(interrupted_run):
    before = open_run(Path("out"), Clock()).clock.seconds
    run("--resume", "--out", "out")
    assert open_run(Path("out"), Clock()).clock.seconds > before > 0


def test_resuming_a_finished_run_repeats_the_report():
    first = start("out")
    again = run("one.txt", "two.txt", "--config", "tiny.toml", "--out", "out", "--resume")
    assert again.exit_code == 0
    assert first.output.split("validation loss")[1].split("\n")[0] in again.output


def test_samples_reach_the_terminal_without_control_characters(monkeypatch):
    monkeypatch.setattr("heedful.gpt.train.loop.sample", lambda run, model: "\x1b[2Jone\r\x07two")
    result = start("out")
    assert "\\x1b[2Jone\\r" in result.output
    assert "\\x07two" in result.output
    assert not set("\x1b\r\x07") & set(result.output)


def test_a_second_ctrl_c_interrupts_at_once():
    with interruption() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# --- invalid arguments and files ---------------------------------------------------------------------


def refused(result, *texts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("heedful train: ")
    assert "Traceback" not in result.stderr
    for text in texts:
        assert text in result.stderr


def test_an_existing_folder_is_not_overwritten():
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("mine")
    refused(start("out"), "--out", "nothing was overwritten")
    assert [path.name for path in Path("out").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b" \n", "empty"), (b"caf\xe9 au lait", "0xe9 at offset 3"), (None, "No such")],
)
def test_invalid_books_are_named(content, text):
    if content is not None:
        Path("bad.txt").write_bytes(content)
    refused(run("one.txt", "bad.txt", "--config", "tiny.toml", "--steps", "2"), "bad.txt", text)
    assert not Path("gpt").exists()
    assert temporary_files() == []


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ("learning_rte = 1e-3", "'learning_rate'"),
        ("[model]\nnum_layer = 3", "'num_layers'"),
        ("[model]\nvocab_size = 3", "'vocab_size'"),
        ("batch_size = ", "TOML"),
        ("batch_size = '2'", "batch_size"),
        ("steps = 2\nminutes = 2", "steps and minutes"),
        ("steps = " + "9" * 5000, "TOML"),
        ("steps = " + "[" * 100_000, "nested too deeply"),
        (
            "steps = 1\n[model]\ncontext_length = 32\nnum_layers = 1_000_000_000",
            "sizes of at most 16,777,216",
        ),
        ("steps = 1\n[model]\ncontext_length = 32\nd_model = 1_500_000", "GiB"),
        (
            "steps = 1\nbatch_size = 65_536\n[model]\ncontext_length = 32\nnum_layers = 10_000",
            "GiB",
        ),
    ],
)
def test_invalid_configurations_are_named(toml, text):
    Path("bad.toml").write_text(toml)
    refused(run("one.txt", "--config", "bad.toml", "--out", "out"), text)
    assert not Path("out").exists()
    assert temporary_files() == []


@pytest.mark.parametrize(
    "name",
    ["run.json", "corpus.json", "tokens.npy", "losses.csv", "training.safetensors", "config.json"],
)
@pytest.mark.parametrize("kind", ["fifo", "folder", "sparse"])
def test_what_is_not_a_file_of_a_run_is_refused_at_once(interrupted_run, name, kind):
    path = Path("out", name)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 32)
    refused(run("--resume", "--out", "out"), name)


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop", "device"])
def test_what_is_not_a_configuration_is_refused_at_once(kind):
    path = Path("bad.toml")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    refused(run("one.txt", "--config", "bad.toml", "--out", "out"), "bad.toml")


def test_two_budgets_are_refused():
    refused(run("one.txt", "--steps", "3", "--tokens", "3"), "steps and tokens")


def test_a_context_longer_than_the_books_is_refused():
    Path("short.txt").write_text("So short.\n")
    refused(
        run("short.txt", "--config", "tiny.toml", "--steps", "2", "--out", "out"), "context_length"
    )
    assert not Path("out").exists()


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def damage_all(path: Path) -> None:
    path.write_bytes(b"not at all")


def another_program(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, path)


def another_model(path: Path) -> None:
    tensors, facts = load_state(path)
    del tensors["weight.blocks.0.mlp.up.weight"]
    save_state(path, tensors, facts)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (damage_end, "damaged"),
        (damage_byte, "checksum"),
        (damage_all, "damaged"),
        (another_program, "heedful train did not write"),
        (another_model, "other tensors"),
    ],
)
def test_a_damaged_or_unrelated_checkpoint_is_refused(change, text):
    start("out")
    change(Path("out/training.safetensors"))
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    refused(run("--resume", "--out", "out"), "--resume", text)
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before


def test_a_truncated_history_is_refused():
    start("out")
    lines = Path("out/losses.csv").read_text().splitlines()
    Path("out/losses.csv").write_text("\n".join(lines[:10]))
    refused(run("--resume", "--out", "out"), "losses of 24 steps")


@pytest.mark.parametrize("name", ["losses.csv", "report.txt", "losses.png", "model.safetensors"])
def test_a_link_in_a_run_is_refused_and_what_it_points_to_stays(interrupted_run, name):
    Path("mine").write_text("mine")
    Path("out", name).unlink(missing_ok=True)
    Path("out", name).symlink_to(Path("mine").resolve())
    before = Path("out/training.safetensors").read_bytes()
    refused(run("--resume", "--out", "out"), "symbolic links", name)
    assert Path("mine").read_text() == "mine"
    assert Path("out/training.safetensors").read_bytes() == before


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def flip_a_token(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[150] ^= 1  # behind the header of 128 bytes
    path.write_bytes(content)


def reverse_the_tokens(path: Path) -> None:
    np.save(path, np.load(path)[::-1])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens.npy", flip_a_token),
        ("tokens.npy", reverse_the_tokens),
        ("tokens.npy", Path.unlink),
        ("corpus.json", lambda path: edit(path, '"one"', '"One"')),
        ("run.json", lambda path: edit(path, '"learning_rate": 0.001', '"learning_rate": 0.002')),
        ("run.json", lambda path: edit(path, '"steps": 24', '"steps": 25')),
        ("run.json", lambda path: edit(path, '"accumulation": 1', '"accumulation": 2')),
        ("tokenizer_config.json", lambda path: edit(path, "bytes", "gpt2")),
        ("tokenizer.json", lambda path: path.write_text("{}")),
    ],
)
def test_changed_inputs_of_a_run_are_refused(interrupted_run, name, change):
    change(Path("out", name))
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    refused(run("--resume", "--out", "out"), "--resume", "changed or missing", name)
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before


@pytest.mark.parametrize("damage", ["other", "folder", "missing"])
def test_a_damaged_configuration_of_the_model_is_refused_before_training(
    interrupted_run, monkeypatch, damage
):
    path = Path("out/config.json")
    if damage == "other":
        edit(path, '"d_model": 16', '"d_model": 32')
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    monkeypatch.setattr(Trainer, "take_step", lambda trainer: pytest.fail("a step was taken"))
    refused(run("--resume", "--out", "out"), "config.json", "nothing was overwritten")


def test_the_model_of_a_finished_run_is_written_again_when_it_is_resumed():
    start("out")
    path = Path("out/model.safetensors")
    whole = path.read_bytes()
    damage_byte(
        path
    )  # a kill between the checkpoint and the model leaves an old model in the same way
    assert run("--resume", "--out", "out").exit_code == 0
    assert path.read_bytes() == whole


def test_changed_losses_are_refused(interrupted_run):
    losses = table("out")[3]["training"]
    edit(Path("out/losses.csv"), losses, "1.0")
    refused(run("--resume", "--out", "out"), "--resume", "losses.csv", "other values")


def test_a_checkpoint_without_digests_is_refused(interrupted_run):
    from safetensors.torch import load_file, save_file

    path = Path("out/training.safetensors")
    facts = json.dumps(load_state(path)[1])
    save_file(load_file(path), path, {"heedful_run": facts, "sha256": "0" * 64})
    refused(run("--resume", "--out", "out"), "--resume", "an older version")


def test_a_missing_checkpoint_is_refused(interrupted_run):
    Path("out/training.safetensors").unlink()
    refused(run("--resume", "--out", "out"), "--resume", "no such file", "training.safetensors")


HOLDING = """
import sys, time
from pathlib import Path
from heedful.gpt.train.lock import locked
with locked(Path("out")):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_run_that_another_process_trains_is_refused_until_that_is_killed(interrupted_run):
    with subprocess.Popen([sys.executable, "-c", HOLDING], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        before = {path.name: path.read_bytes() for path in Path("out").iterdir()}
        result = run("--resume", "--out", "out")
        refused(result, "--out", f"process {holder.pid} is training")
        assert result.stderr.count("\n") == 1
        assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
        holder.kill()
    assert run("--resume", "--out", "out").exit_code == 0


def test_a_lock_that_is_no_file_is_refused(interrupted_run):
    Path("out/run.lock").unlink()
    os.mkfifo("out/run.lock")
    refused(run("--resume", "--out", "out"), "run.lock")


def test_resume_requires_a_run():
    refused(run("--resume", "--out", "nowhere"), "--resume", "nowhere")
    Path("out").mkdir()
    Path("out/run.json").write_text('{"config": 3}')
    refused(run("--resume", "--out", "out"), "--resume")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["one.txt"], "books other than one, two"),
        (["two.txt", "one.txt"], "books other than one, two"),
        (["--steps", "30"], "steps=24"),
        (["--minutes", "3"], "minutes=None"),
        (["--config", "other.toml"], "d_model"),
    ],
)
def test_resume_with_other_books_or_values_is_refused(arguments, text):
    start("out")
    Path("other.toml").write_text("[model]\nd_model = 32")
    refused(run("--resume", "--out", "out", *arguments), text)


def test_a_full_disk_leaves_the_last_checkpoint_intact(monkeypatch):
    start("whole")
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if ".training.safetensors" in path.name and Path("out/model.safetensors").exists():
            write_bytes(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        refused(start("out"), "No space left on device", "training.safetensors")
    assert temporary_files() == []
    assert load_state(Path("out/training.safetensors"))[1]["step"] == 8
    assert run("--resume", "--out", "out").exit_code == 0
    assert_same_runs("whole", "out")


def test_a_full_disk_at_the_beginning_leaves_nothing(monkeypatch):
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    refused(start("out"), "No space left on device")
    assert not Path("out").exists()
    assert temporary_files() == []


# --- against another kernel --------------------------------------------------------------------------


def test_another_kernel_gives_the_same_losses():
    result = run("one.txt", "--config", "tiny.toml", "--steps", "20", "--against", "torch_sdpa")
    assert result.exit_code == 0, result.output
    assert re.search(r"^ +10  \d\.\d{6}  \d\.\d{6}", result.output, re.MULTILINE)
    assert "at most 1e-03: the same" in result.output
    assert re.search(r"native is \d+\.\d\d × as fast", result.output)
    assert not Path("gpt").exists()


def test_different_losses_are_detected(monkeypatch):
    take_step = Trainer.take_step

    def wrong(trainer):
        loss = take_step(trainer)
        return loss + 0.002 * (trainer.model.config.kernel == "native" and trainer.step == 20)

    monkeypatch.setattr(Trainer, "take_step", wrong)
    result = run("one.txt", "--config", "tiny.toml", "--steps", "20", "--against", "torch_sdpa")
    assert result.exit_code == 1
    assert "largest difference 2.0e-03, at most 1e-03: NOT the same" in result.output


def test_an_unknown_kernel_is_refused():
    refused(run("one.txt", "--config", "tiny.toml", "--steps", "20", "--against", "magic"), "magic")


def test_the_speed_up_is_the_median_over_steps():
    steps = [ComparedStep((1.0, 1.0), (1.0, 2.0))] * 20 + [ComparedStep((1.0, 1.0), (9.0, 3.0))]
    assert KernelComparison("torch_sdpa", steps).speedup == 2.0


# --- tests of some minutes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_default_configuration_beats_the_bigram_model():
    result = run("--out", "out")
    assert result.exit_code == 0, result.output
    assert "below the bigram model" in Path("out/report.txt").read_text()
