"""`heedful check` and its pytest plugin in use: targets, options, exit codes, and the output on each stream."""

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from heedful.cli import app
from heedful.conformance.answer import Request
from heedful.conformance.calling.loading import MAX_SOURCE
from heedful.conformance.worker import answer_to

RIGHT = """
import torch
from torch import nn

print("importing")


class Attention(nn.Module):
    def __init__(self, d_model, num_heads=1):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_model, d_model) for _ in range(3))
        print("built with", d_model, num_heads)

    def forward(self, x):
        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        return scores.softmax(dim=-1) @ value


attention = Attention(8)


def helper():
    return 1


if __name__ == "__main__":
    raise SystemExit("it was run")
"""
UNSCALED = RIGHT.replace(" / key.shape[-1] ** 0.5", "")
UNSCALED_LINE = 1 + UNSCALED.splitlines().index("        scores = query @ key.transpose(-2, -1)")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Create a working folder with a correct module and one without a scale."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "unscaled.py").write_text(UNSCALED)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["check", *arguments])


# --- results ----------------------------------------------------------------------------------


def test_a_correct_module_has_no_bug():
    result = run("right.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Attention: no bug  (")
    assert "importing" not in result.stdout
    assert "importing" in result.stderr


@pytest.mark.parametrize(
    "target",
    [
        "heedful:attention",
        "heedful.gpt:GPT",
        "heedful.nn:MultiHeadAttention",
        "heedful.textbook:MultiHeadAttention",
        "torch.nn:MultiheadAttention",
        "torch.nn:TransformerEncoderLayer",
    ],
)
def test_the_report_of_a_correct_module_fits_one_screen(target):
    result = run(target)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert ": no bug" in lines[0]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100


def test_a_bug_is_shown_with_its_line():
    result = run("unscaled.py:Attention")
    assert result.exit_code == 1
    assert "scale-missing  bug" in result.stdout
    assert f"unscaled.py:{UNSCALED_LINE}  scores = query @ key.transpose(-2, -1)" in result.stdout


def test_json_is_the_only_output_on_stdout():
    result = run("unscaled.py", "--format", "json", "--with", "d_model=24")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [it["name"] for it in document["findings"]] == ["scale-missing"]
    assert document["findings"][0]["place"]["line"] == UNSCALED_LINE
    assert "built with 24 4" in result.stderr  # several heads where one is the default


def test_junit_is_the_only_output_on_stdout():
    result = run("unscaled.py", "--format", "junit")
    failures = ElementTree.fromstring(result.stdout).findall(".//failure")
    assert [it.get("type") for it in failures] == ["scale-missing"]


def test_an_expected_bug_does_not_count():
    result = run("unscaled.py", "--expect", "scale-missing=it is trained so")
    assert result.exit_code == 0
    assert "expected: it is trained so" in result.stdout


def test_causality_can_be_stated():
    result = run("right.py", "--causal")
    assert result.exit_code == 1
    assert "future-leak" in result.stdout
    assert run("right.py", "--bidirectional").exit_code == 0


