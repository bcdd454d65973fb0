"""A softmax over tokens whose scores are the same for all of them."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

POOLING = """import torch
from torch import nn


class Attention(nn.Module):
    '''Pools the tokens of an utterance, (batch, tokens, width).'''

    def __init__(self, width=16):
        super().__init__()
        self.hidden, self.score = nn.Linear(WIDTHS, 8), nn.Linear(8, width)

    def forward(self, x):
        summary = x.mean(dim=1, keepdim=True).expand_as(x)
        features = SUMMARY
        scores = self.score(torch.tanh(self.hidden(features)))
        return (scores.softmax(dim=1) * x).sum(dim=1)
"""


def pooling(features: str, widths: str) -> str:
    return POOLING.replace("SUMMARY", features).replace("WIDTHS", widths)


def test_scores_of_the_summary_of_a_sequence_tell_no_tokens_apart(tmp_path):
    with written(tmp_path, pooling("summary", "width")) as target:
        (bug,) = check(target).bugs
    assert bug.name == "attention-ignored"
    assert bug.place.source == "summary = x.mean(dim=1, keepdim=True).expand_as(x)"


@pytest.mark.parametrize("kept", ["x", "x * 1e-3"])
def test_scores_of_each_token_and_the_summary_do(tmp_path, kept):
    both = pooling(f"torch.cat([{kept}, summary], dim=-1)", "2 * width")
    with written(tmp_path, both) as target:
        assert check(target).bugs == ()


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_weights_that_begin_at_zero_may_be_even_at_first(tmp_path, part):
    sound = pooling("torch.cat([x, summary], dim=-1)", "2 * width")
    with written(tmp_path, sound) as target:
        module = target()
        with torch.no_grad():
            getattr(module.score, part).zero_()
        assert check(module).bugs == ()
