"""The fuzzer of `make fuzz-files`: damaged files are read or refused, and it notices every kind of misbehavior."""

import ctypes
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="pip install 'heedful[train]'")
pytest.importorskip("tokenizers", reason="pip install 'heedful[train]'")
pytest.importorskip("transformers", reason="pip install 'heedful[models]'")

import numpy as np

from fuzz_files import damage, isolation, run
from fuzz_files.formats import FORMATS
from heedful.errors import ArgumentError, HeedfulError

SEEDS = range(200)


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> run.Cases:
    return run.Cases(tmp_path_factory.mktemp("fuzz") / "good")


def test_damaged_files_are_read_or_refused(cases, tmp_path):
    found = {}
    for seed in SEEDS:
        case, fault = cases.run(seed, tmp_path / "case")
        if fault:
            found[f"seed {seed}, {case}"] = fault
    assert found == {}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_good_files_are_read(form, cases, tmp_path):
    form.write(tmp_path)
    if form.name == "module":  # what can be executed is not read
        form.read(tmp_path)
    assert isolation.fault(lambda: form.read(tmp_path), tmp_path) is None


def test_a_seed_always_draws_the_same_case(cases, tmp_path):
    def drawn(seed: int) -> tuple[str, dict[str, bytes]]:
        case, _ = cases.run(seed, tmp_path / "case")
        files = [path for path in (tmp_path / "case").rglob("*") if path.suffix == ".json"]
        return case, {path.name: path.read_bytes() for path in files if path.is_file()}

    for seed in (0, 1, 2, 3, 11, 12, 13, 14):
        assert drawn(seed) == drawn(seed)


def refuse() -> None:
    raise ArgumentError("file", expected="another", received="this", remedy="Mend it.")


def long_error() -> None:
    raise HeedfulError("long " * 1000)


def foreign_error() -> None:
    {}["key"]


def crash() -> None:
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(60)


def endless_loop() -> None:
    while True:
        pass


def much_memory() -> None:
    bytearray(16 << 30)  # more than earlier tests may have left free in this process


def exit_early() -> None:
    os._exit(3)


def executed_pickle() -> None:
    pickle.loads(pickle.dumps(damage.Payload()))


def started_program() -> None:
    subprocess.run(["true"], check=False)


def hidden_program() -> None:
    try:
        os.system("true")
    except PermissionError:
        refuse()


def written_file() -> None:
    Path("written").touch()


def renamed_file() -> None:
    os.rename("/nothing", "/nowhere")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (foreign_error, "KeyError"),
        (long_error, "an error of 5000 characters"),
        (crash, "ends the process with SIGSEGV"),
        (hang, "takes longer than 0.5 s"),
        (endless_loop, "takes longer than 0.5 s"),
        (much_memory, "MemoryError"),
        (exit_early, "exit code 3"),
        (executed_pickle, "os.system"),
        (started_program, "subprocess.Popen"),
        (hidden_program, "os.system"),
        (written_file, "open"),
        (renamed_file, "os.rename"),
    ],
)
def test_misbehavior_is_noticed(act, message, tmp_path, monkeypatch):
    (tmp_path / "case").mkdir()
    monkeypatch.chdir(tmp_path)
    seconds = 0.5 if "0.5 s" in message else 60
    assert message in (isolation.fault(act, tmp_path / "case", seconds=seconds) or "")
    assert not (tmp_path / "written").exists()


def test_success_refusal_and_files_in_the_folder_are_no_faults(tmp_path):
    assert isolation.fault(lambda: None, tmp_path) is None
    assert isolation.fault(refuse, tmp_path) is None
    assert isolation.fault((tmp_path / "file").touch, tmp_path) is None
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "checkpoint", "tokenizer", "matrices", "targets"]
)
def test_every_kind_of_damage_is_drawn(name, cases, tmp_path):
    form = next(form for form in FORMATS if form.name == name)
    form.write(tmp_path)
    for path in [path for path in tmp_path.iterdir() if path.suffix in damage.BY_SUFFIX]:
        content = path.read_bytes()
        for change in damage.BY_SUFFIX[path.suffix]:
            assert any(change(np.random.default_rng(seed), content) != content for seed in range(9))


def test_the_command_reports_a_failure_with_its_seed_and_goes_on(capsys, monkeypatch, tmp_path):
    class Planted:
        def __init__(self, good: Path) -> None:
            """Write nothing."""

        def run(self, seed: int, folder: Path) -> tuple[str, str | None]:
            return "planted/file", "crashes" if seed == 1 else None

    monkeypatch.setattr(run, "Cases", Planted)
    monkeypatch.setattr(sys, "argv", ["fuzz", "--minutes", "0.001", "--folder", str(tmp_path)])
    assert run.main() == 1
    assert "seed 1, planted/file: crashes; again: " in capsys.readouterr().out
    position = int((tmp_path / "position").read_text())
    assert position > 2
    assert run.main() == 0
    assert f"(seeds {position} to" in capsys.readouterr().out
