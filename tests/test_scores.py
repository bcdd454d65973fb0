"""Soft-cap, sinks and ALiBi are as published."""

import pytest
import torch

from heedful import ArgumentError, attention
from heedful.scores import alibi, alibi_slopes, soft_cap


def test_a_soft_cap_bounds_scores_and_keeps_small_ones():
    scores = torch.tensor([-1000.0, -0.01, 0.0, 0.01, 1000.0])
    capped = soft_cap(scores, 5.0)
    torch.testing.assert_close(
        capped, torch.tensor([-5.0, -0.01, 0.0, 0.01, 5.0]), rtol=0, atol=1e-6
    )
    assert soft_cap(scores, None) is scores


def test_a_sink_takes_the_weight_of_a_key_whose_value_is_zero():
    query, key, value = (torch.randn(1, 2, T, 4, dtype=torch.float64) for T in (3, 5, 5))
    sinks = torch.tensor([0.3, -1.0], dtype=torch.float64)
    output, lse = attention(query, key, value, sinks=sinks, return_lse=True)
    scores = query @ key.mT / 2
    joined = torch.cat([scores, sinks.view(1, 2, 1, 1).expand(1, 2, 3, 1)], dim=-1)
    torch.testing.assert_close(output, joined.softmax(-1)[..., :-1] @ value)
    torch.testing.assert_close(lse, joined.logsumexp(-1))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-i for i in range(1, 9)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibis_slopes_are_the_published_series(heads, slopes):
    torch.testing.assert_close(alibi_slopes(heads), torch.tensor(slopes))


def test_alibis_bias_decreases_with_distance():
    bias = alibi(2, 2, 4)  # the two queries stand at keys 2 and 3
    assert bias.shape == (1, 2, 2, 4)
    torch.testing.assert_close(bias[0, 1], -(2**-8) * torch.tensor([[2.0, 1, 0, 1], [3, 2, 1, 0]]))
    torch.testing.assert_close(alibi(1, 2, 4, align="start")[0, 0, 0], -(2**-8) * torch.arange(4.0))
    with pytest.raises(ArgumentError, match="at least 1"):
        alibi_slopes(0)
