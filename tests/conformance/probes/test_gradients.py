"""Gradients that are cut, wrong or not deterministic."""

import pytest
import torch
from edited_attention import (
    CORRECT,
    SIZES,
    SOFTMAX,
    SPLIT_VALUE,
    assert_bug,
    assert_no_finding,
    edited,
    findings_of,
)
from torch import nn

from heedful import check
from heedful.textbook import causal


class RoundedScores(nn.Module):
    """Computes its scores in float16, whatever the dtype of the tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        qkv = self.qkv(x).unflatten(-1, (3, 4, -1)).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in qkv)
        scores = (query * query.shape[-1] ** -0.5).half() @ key.half().mT
        return (scores.softmax(-1).to(x.dtype) @ value).transpose(1, 2).flatten(2)


NOISY = "        weights = Noisy.apply(torch.softmax(scores, -1), {})\n"

# The finding, what is replaced, by what, and what is on the line to be named.
BUGS = {
    "detach": (
        "gradient-wrong",
        SOFTMAX,
        SOFTMAX.replace("scores,", "scores.detach(),"),
        "scores.detach()",
    ),
    "data": (
        "gradient-wrong",
        SPLIT_VALUE,
        SPLIT_VALUE.replace("W_value(x)", "W_value(x).data"),
        "W_value(x).data",
    ),
    "no_grad": (
        "gradient-wrong",
        SPLIT_VALUE,
        "        with torch.no_grad():\n    " + SPLIT_VALUE,
        "self.W_value(x)",
    ),
    "a wrong backward": (
        "gradient-wrong",
        SOFTMAX,
        "        weights = WrongSoftmax.apply(scores)\n",
        "return weights * gradient",
    ),
    "a random backward": (
        "gradient-not-deterministic",
        SOFTMAX,
        NOISY.format(0.1),
        "rand_like",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_wrong_gradients_are_found(tmp_path, bug):
    assert_bug(tmp_path, *BUGS[bug])


def test_gradients_are_compared_in_float32_if_nothing_else_runs(tmp_path):
    cut = SOFTMAX.replace("scores,", "scores.detach().float(),")
    with edited(tmp_path, SOFTMAX, cut) as attention:
        (finding,) = findings_of(attention(*SIZES))
    assert finding.name == "gradient-wrong"
    assert finding.case.startswith("float32")


def test_gradients_that_differ_by_rounding_only_are_suspicious(tmp_path):
    with edited(tmp_path, SOFTMAX, NOISY.format(1e-9)) as attention:
        (finding,) = findings_of(attention(*SIZES))
    assert (finding.name, finding.level) == ("gradient-not-deterministic", "suspicious")


GATED = """
        with torch.no_grad():
            far = torch.softmax(scores.masked_fill(self.mask[:T, :T], -1e9), dim=-1).cumsum(-1)
            gate = far.detach() if self.p < 2 else far
        scores = scores * gate
"""
SCORED_UNTRAINED = """
        with torch.no_grad():
            scores = query @ key.transpose(-2, -1)
"""
SCORES = "        scores = query @ key.transpose(-2, -1)\n"


@pytest.mark.parametrize("beside", ["", "query = query.detach()"])
def test_a_block_without_gradients_is_no_bug_and_hides_none(tmp_path, beside):
    block = GATED + f"        {beside}\n" * bool(beside)
    extra = "        scores = scores + 0.1 * (query @ key.mT)\n"
    with edited(tmp_path, SOFTMAX, block + extra + SOFTMAX) as attention:
        names = [it.name for it in findings_of(attention(*SIZES))]
    assert names == ["gradient-wrong"] * bool(beside)


def test_a_block_that_keeps_projections_from_training_is_a_bug(tmp_path):
    assert_bug(tmp_path, "gradient-wrong", SCORES, SCORED_UNTRAINED, "scores = query @ key")


CORRECT_GRADIENTS = {
    "a whole call without gradients, as for the generation of text": (
        "    def forward(self, x):",
        "    @torch.no_grad()\n    def forward(self, x):",
    ),
    "values rounded straight through": (
        SPLIT_VALUE,
        SPLIT_VALUE
        + "        signs = value.abs().mean() * value.sign()\n"
        + "        value = value + (signs - value).detach()\n",
    ),
    "values rounded straight through, in another order": (
        SPLIT_VALUE,
        SPLIT_VALUE
        + "        signs = value.abs().mean() * value.sign()\n"
        + "        value = signs - value.detach() + value\n",
    ),
    "the largest score subtracted": (
        SOFTMAX,
        "        scores = scores - scores.amax(-1, keepdim=True).detach()\n" + SOFTMAX,
    ),
    "a softmax with its own backward": (
        SOFTMAX,
        SOFTMAX.replace("torch.softmax", "CorrectSoftmax.apply").replace("dim=-1", "-1"),
    ),
}


def test_values_rounded_straight_through_hide_no_other_bug(tmp_path):
    rounded = (
        SPLIT_VALUE + "        value = value + (value.sign() * value.std() - value).detach()\n"
    )
    cut = SOFTMAX.replace("scores,", "scores.detach(),")
    source = CORRECT.replace(SPLIT_VALUE, rounded)
    with edited(tmp_path, SOFTMAX, cut, source) as attention:
        (bug,) = (it for it in findings_of(attention(*SIZES)) if it.name == "gradient-wrong")
    assert "scores.detach()" in bug.place.source
    assert "W_value" not in bug.proof


@pytest.mark.parametrize("seed", range(6))
def test_scores_in_half_precision_are_wrong_weights_and_nothing_else(seed):
    torch.manual_seed(seed)
    assert [bug.name for bug in check(RoundedScores(32)).bugs] == ["weights-wrong"]


@pytest.mark.parametrize("gradient", CORRECT_GRADIENTS)
def test_correct_gradients_raise_no_alarm(tmp_path, gradient):
    assert_no_finding(tmp_path, *CORRECT_GRADIENTS[gradient])


def test_an_embedding_row_without_a_gradient_by_design_is_no_bug():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 24, padding_idx=0)
            self.attention = causal.CausalAttention(24, 24, context_length=16)

        def forward(self, tokens):
            return self.attention(self.embedding(tokens))

    assert findings_of(Reader()) == []


class Captions(nn.Module):
    """Text that reads the images before it; the words before the first image read none."""

    fill = "lowest"

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, images, seen):
        q, k, v = (f(y)[:, None] for f, y in ((self.q, x), (self.k, images), (self.v, images)))
        hidden = torch.zeros_like(seen).masked_fill(seen == 0, torch.finfo(x.dtype).min)
        out = nn.functional.scaled_dot_product_attention(q, k, v, hidden[:, None])[:, 0]
        return x + (out if self.fill == "lowest" else out * seen.amax(-1, keepdim=True))


class CaptionsWithoutImages(Captions):
    """The same, but words that see no image get 0."""

    fill = "zero"


def test_a_row_that_numbers_hide_has_a_wrong_gradient_in_torch():
    torch.manual_seed(0)
    seen = torch.tensor([0.0, 0, 1, 1, 1])[:, None].expand(2, 5, 3).clone()
    example = torch.randn(2, 5, 16), torch.randn(2, 3, 16), seen
    (bug,) = check(Captions(), example=example).bugs
    assert bug.name == "mask-fill-too-small"
    assert "scaled_dot_product" in bug.place.source
    assert check(CaptionsWithoutImages(), example=example).bugs == ()
