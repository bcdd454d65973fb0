"""NaN and infinities in outputs and gradients."""

import pytest
import torch
from edited_attention import APPLY_MASK, CONTEXT, SOFTMAX, assert_bug, edited

from heedful import check

OUTPUT = "        return self.out_proj(context)\n"


@pytest.mark.parametrize("factor", ["float('nan')", "float('inf')"])
def test_an_output_that_is_not_finite_is_a_bug_on_its_line(tmp_path, factor):
    scaled = f"        context = context * {factor}\n"
    assert_bug(tmp_path, "output-not-finite", CONTEXT, CONTEXT + scaled, scaled.strip())


def test_scores_that_hide_every_key_are_the_line(tmp_path):
    hiding = '        scores = scores.masked_fill(scores == scores, float("-inf"))\n'
    assert_bug(tmp_path, "output-not-finite", APPLY_MASK, hiding, hiding.strip())


def test_one_nan_is_found(tmp_path):
    one = "        weights[..., -1, 0] = float('nan')\n        weights = weights * 1\n"
    assert_bug(tmp_path, "output-not-finite", SOFTMAX, SOFTMAX + one, None)


def test_nan_in_training_alone_is_found(tmp_path):
    log = "        if self.training:\n            weights = weights * (-1 - weights).log()\n"
    line = "weights = weights * (-1 - weights).log()"
    assert_bug(tmp_path, "output-not-finite", SOFTMAX, SOFTMAX + log, line)


def test_nan_on_one_token_is_found(tmp_path):
    spread = "        context = context / (context.std(2, keepdim=True) * 0 + 1)\n"
    with edited(tmp_path, CONTEXT, CONTEXT + spread) as attention:
        assert "output-not-finite" in {it.name for it in check(attention, causal=True).findings}


def test_a_gradient_that_is_nan_is_wrong(tmp_path):
    root = "        context = context + ((value - value).abs()).sqrt()\n"
    assert_bug(tmp_path, "gradient-wrong", CONTEXT, CONTEXT + root, None)


def test_a_function_that_returns_nan_has_a_bug():
    def attend(query, key, value):
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return weights @ value * torch.nan

    report = check(attend)
    assert [bug.name for bug in report.bugs] == ["output-not-finite"]
    assert report.exit_code == 1
