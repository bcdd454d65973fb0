"""Targets that treat one sequence otherwise than a batch, or evaluation otherwise than training."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
"""
# One sequence alone is causal; of a batch, the caller's mask says which keys are hidden.
ALONE = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, hidden_states, layer_past=None, attention_mask=None, use_cache=False):
        q, k, v = self.qkv(hidden_states).chunk(3, -1)
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 1), torch.cat([layer_past[1], v], 1)
        present = (k, v) if use_cache else None
        if len(q) == 1:
            seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
            seen = seen.tril(k.shape[1] - q.shape[1])
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            if attention_mask is not None:
                attention_mask = attention_mask.squeeze(1)
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return context, present
"""
)
# In evaluation each row is written into the result of the ones before, which has no gradient.
GREEDY = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def attend(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        if self.training:
            return self.attend(x)
        given, result = torch.zeros_like(x), x
        for t in range(x.shape[1]):
            given[:, t] = x[:, t]
            result = result + self.attend(given)
        return result
"""
)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("", "", []),
        (".tril(k.shape[1] - q.shape[1])", ".tril()", ["causal-alignment"]),
    ],
    ids=["right", "aligned to the first keys"],
)
def test_a_single_sequence_that_is_causal_is_checked_alone(tmp_path, old, new, names):
    with written(tmp_path, ALONE.replace(old, new) if old else ALONE) as attention:
        report = check(attention)
    assert [it.name for it in report.bugs] == names, report


def test_what_has_gradients_in_training_needs_none_in_evaluation(tmp_path):
    with written(tmp_path, GREEDY) as attention:
        report = check(attention)
    assert "gradient-wrong" not in [it.name for it in report.bugs]
    assert ("gradients", "in training mode alone") in [(it.name, it.value) for it in report.facts]


def test_without_gradients_in_training_either_it_is_a_bug(tmp_path):
    with written(tmp_path, GREEDY.replace("if self.training:", "if x.shape[1] > 99:")) as attention:
        assert "gradient-wrong" in [it.name for it in check(attention).bugs]
