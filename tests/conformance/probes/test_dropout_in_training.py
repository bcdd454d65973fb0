"""Dropout in training must act on the weights, and rescale those that it keeps."""

import pytest
from edited_attention import (
    CONTEXT,
    CORRECT,
    DROPOUT,
    MANUAL_DROPOUT,
    SIZES,
    SOFTMAX,
    assert_bug,
    assert_no_finding,
    edited,
    results_of,
)

from heedful.conformance.reporting.finding import Fact

# The finding, what is replaced, by what, and what is on the line to be named.
BUGS = {
    "on the scores": (
        "dropout-misplaced",
        SOFTMAX + DROPOUT,
        "        scores = self.dropout(scores)\n" + SOFTMAX,
        "scores = self.dropout",
    ),
    "on the context": (
        "dropout-misplaced",
        DROPOUT + CONTEXT,
        CONTEXT + "        context = self.dropout(context)\n",
        "context = self.dropout",
    ),
    "not rescaled": (
        "dropout-rescale",
        DROPOUT,
        MANUAL_DROPOUT.format(""),
        "torch.rand(weights.shape)",
    ),
    "divided by p": ("dropout-rescale", DROPOUT, MANUAL_DROPOUT.format(" / self.p"), "/ self.p"),
    "rescaled twice": (
        "dropout-rescale",
        DROPOUT,
        DROPOUT + "        weights = weights / (1 - self.p)\n",
        "/ (1 - self.p)",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_wrong_dropout_is_found(tmp_path, bug):
    assert_bug(tmp_path, *BUGS[bug])


FROM_QUERY = CORRECT[CORRECT.index("        query = ") :]
CORRECT_DROPOUTS = {
    "by hand": (DROPOUT, MANUAL_DROPOUT.format(" / (1 - self.p)")),
    "on tokens, weights and context": (
        FROM_QUERY,
        "        x = self.dropout(x)\n"
        + FROM_QUERY.replace(DROPOUT, MANUAL_DROPOUT.format(" / (1 - self.p)")).replace(
            "T, C)\n        return",
            "T, C)\n        context = self.dropout(context)\n        return",
        ),
    ),
    "on weights and output": (
        "return self.out_proj(context)",
        "return self.dropout(self.out_proj(context))",
    ),
    "on what is added to the tokens": (
        CORRECT[CORRECT.index(DROPOUT) :],
        CONTEXT
        + "        context = context.transpose(1, 2).reshape(B, T, C)\n"
        + "        return self.out_proj(x + self.dropout(context))\n",
    ),
    "nowhere": (DROPOUT + CONTEXT, CONTEXT + "        self.last = self.dropout\n"),
}


@pytest.mark.parametrize("dropout", CORRECT_DROPOUTS)
def test_correct_dropout_raises_no_alarm(tmp_path, dropout):
    assert_no_finding(tmp_path, *CORRECT_DROPOUTS[dropout])


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("", "", "on the weights, p = 0.25"),
        (
            "return self.out_proj(context)",
            "return self.dropout(self.out_proj(context))",
            "on the weights, p = 0.25; on the output, p = 0.25",
        ),
        (DROPOUT, "", "none"),
    ],
)
def test_the_places_of_dropout_are_reported(tmp_path, old, new, fact):
    with edited(tmp_path, old, new) as attention:
        assert Fact("dropout", fact) in results_of(attention(*SIZES))


@pytest.mark.parametrize("of_tokens", [True, False])
def test_dropout_of_merged_heads_before_the_return_is_no_sure_bug(tmp_path, of_tokens):
    """Without a projection behind it, it may be meant as the dropout of the sublayer's output."""
    returned = CONTEXT + "        return self.dropout(context.transpose(1, 2).reshape(B, T, C))\n"
    source = CORRECT.replace(CORRECT[CORRECT.index(DROPOUT) :], returned)
    tokens = "        B, T, C = x.shape\n        query"
    new = tokens.replace("        query", "        x = self.dropout(x)\n        query")
    with edited(tmp_path, tokens, new if of_tokens else tokens, source) as attention:
        found = results_of(attention(*SIZES))
    levels = [it.level for it in found if it.name == "dropout-misplaced"]
    assert levels == ["suspicious"]
