"""What `show` puts into a page: rules that reproduce each step, axes, attentions, and files."""

import base64
import json
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import heedful
from heedful.cli import app
from heedful.errors import ArgumentError, MissingExtraError
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
)
from heedful.viewer import Page
from heedful.viewer.steps.nodes import nodes_of
from heedful.viewer.steps.recording import recording_of

X = torch.rand(1, 6, 8, generator=torch.Generator().manual_seed(0))


class OneLine(nn.Module):
    """Attention without a name for any step."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return F.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5, dim=-1) @ self.v(x)


class ByHand(nn.Module):
    """A stable softmax by hand, an additive mask, and heads split by view and permute."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        qkv = self.qkv(x).view(B, T, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        mask = torch.full((T, T), -torch.inf).triu(1)
        scores = q @ k.mT * 0.5 + mask
        largest = scores.max(dim=-1, keepdim=True).values
        powers = torch.exp(scores - largest)
        weights = powers / powers.sum(-1, keepdim=True)
        return (weights @ v).transpose(1, 2).reshape(B, T, 8)


class Torn(nn.Module):
    """Heads split by a view of the wrong order."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(8, 8)

    def forward(self, x):
        B, T, _ = x.shape
        heads = self.q(x).view(B, 2, T, 4)
        weights = torch.softmax(heads @ heads.mT, dim=-1)
        return (weights @ heads).transpose(1, 2).reshape(B, T, 8)


MODULES = {
    "parameters": lambda: SelfAttentionV1(8, 4),
    "causal": lambda: CausalAttention(8, 4, context_length=6, dropout=0.5),
    "wrapper": lambda: MultiHeadAttentionWrapper(8, 4, context_length=6, num_heads=2),
    "heads": lambda: MultiHeadAttention(8, 8, context_length=6, num_heads=2, dropout=0.1),
    "einsum": lambda: EinsumMultiHeadAttention(8, 8, context_length=6, num_heads=2),
    "one line": OneLine,
    "torn": Torn,
}


def nodes(module, *inputs, labels=None):
    return nodes_of(recording_of("", module, inputs or (X,), {}, labels), 1 << 18)


def named(found, name):
    return [it for it in found if it.name == name][-1]


@pytest.mark.parametrize("name", MODULES)
def test_the_attention_of_a_module_is_found(name):
    found, attentions = nodes(MODULES[name]())
    assert len(attentions) == (2 if name == "wrapper" else 1)
    for attention in attentions:
        scores, weights, context = (
            found[position] for position in (attention.scores, attention.weights, attention.context)
        )
        assert scores.kind_of_rule == "product"
        if name != "torn":
            assert scores.axes[-2:] == weights.axes[-2:] == ("token", "key")
        assert context.role == "context"
        assert (attention.dropped is not None) == (name in ("causal", "wrapper", "heads", "einsum"))


@pytest.mark.parametrize("name", MODULES)
def test_weights_are_part_of_the_run(name):
    module = MODULES[name]()
    found, _ = nodes(module)
    parameters = dict(module.named_parameters())
    shown = {it.name: it for it in found if it.kind == "parameter"}
    assert set(shown) == set(parameters)
    for key, parameter in parameters.items():
        assert torch.equal(shown[key].value, parameter.detach())


def test_every_step_of_the_textbook_has_a_rule():
    for name in ("parameters", "causal", "heads", "einsum"):
        found, _ = nodes(MODULES[name]())
        without = [it.name for it in found if it.kind == "step" and it.shown and it.rule is None]
        assert set(without) <= {"mask"}  # a part of a buffer


def test_a_softmax_by_hand_has_rules():
    found, _ = nodes(ByHand())
    assert named(found, "powers").kind_of_rule == "exp"
    assert named(found, "weights").kind_of_rule == "combine"
    assert named(found, "weights").axes == ("batch", "head", "token", "key")


def test_heads_are_told_from_tokens_by_where_entries_come_from():
    found, _ = nodes(MODULES["heads"]())
    assert named(found, "queries_by_head").axes == ("batch", "head", "token", "feature")
    found, _ = nodes(MODULES["einsum"]())
    assert named(found, "queries_by_head").axes == ("batch", "token", "head", "feature")
    assert named(found, "scores").axes == ("batch", "head", "token", "key")


def test_a_torn_split_has_no_axis_of_tokens():
    found, _ = nodes(Torn())
    assert "token" not in named(found, "heads").axes
    assert "Tokens are torn" in named(found, "heads").notes[0]
    for name in ("heads", "einsum", "one line"):
        assert not any("torn" in note for it in nodes(MODULES[name]())[0] for note in it.notes)


def test_a_rule_that_does_not_reproduce_the_value_is_refused():
    class Changed(nn.Module):
        def forward(self, x):
            doubled = x * 2
            with torch.no_grad():
                doubled.data.numpy()[:] = 5  # behind the back of the recording
            return doubled @ x.mT

    found, _ = nodes(Changed())
    assert named(found, "doubled").kind_of_rule == "scale"
    assert found[-1].rule is None


def test_masks_that_hide_are_told_from_masks_that_keep():
    def hidden(x):
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return (x @ x.mT).masked_fill(mask, -torch.inf)

    found, _ = nodes(hidden, X)
    assert found[-1].rule["keeps"] is False
    found, _ = nodes(MODULES["causal"]())
    assert named(found, "masked_scores").rule["keeps"] is True


def data_of(page: Page) -> tuple[dict, bytes]:
    text = page.html()
    data = re.search(r'id="heedful-data">(.*?)</script>', text, re.DOTALL)
    arrays = re.search(r'id="heedful-arrays">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert arrays is not None
    return json.loads(data[1]), base64.b64decode(arrays[1])


def test_arrays_are_binary_and_complete():
    module = MODULES["causal"]()
    trace = heedful.record(module.eval(), X)
    data, arrays = data_of(heedful.show(module, X))
    dtypes = {"f4": torch.float32, "f8": torch.float64, "u1": torch.uint8, "i4": torch.int32}
    compared = 0
    for node in data["views"][0]["runs"][0]["nodes"]:
        if node["kind"] != "step":
            continue
        tensor = node["tensor"]
        count = torch.Size(tensor["shape"]).numel()
        read = torch.frombuffer(
            bytearray(arrays), dtype=dtypes[tensor["dtype"]], count=count, offset=tensor["offset"]
        ).reshape(tensor["shape"])
        assert torch.equal(read.to(trace[node["name"]].dtype), trace[node["name"]].value)
        compared += 1
    assert compared == len(trace)


def test_a_large_value_is_shown_by_means():
    data, _ = data_of(heedful.show(lambda x: x @ x.mT, torch.ones(2000, 4)))
    node = data["views"][0]["runs"][0]["nodes"][-1]
    assert node["shape"] == [2000, 2000]
    assert max(node["tensor"]["shape"]) <= 128
    assert "each the mean of its finite ones" in node["notes"][0]


def test_a_trace_shows_its_steps():
    trace = heedful.record(MODULES["causal"](), X)
    page = heedful.show(trace)
    data, _ = data_of(page)
    run = data["views"][0]["runs"][0]
    assert [node["name"] for node in run["nodes"]] == [step.name for step in trace]
    assert len(run["attentions"]) == 0 or run["attentions"][0]["weights"] is not None


def test_a_module_without_inputs_is_called_as_check_does():
    data, _ = data_of(heedful.show(MODULES["heads"]()))
    run = data["views"][0]["runs"][0]
    assert len(run["labels"]) == 6
    assert len(run["attentions"]) == 1


def test_two_modules_run_on_the_same_tokens():
    data, _ = data_of(heedful.show(MODULES["heads"](), beside=MODULES["einsum"]()))
    first, second = data["views"][0]["runs"]
    assert first["title"] == "MultiHeadAttention"
    assert second["title"] == "EinsumMultiHeadAttention"
    assert first["labels"] == second["labels"]


def test_a_report_is_a_page():
    page = heedful.show(heedful.check(Torn()))
    assert "heedful-check" in page.html()
    assert page.title == "The check of Torn"


@pytest.mark.parametrize("subject", [CausalAttention, 3, "text"])
def test_what_cannot_be_shown_is_refused(subject):
    with pytest.raises(ArgumentError, match="subject: expected a module"):
        heedful.show(subject)


def test_nothing_of_the_module_or_the_random_state_changes():
    module = MODULES["causal"]()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    heedful.show(module)
    assert torch.equal(torch.rand(1), expected)
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_frame_is_sandboxed_and_holds_the_page():
    page = heedful.show(MODULES["causal"](), X)
    frame = page._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" ')
    assert "allow-same-origin" not in frame
    assert frame.count("<") == 2  # the page is in an attribute


@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_pages_and_pictures_are_files(tmp_path, suffix):
    file = tmp_path / f"page.{suffix}"
    words = ("$x^", "<b>", "\x00", "a" * 100, "日本", "")
    heedful.show(MODULES["heads"](), X, labels=words).save(file)
    start = {"html": b"<!doctype html>", "svg": b"<?xml", "png": b"\x89PNG"}[suffix]
    assert file.read_bytes().startswith(start)
    assert [it.name for it in tmp_path.iterdir()] == [file.name]


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"path: expected a name that ends in \.html, \.svg or \.png"
    ):
        heedful.show(MODULES["causal"](), X).save(tmp_path / "page.pdf")


def test_a_page_without_maps_has_no_picture(tmp_path):
    with pytest.raises(ArgumentError, match="no map of scores and weights"):
        heedful.show(heedful.check(Torn())).save(tmp_path / "page.png")


def test_a_picture_says_what_installs_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'heedful\[pictures\]'"):
        heedful.show(MODULES["causal"](), X).save(tmp_path / "page.png")
    assert list(tmp_path.iterdir()) == []


def test_labels_are_not_cut():
    module = CausalAttention(8, 4, context_length=4)
    with pytest.raises(ArgumentError, match=r"labels: expected labels for 4 tokens.* received 6"):
        heedful.show(module, labels=["Your", "journey", "starts", "with", "one", "step"])
    assert heedful.show(module, labels=["four", "of", "them", "fit"]).views


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "heedful", "show", *arguments],
        capture_output=True, text=True, cwd=cwd, check=False,
    )  # fmt: skip


def test_the_command_builds_and_calls_a_class(tmp_path):
    (tmp_path / "my.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Mine(nn.Module):\n    def __init__(self, d):\n"
        "        super().__init__()\n        self.q = nn.Linear(d, d)\n\n    def forward(self, x):\n"
        "        scores = self.q(x) @ x.mT\n        weights = scores.softmax(-1)\n        return weights @ x\n"
    )
    done = command("my.py:Mine", "--with", "d=4", "--labels", "a b c", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Wrote page.html.\n"
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<title>Mine</title>" in text
    assert '"labels":["a","b","c"]' in text
    assert '"q.weight"' in text


def test_a_module_within_a_model_is_shown(tmp_path):
    model = "heedful.textbook:MultiHeadAttentionWrapper"
    sizes = ["--with=d_in=4", "--with=d_out=2", "--with=context_length=6", "--with=num_heads=2"]
    arguments = [model, *sizes, "--example", "torch.randn(6, 4)", "--module", "heads.1"]
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "<title>CausalAttention</title>" in text
    wrong = command(*arguments[:-1], "heads.7", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--module" in wrong.stderr


def test_the_command_says_what_it_cannot_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, words in {
        (): "expected a target, --what-if or --model; received none of them",
        ("x.py:A", "--what-if"): "received a target and --what-if",
        ("x.py:A", "--out", "x.pdf"): "--out: expected a name that ends in",
        ("missing.py",): "No such file",
    }.items():
        done = CliRunner().invoke(app, ["show", *arguments])
        assert done.exit_code == 2
        assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_picture_says_which_heads_it_leaves_out(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    notes = []

    def saved(figure, form):
        notes.append(figure.get_supxlabel())
        return b""

    monkeypatch.setattr("heedful.viewer.steps.picture.saved", saved)
    for heads in (8, 9):
        module = MultiHeadAttention(9 * 8, 8 * heads, context_length=6, num_heads=heads).eval()
        heedful.show(module, torch.rand(1, 6, 72)).save(tmp_path / "picture.png")
    assert notes == ["", "8 of 9 heads; the page (.html) has all."]
