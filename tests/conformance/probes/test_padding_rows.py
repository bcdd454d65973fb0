"""What a table of embeddings holds for padding does not reach the outputs of real tokens."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

# A token for the class comes last, and sees each text but its padding.
TEXTS = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, vocab_size=40, width=16, context_length=16, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.embedding = nn.Embedding(vocab_size, width)
        self.places = nn.Parameter(torch.randn(context_length + 1, width))
        self.cls = nn.Parameter(torch.randn(width))
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("causal", torch.ones(context_length + 1, context_length + 1).tril().bool())

    def forward(self, text):
        B, T = text.shape
        x = torch.cat([self.embedding(text), self.cls.expand(B, 1, -1)], 1) + self.places[: T + 1]
        real = (text != self.pad_id)[:, None]
        real = F.pad(real, (0, 1, T, 0), value=True)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~(self.causal[: T + 1, : T + 1] & real), -1e4)
        return (scores.softmax(-1) @ v)[:, -1]
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [("", "", []), ("(0, 1, T, 0)", "(1, 0, T, 0)", ["padding-leak"])],
    ids=["right", "shifted"],
)
def test_a_mask_that_is_shifted_by_the_class_token_shows_padding(tmp_path, old, new, names):
    with written(tmp_path, TEXTS.replace(old, new) if old else TEXTS) as attention:
        report = check(attention)
    assert [it.name for it in report.bugs] == names, report
    assert all("real" in it.place.source for it in report.bugs if it.place)


@pytest.mark.parametrize(("index", "names"), [("", ["padding-leak"]), (", padding_idx=0", [])])
def test_a_convolution_may_reach_the_zeros_of_a_padding_index(tmp_path, index, names):
    source = TEXTS.replace("(vocab_size, width)", f"(vocab_size, width{index})")
    source = source.replace(
        "self.embedding(text)", "F.avg_pool1d(self.embedding(text).mT, 3, 1, padding=1).mT"
    )
    with written(tmp_path, source) as attention:
        assert [it.name for it in check(attention).bugs] == names
