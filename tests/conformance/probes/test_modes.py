"""What a call in one mode leaves behind: the dropout of the other mode, and tensors that are not registered."""

import pytest
from attentions_with_caches import written

from heedful import check

SOURCE = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, n_heads=4, dropout=0.2):
        super().__init__()
        self.n_heads = n_heads
        self.rate = dropout
        self.active_rate = 0.0
        self.past = {}
        self.bias = None
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        B, T, C = x.shape
        if self.bias is None or self.bias.shape[-1] != T:
            steps = torch.arange(T, device=x.device)
            self.bias = -(steps - steps[:, None]).abs() / 8
        bias = self.bias.to(x)
        rate = self.rate if self.training else 0.0
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        w = F.softmax(q @ k.mT * (C // self.n_heads) ** -0.5 + bias, dim=-1)
        w = F.dropout(w, rate)
        return (w @ v).transpose(1, 2).reshape(B, T, C)
"""
RATE = "        rate = self.rate if self.training else 0.0\n"
LOST = """        if not self.training:
            self.rate = 0.0
        rate = self.rate
"""
KEPT = """        if self.training:
            self.active_rate = self.rate
        rate = self.active_rate
"""


@pytest.mark.parametrize(
    ("old", "new", "findings"),
    [
        ("", "", []),
        (RATE, LOST, [("dropout-unused", "bug")]),
        (RATE, KEPT, [("dropout-in-eval", "bug")]),
        ("self.bias.to(x)", "self.bias", [("table-not-a-buffer", "bug")]),
    ],
)  # fmt: skip
def test_what_a_call_leaves_behind(tmp_path, old, new, findings):
    assert old in SOURCE
    with written(tmp_path, SOURCE.replace(old, new) if old else SOURCE) as target:
        report = check(target)
    found = [it for it in report.findings if it.level in ("bug", "suspicious")]
    assert [(it.name, it.level) for it in found] == findings
    assert all(it.place is not None for it in found)


def test_a_tensor_that_is_made_again_on_another_device(tmp_path):
    source = SOURCE.replace("self.bias.to(x)", "self.bias")
    source = source.replace(
        "self.bias is None or", "self.bias is None or self.bias.device != x.device or"
    )
    with written(tmp_path, source) as target:
        assert check(target).bugs == ()