def test_as_a_program(folder):
    """The command runs in its own process, and the file may import its neighbours."""
    (folder / "lab").mkdir()
    (folder / "lab" / "layers.py").write_text("from right import Attention")
    (folder / "lab" / "right.py").write_text(RIGHT)
    command = [
        sys.executable,
        "-m",
        "heedful",
        "check",
        "lab/layers.py:Attention",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True


# --- targets that cannot be used -----------------------------------------------------------------------------


def error_of(target: str, *arguments: str) -> str:
    result = run(target, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_a_missing_file():
    assert "nowhere.py" in error_of("nowhere.py:Attention")


def test_no_target_at_all():
    assert "path/to/file.py:Name" in error_of("")
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 2
    assert "heedful check my.py:Attention" in result.stderr


def test_a_missing_name_is_answered_with_the_available_ones():
    error = error_of("right.py:Atention")
    assert "Available names: Attention, attention, helper." in error
    assert "Similar names: Attention, attention." in error


def test_a_package_suggests_the_names_of_its_modules():
    error = error_of("heedful.textbook:CausalAtention")
    assert "Similar names: CausalAttention" in error
    assert "MultiHeadAttentionWrapper" in error
    assert "…" not in error
    assert ", …." in error_of("torch.nn:Atention")


def test_a_name_that_is_not_callable(folder):
    (folder / "numbers_.py").write_text("x = 3\ndef attend(query, key, value): ...")
    error = error_of("numbers_.py:x")
    assert "type int" in error
    assert "Available names: attend." in error


def test_a_target_without_a_name_must_define_one_module(folder):
    (folder / "two.py").write_text(RIGHT + "\nclass Other(Attention):\n    pass\n")
    error = error_of("two.py")
    assert "2 of them" in error
    assert "Attention, attention, helper, Other" in error


@pytest.mark.parametrize(
    ("source", "message", "line"),
    [
        ("import torch\nimport missing_lib\n", "missing_lib", 2),
        ("import torch\nx = 1 / 0\n", "ZeroDivisionError: division by zero", 2),
        ("def attend(query:\n    pass\n", "SyntaxError", 1),
        ("import sys\n\nsys.exit(3)\n", "SystemExit: 3", 3),
    ],
    ids=["missing", "raising", "syntax", "exiting"],
)
def test_a_file_that_cannot_be_imported(folder, source, message, line):
    (folder / "broken.py").write_text(source)
    error = error_of("broken.py:attend")
    assert message in error
    assert f"broken.py:{line}: " in error


def test_a_failing_import_names_the_innermost_file(folder):
    (folder / "outer.py").write_text("import inner\n")
    (folder / "inner.py").write_text("\n\nraise ValueError('deep')\n")
    assert "inner.py:3: raise ValueError('deep')" in error_of("outer.py:attend")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--with", "d_model"], "NAME=VALUE"),
        (["--expect", "scale-missing"], "NAME=REASON"),
        (["--expect", "scale-mising=x"], "scale-missing"),
        (["--with", "no_such=3"], "no_such"),
    ],
)
def test_options_that_cannot_be_used(arguments, message):
    assert message in error_of("right.py", *arguments)


def test_an_unconventional_constructor_argument_is_requested(folder):
    looks_up = "__init__()\n        d_model = {'tiny': 24}[quux]"
    odd = RIGHT.replace("d_model, num_heads=1", "quux, num_heads=1").replace("__init__()", looks_up)
    odd = odd.replace("Attention(8)", "Attention('tiny')")
    (folder / "odd.py").write_text(odd)
    assert "--with quux=" in error_of("odd.py")
    assert run("odd.py", "--with", "quux='tiny'").exit_code == 0


CONFIGURED = RIGHT.replace("d_model, num_heads=1", "config, act='relu'").replace(
    "class Attention",
    "class Config:\n    def __init__(self, width):\n        self.width = width\n\n\nclass Attention",
)
CONFIGURED = CONFIGURED.replace("d_model", "config.width").replace(", num_heads", ", act")
CONFIGURED = CONFIGURED.replace("Attention(8)", "Attention(Config(8))")


def test_an_argument_of_the_constructor_may_be_an_expression(folder):
    (folder / "configured.py").write_text(CONFIGURED)
    result = run("configured.py", "--with", "config=Config(width=6 * 4)", "--with", "act=nn.GELU")
    assert result.exit_code == 0, result.output
    assert "built with 24 <class 'torch.nn.modules.activation.GELU'>" in result.stderr
    named = run("configured.py", "--with", "config=Config(24)", "--with", "act=torch_like.x")
    assert "built with 24 torch_like.x" in named.stderr  # a text


def test_an_expression_that_cannot_be_evaluated_is_refused(folder):
    (folder / "configured.py").write_text(CONFIGURED)
    error = error_of("configured.py", "--with", "config=Config(depth=1)")
    assert "--with config: expected a Python literal, an expression, or a text" in error
    assert "unexpected keyword argument 'depth'" in error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "Not a regular file"),
        (os.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "Not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "No such file"),
        (lambda path: path.write_bytes(b"#" * (MAX_SOURCE + 1)), "are the limit"),
        (lambda path: path.write_bytes(bytes(1000)), "null bytes"),
        (lambda path: path.write_bytes(bytes(range(1, 256))), "SyntaxError"),
        (lambda path: path.write_bytes(b"x = '\xff'\n"), "SyntaxError"),
        (lambda path: path.write_text("# coding: none\n"), "SyntaxError"),
        (lambda path: path.write_text("(" * 10_000 + ")" * 10_000), "too many nested parentheses"),
        (lambda path: path.write_text("x = 1 +" + " 1 +" * 10_000), "SyntaxError"),
    ],
    ids=[
        "FIFO",
        "folder",
        "device",
        "dangling",
        "large",
        "null",
        "binary",
        "encoding",
        "unknown encoding",
        "nested",
        "long line",
    ],
)
def test_a_file_that_is_no_source_code(folder, make, message):
    make(folder / "odd.py")
    request = Request("odd.py:attend", {}, {}, "nonce")
    error = str(answer_to(request))
    assert message in error
    assert len(error) < 1000


