"""Dropout that acts in eval mode is found."""

import pytest
from edited_attention import CONTEXT, CORRECT, DROPOUT, SOFTMAX, assert_bug

FUSED = "        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p={})\n"

# What is replaced, by what, and what is on the line to be named.
BUGS = {
    "function": (
        DROPOUT,
        "        weights = F.dropout(weights, self.p)\n",
        "F.dropout(weights",
    ),
    "by hand": (
        DROPOUT,
        "        weights = weights * (torch.rand_like(weights) > self.p) / (1 - self.p)\n",
        "rand_like",
    ),
    "fused": (SOFTMAX + DROPOUT + CONTEXT, FUSED.format("self.p"), "dropout_p=self.p"),
    "fused, by a variable": (
        SOFTMAX + DROPOUT + CONTEXT,
        "        p = self.p\n" + FUSED.format("p"),
        "p = self.p",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_dropout_in_eval_mode_is_found(tmp_path, bug):
    assert_bug(tmp_path, "dropout-in-eval", *BUGS[bug])


def test_a_function_that_takes_the_probability_leaves_the_line_to_its_caller(tmp_path):
    helper = "def thinned(weights, dropout_p):\n    return F.dropout(weights, dropout_p)\n\n\nclass"
    source = CORRECT.replace("class", helper, 1)
    call = "        rate = self.p\n        weights = thinned(weights, dropout_p=rate)\n"
    assert_bug(tmp_path, "dropout-in-eval", DROPOUT, call, "rate = self.p", source=source)
