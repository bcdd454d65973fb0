"""Lines to blame lie in the target's own file, where the padding that a layer of PyTorch hides is pooled."""

import pytest
from attentions_with_caches import written

from heedful import check

POOLED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 3)

    def forward(self, x, src_key_padding_mask=None):
        '''x: (batch, tokens, features). Returns one row for each sequence.'''
        states = self.encoder(x, src_key_padding_mask=src_key_padding_mask)
        if src_key_padding_mask is None:
            return self.head(states.mean(1))
        real = ~src_key_padding_mask[..., None]
        summary = (states * real).sum(1) / real.sum(1)
        return self.head(summary)
"""
RIGHT = "(states * real).sum(1) / real.sum(1)"


def findings_in(tmp_path, source):
    with written(tmp_path, source) as attention:
        return check(attention).bugs


@pytest.mark.parametrize("pooled", ["states.mean(1)", "states.amax(1)", "states[:, -1]"])
def test_the_pooling_of_padding_is_named_on_its_line(tmp_path, pooled):
    [bug] = findings_in(tmp_path, POOLED.replace(RIGHT, pooled))
    assert bug.name == "padding-leak"
    assert bug.place.source == f"summary = {pooled}"
    assert "pooled" in bug.proof


def test_padding_that_is_pooled_rightly_is_not_blamed(tmp_path):
    assert not findings_in(tmp_path, POOLED)


def test_a_layer_that_gets_no_mask_is_named_and_not_its_own_lines(tmp_path):
    source = POOLED.replace("(x, src_key_padding_mask=src_key_padding_mask)", "(x)")
    [bug] = findings_in(tmp_path, source)
    assert bug.place.file.endswith("attention.py")
    assert "self.encoder(x)" in bug.place.source
