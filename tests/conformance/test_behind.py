"""A check goes on behind a bug that ends every call, and reports what it finds there on the lines of the original."""

from pathlib import Path

import pytest
from torch import nn

from heedful import check
from heedful.conformance.calling.loading import loaded
from heedful.conformance.reporting.report import Report

SOURCE = """
import math
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        weights = scores.softmax(dim=-1)
        context = (weights @ v).transpose(1, 2).reshape(B, T, C)
        return self.out_proj(context)
"""
SOFTMAX = ("softmax(dim=-1)", "softmax(dim=1)")

QUICK = ("a variable", "an attribute in the constructor", "an argument of a layer")
# What ends every call or the constructor: what is replaced, by what, and the name of the finding.
ENDS = {
    "a variable": ("(weights @ v)", "(weight @ v)", "undefined-or-global-name"),
    "an import": ("import math\n", "\n", "undefined-or-global-name"),
    "an attribute": ("self.out_proj(context)", "self.proj_out(context)", "crashes"),
    "a parameter in the constructor": (
        "3 * d_model)",
        "3 * num_heads * head_dim)",
        "undefined-or-global-name",
    ),
    "an attribute in the constructor": (
        "nn.Linear(d_model, d_model)",
        "nn.Linear(self.num_heads * self.head_size, d_model)",
        "crashes",
    ),
    "an argument of a layer": ("d_model // num_heads", "d_model / num_heads", "crashes"),
}


def report_on(folder: Path, *edits: tuple[str, str]) -> Report:
    text = SOURCE
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "behind.py"
    path.write_text(text)
    with loaded(f"{path}:Attention") as definition:
        return check(definition)


@pytest.mark.parametrize(
    "what", [it if it in QUICK else pytest.param(it, marks=pytest.mark.slow) for it in ENDS]
)
def test_a_second_bug_is_found_behind_the_one_that_ends_every_call(tmp_path, what):
    old, new, name = ENDS[what]
    first, *others = report_on(tmp_path, (old, new), SOFTMAX).bugs
    assert first.name == name
    (second,) = others
    assert second.name == "softmax-wrong-dim"
    assert second.proof.startswith(f"Behind the repair of {name}: ")
    assert second.place is not None
    assert second.place.file == str(tmp_path / "behind.py")
    assert second.place.surrounding(0)[0][1].strip() == "weights = scores.softmax(dim=1)"


@pytest.mark.parametrize("what", ENDS)
def test_nothing_is_found_behind_it_if_nothing_is_there(tmp_path, what):
    old, new, name = ENDS[what]
    assert [bug.name for bug in report_on(tmp_path, (old, new)).bugs] == [name]


def test_several_missing_names_are_found_one_behind_the_other(tmp_path):
    edits = (ENDS["an import"][:2], ENDS["a variable"][:2], ENDS["an attribute"][:2], SOFTMAX)
    names = [bug.name for bug in report_on(tmp_path, *edits).bugs]
    assert names == [*["undefined-or-global-name"] * 2, "crashes", "softmax-wrong-dim"]


# A wrong split of all three projections, and what it hides.
SPLITS = [
    (f"{it} = {it}.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)",
     f"{it} = {it}.view(B, self.num_heads, T, self.head_dim)")
    for it in "qkv"
]  # fmt: skip


def test_a_wrong_scale_is_found_behind_a_wrong_split(tmp_path):
    split, scale = report_on(tmp_path, *SPLITS, ("/ math.sqrt(", "* math.sqrt(")).bugs
    assert split.name == "heads-mixed-split"
    assert scale.name == "scale-wrong"
    assert scale.place is not None
    assert "* math.sqrt(" in scale.place.source


def test_nothing_is_found_behind_a_wrong_split_alone(tmp_path):
    assert [bug.name for bug in report_on(tmp_path, *SPLITS).bugs] == ["heads-mixed-split"]


def test_the_file_is_not_changed(tmp_path):
    report_on(tmp_path, ENDS["a variable"][:2])
    text = (tmp_path / "behind.py").read_text()
    assert text == SOURCE.replace("(weights @ v)", "(weight @ v)")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".py"] == ["behind.py"]


def test_a_class_that_no_file_defines_is_reported_without_what_is_behind():
    class Local(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.qkv = nn.Linear(d_model, 3 * d_model)

        def forward(self, x):
            q, k, _ = self.qkv(x).chunk(3, dim=-1)
            return (q @ k.mT).softmax(dim=1) @ values  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    assert [bug.name for bug in check(Local).bugs] == ["undefined-or-global-name"]
