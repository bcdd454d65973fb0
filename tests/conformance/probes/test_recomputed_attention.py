"""The check computes an attention again and names the step that departs; announced designs are left alone."""

import pytest
import torch
from edited_attention import CONTEXT, CORRECT, SOFTMAX, edited
from torch import nn

from heedful.conformance.checking import check
from heedful.conformance.evidence import designs
from heedful.conformance.recording.forwarding import call_omitting
from heedful.conformance.recording.target_source import prose_about

pytestmark = pytest.mark.slow

SIZES = (24, 4, 70, 0.0)


def bugs_of(target, **options):
    bugs = check(target, **options).bugs
    return {bug.name: "" if bug.place is None else bug.place.source for bug in bugs}


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("softmax-twice", SOFTMAX, f"{SOFTMAX}        weights = weights.softmax(-1)\n", "weights.softmax"),
        ("weights-wrong", SOFTMAX, f"        scores = scores.sigmoid()\n{SOFTMAX}", "sigmoid"),
        (
            "weights-wrong",
            SOFTMAX,
            f"{SOFTMAX}        weights = weights**2\n        weights = weights / weights.sum(-1, True)\n",
            "weights**2",
        ),
        ("context-wrong", CONTEXT, f"        value = value / 6**0.5\n{CONTEXT}", "value / 6**0.5"),
        ("attention-ignored", "return self.out_proj(context)", "return x", "return x"),
        (
            "attention-ignored",
            "return self.out_proj(context)",
            "return torch.zeros_like(context)",
            "zeros_like",
        ),
    ],
)  # fmt: skip
def test_a_departure_from_the_definition_is_found(tmp_path, name, old, new, line):
    with edited(tmp_path, old, new) as attention:
        bugs = bugs_of(attention(*SIZES))
    assert line in bugs[name]


def test_an_activation_of_masked_scores_is_a_bug(tmp_path):
    with edited(tmp_path, SOFTMAX, f"        scores = scores.relu()\n{SOFTMAX}") as attention:
        assert "relu" in bugs_of(attention(*SIZES))["weights-wrong"]


@pytest.mark.parametrize(
    "change", ["scores.clamp(-50, 50)", "5 * torch.tanh(scores / 5)", "scores + 3"]
)
def test_scores_may_be_clamped_capped_and_shifted(tmp_path, change):
    with edited(tmp_path, SOFTMAX, f"        scores = {change}\n{SOFTMAX}") as attention:
        assert not {"weights-wrong", "softmax-twice"} & set(bugs_of(attention(*SIZES)))


SIGMOID = "        weights = torch.sigmoid(scores)\n"


def test_a_sigmoid_needs_words_or_numbers_that_announce_it(tmp_path):
    with edited(tmp_path, SOFTMAX, SIGMOID) as attention:
        assert "rows-not-normalised" in bugs_of(attention(*SIZES))
    announced = CORRECT.replace("    def split(", "    # Sigmoid attention.\n    def split(")
    with edited(tmp_path, SOFTMAX, SIGMOID, announced) as attention:
        report = check(attention(*SIZES))
    assert not report.bugs
    assert any(fact.value == "not normalized: sigmoid attention?" for fact in report.facts)
    with edited(
        tmp_path, SOFTMAX, SIGMOID.replace("scores)", "scores - math.log(T))")
    ) as attention:
        attention.forward.__globals__["math"] = __import__("math")
        assert "rows-not-normalised" not in bugs_of(attention(*SIZES))


def test_a_scale_that_is_missing_is_a_convention_where_the_code_says_so(tmp_path):
    scale = "        scores = scores / key.shape[-1] ** 0.5\n"
    with edited(tmp_path, scale, "") as attention:
        assert "scale-missing" in bugs_of(attention(*SIZES))
    with edited(tmp_path, scale, "        # As in T5, without a scale.\n") as attention:
        report = check(attention(*SIZES))
    assert [it.level for it in report.findings if it.name == "scale-missing"] == ["convention"]


# --- a mask that is handed on to nobody --------------------------------------------------------------


class Inner(nn.Module):
    """Takes a mask."""

    def forward(self, x, mask=None):
        return x if mask is None else x * mask


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Inner()

    def forward(self, x, mask=None):
        return x + self.attn(x)  # the mask is lost here


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x, attention_mask=None):
        keep = attention_mask
        for layer in self.layers:
            x = layer(x, keep)
        return x


def test_the_call_that_loses_a_mask_is_found_in_another_class():
    line = call_omitting(Model(), "attention_mask", {"mask", "attention_mask"})
    assert line is not None
    assert line.source.endswith("# the mask is lost here")
    assert call_omitting(Inner(), "mask", {"mask"}) is None


def test_prose_is_names_docstrings_and_comments_but_no_code():
    prose = prose_about(Model())
    assert "takes a mask" in prose
    assert "is lost here" in prose
    assert "inner" in prose
    assert "modulelist" not in prose


def test_a_gate_that_starts_closed_does_not_hide_the_attention():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
            self.gamma = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            scores = self.q(x) @ self.k(x).mT / 24**0.5
            return x + self.gamma * (scores.softmax(-2) @ self.v(x))

    assert "softmax-wrong-dim" in bugs_of(Gated())


def test_words_that_announce_a_design_are_lower_case():
    assert all(words == words.lower() for words in designs.WITHOUT_SOFTMAX)


NORMALIZED = """
import torch
import torch.nn.functional as F
from torch import nn

class UnitRMS(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))

    def forward(self, t):
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain

class Attention(nn.Module):
    def __init__(self, d_model, num_heads, context_length, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.first, self.second, self.third = (UnitRMS(d_model // num_heads) for _ in range(3))
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.pool = nn.AvgPool1d(3, stride=1, padding=1)

    def heads(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def pooled(self, t):
        return self.pool(t.transpose(1, 2)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        # normalized here
        context = F.scaled_dot_product_attention(q, k, v)
        return self.out(context.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    "lines",
    [
        "q = self.first(q); v = self.second(v)",
        "k = self.first(k); v = F.layer_norm(v, v.shape[-1:])",
    ],
)
def test_values_that_are_normalized_instead_of_keys_or_queries_are_found(tmp_path, lines):
    with edited(tmp_path, "# normalized here", lines, NORMALIZED) as attention:
        (bug,) = check(attention(*SIZES)).bugs
    assert bug.name == "context-wrong"
    assert "v = " in bug.place.source


@pytest.mark.parametrize(
    "lines",
    [
        "q = self.first(q); k = self.second(k)",
        "q = self.first(q); k = self.second(k); v = self.third(v)",
        "k = v = self.first(k)",
        "q, k = F.normalize(q, dim=-1) * 3, F.normalize(k, dim=-1)",
        "v = self.third(v)",
        "k = self.first(self.heads(self.pooled(self.k(x)))); v = self.third(self.heads(self.pooled(self.v(x))))",
    ],
)  # fmt: skip
def test_other_ways_to_normalize_are_left_alone(tmp_path, lines):
    with edited(tmp_path, "# normalized here", lines, NORMALIZED) as attention:
        assert not [bug for bug in check(attention(*SIZES)).bugs if bug.name == "context-wrong"]


def test_queries_that_are_normalized_twice_in_place_of_keys_are_found(tmp_path):
    lines = "q = self.first(q)\n        q = self.second(q)"
    with edited(tmp_path, "# normalized here", lines, NORMALIZED) as attention:
        (bug,) = check(attention(*SIZES)).bugs
    assert (bug.name, bug.place.source) == ("weights-wrong", "q = self.second(q)")