# --- targets that end or hold up the process ---------------------------------------------------------


@pytest.mark.usefixtures("as_users_start_it")
def test_a_target_that_ends_the_process_is_an_error(folder):
    (folder / "ending.py").write_text("import os\n\nos._exit(0)\n")
    assert "ended the process with exit code 0" in error_of("ending.py:attend")


FORGING = """
import os, pickle, sys
from pathlib import Path
from heedful.conformance import Report

for argument in Path("/proc/self/cmdline").read_bytes().split(b"\\0"):
    path = Path(os.fsdecode(argument))
    if path.is_dir() and path.name.startswith("heedful-"):
        (path / "answer").write_text('{"report": {}}')
    elif path.name == "answer":
        path.write_bytes(pickle.dumps(Report("forged", ())))
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the target reads /proc")
@pytest.mark.usefixtures("as_users_start_it")
def test_a_target_cannot_answer_in_the_place_of_the_checker(folder):
    (folder / "forging.py").write_text(FORGING)
    assert "without an answer" in error_of("forging.py:attend")


@pytest.mark.usefixtures("as_users_start_it")
def test_a_target_that_never_ends_is_an_error(folder, monkeypatch):
    monkeypatch.setattr("heedful.conformance.own_process.SECONDS", 8.0)
    (folder / "endless.py").write_text("while True:\n    pass\n")
    assert "did not finish within 8 s" in error_of("endless.py:attend")


def test_a_target_that_exits_when_called_is_shown_with_its_line(folder):
    query = "        query, key, value ="
    (folder / "exiting.py").write_text(
        RIGHT.replace(query, f"        raise SystemExit(0)\n{query}")
    )
    assert "received SystemExit: 0, at exiting.py:" in error_of("exiting.py")


def test_an_exit_while_the_target_is_built_is_shown_with_its_line(folder):
    source = RIGHT.replace("attention = Attention(8)", "")
    (folder / "exiting.py").write_text(
        source.replace("        super().__init__()", "        raise SystemExit(0)")
    )
    line = 1 + RIGHT.splitlines().index("        super().__init__()")
    assert f"exiting.py:{line}: raise SystemExit(0)" in error_of("exiting.py:Attention")


def test_control_characters_of_a_target_do_not_reach_the_terminal(folder):
    query = "        query, key, value ="
    writing = "        import os; os.write(1, b'\\x1b[2J'); raise ValueError('\\x1b[3J')\n"
    (folder / "writing.py").write_text(
        RIGHT.replace("attention = Attention(8)", "").replace(query, writing + query)
    )
    result = run("writing.py")
    assert result.exit_code == 2, result.output
    assert "\\x1b[3J" in result.stderr
    assert "\\x1b[2J" in result.stderr
    assert "\x1b" not in result.output


def test_what_a_target_writes_to_the_file_descriptor_stays_out_of_json(folder):
    (folder / "writing.py").write_text("import os\n\nos.write(1, b'raw bytes')\n" + RIGHT)
    result = run("writing.py", "--format", "json")
    assert json.loads(result.stdout)["ok"] is True
    assert "raw bytes" in result.stderr


# --- examples, coverage and options ------------------------------------------------------------------

ODD = RIGHT.replace("forward(self, x)", "forward(self, x, quux)").replace(
    "return scores", "return quux * scores"
)
MODEL = RIGHT.replace(
    "attention = Attention(8)",
    """
WIDTH = 12

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention(WIDTH)

    def forward(self, x):
        return self.attn(x)
""",
)


def test_an_example_is_an_expression_with_the_names_of_the_file(folder):
    (folder / "odd.py").write_text(ODD.replace("attention = Attention(8)", "WIDTH = 8"))
    example = "torch.randn(2, 9, WIDTH), quux=1.0"
    result = run("odd.py", "--with", "d_model=8", "--example", example)
    assert result.exit_code == 0, result.output
    assert "NameError: name 'HEIGHT'" in error_of("odd.py", "--example", "HEIGHT")
    assert "SyntaxError" in error_of("odd.py", "--example", "1 +")
    error = error_of("odd.py", "--example", example)
    assert "--with d_model=VALUE" in error
    assert "=…" not in error


def test_an_example_comes_from_a_test_or_a_model(folder):
    (folder / "model.py").write_text(MODEL)
    (folder / "test_it.py").write_text("""
