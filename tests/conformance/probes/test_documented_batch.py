"""Vectors of samples, one for each entry of the batch by the docstring, are weighted by themselves."""

import pytest
from gapped_attention import bugs_in

WORDS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size, num_aspects):
        super().__init__()
        self.aspects = nn.Embedding(num_aspects, hidden_size)
        self.score = nn.Linear(2 * hidden_size, 2)

    def forward(self, words, aspect):
        '''
        Args:
            words: ROWS - a vector for each
            aspect: (batch,) - the number of an aspect
        '''
        both = torch.stack((words, self.aspects(aspect)), 1)
        weights = self.score(both.flatten(1)).softmax(AXIS)
        return (weights[..., None] * both).sum(1)
"""


@pytest.mark.parametrize(
    ("rows", "axis", "names"),
    [
        ("(batch, hidden_size)", "0", ["batch-mixed"]),
        ("(batch, hidden_size)", "1", []),
        ("(tokens, hidden_size)", "0", []),  # they may attend to each other
    ],
)
def test_a_softmax_over_samples_is_named(tmp_path, rows, axis, names):
    bugs = bugs_in(tmp_path, WORDS.replace("ROWS", rows).replace("AXIS", axis))
    assert [*bugs] == names
    assert all(f"softmax({axis})" in line for line in bugs.values())