import torch
from model import Attention

def test_it():
    Attention(10)(torch.randn(2, 9, 10))

class TestGroup:
    def test_it(self):
        test_it()
""")
    for name in ("test_it", "TestGroup::test_it"):
        result = run("model.py:Attention", "--example-from", f"test_it.py::{name}")
        assert result.exit_code == 0, result.output
        assert f"the only call of Attention in test_it.py::{name}" in result.stdout
    result = run("model.py:Model", "--module", "attn", "--example", "torch.randn(2, 9, WIDTH)")
    assert result.exit_code == 0, result.output
    assert "the only call of attn in a run of Model" in result.stdout
    assert "look like an attention: attn" in error_of("model.py:Model", "--module", "blocks.0")
    assert "test_it.py::test_other" in error_of(
        "model.py:Attention", "--example-from", "test_it.py::test_other"
    ).replace(":test_other", "::test_other")


def test_lines_that_did_not_run_are_named_and_fail_a_strict_check(folder):
    (folder / "branch.py").write_text(
        RIGHT.replace("forward(self, x):", "forward(self, x, quux=None):").replace(
            "        return scores", "        if quux:\n            x = quux\n        return scores"
        )
    )
    result = run("branch.py:Attention")
    assert result.exit_code == 0, result.output
    assert "if quux. Give quux: --example '…, quux=…'." in result.stdout
    assert "Attention: no bug in 4 of 5 lines" in result.stdout
    strict = run("branch.py:Attention", "--strict")
    assert strict.exit_code == 1
    assert "lines-not-run  bug" in strict.stdout
    assert run("right.py:Attention", "--strict").exit_code == 0


def test_contradictions_name_the_options_of_the_command():
    result = run("right.py:Attention", "--heads", "7")
    assert result.exit_code == 1
    assert "The caller states --heads 7, but each sequence has 1 head." in result.stdout
    assert "--window: expected a number of at least 1" in error_of("right.py", "--window", "0")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full device")
def test_a_closed_and_a_full_stdout_end_without_a_traceback():
    command = f"{sys.executable} -m heedful check right.py:Attention"
    closed = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True)
    assert (closed.returncode, "Traceback" in closed.stderr) == (0, False), closed.stderr
    full = subprocess.run(f"{command} >/dev/full", shell=True, capture_output=True, text=True)
    assert full.returncode == 2
    assert full.stderr.endswith("heedful cannot write the output: No space left on device\n")


# --- the catalogue -----------------------------------------------------------------------------------


def test_explain_prints_one_entry():
    result = run("--explain", "group-order")
    assert result.exit_code == 0
    assert "repeat_interleave" in result.stdout


def test_explain_suggests_similar_names():
    result = run("--explain", "group-ordr")
    assert result.exit_code == 2
    assert "group-order" in result.stderr


def test_list_prints_all_names():
    result = run("--list")
    assert result.exit_code == 0
    assert {"mask-unused", "rotary-layout", "crashes"} <= set(result.stdout.split())


# --- in pytest ---------------------------------------------------------------------------------------

SUITE = """
from heedful.conformance.pytest import parametrize
from right import Attention
import unscaled


@parametrize(lambda: Attention(24))
def test_right(probe):
    probe()


@parametrize(unscaled.attention)
def test_unscaled(probe):
    probe()


@parametrize(unscaled.attention, expected_failures={"scale-missing": "trained so"})
def test_known(probe):
    probe()


@parametrize(Attention, expected_failures={"scale-missing": "trained so"})
def test_fixed(probe):
    probe()
"""


def test_each_probe_is_a_test(folder):
    (folder / "test_mine.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml",
        "out.xml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    cases = ElementTree.parse(folder / "out.xml").findall(".//testcase")
    counts = {}
    for name in ("test_right", "test_unscaled", "test_known", "test_fixed"):
        own = [case for case in cases if case.get("name").startswith(name)]
        outcomes = [{child.tag for child in case} for case in own]
        counts[name] = (
            len(own),
            sum("failure" in it for it in outcomes),
            sum("skipped" in it for it in outcomes),
        )
    probes = counts["test_right"][0]
    assert probes > 3
    assert counts == {
        "test_right": (probes, 0, 0),
        "test_unscaled": (probes, 1, 0),
        "test_known": (probes, 0, 1),  # xfail
        "test_fixed": (probes, 1, 0),
    }, done.stdout
    assert f"unscaled.py:{UNSCALED_LINE}" in done.stdout
    assert "no longer fail: scale-missing" in done.stdout
