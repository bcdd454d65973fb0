"""Masks of a batch that are broadcast over the heads, and masks of the tokens after a class token."""

import pytest
from attentions_with_caches import written

from heedful import check

ATTENTION = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x, mask=None):
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dots = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            EDIT
        return self.to_out((dots.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
AFTER_A_CLASS_TOKEN = """mask = F.pad(mask.flatten(1), (1, 0), value=True)
            mask = mask[:, None, :] * mask[:, :, None]
            dots = dots.masked_fill(~maskPLACE, -torch.finfo(dots.dtype).max)"""
OF_EACH_TOKEN = """mask = mask.unsqueeze(1).repeat(1, x.shape[1], 1)
            dots = dots.masked_fill(maskPLACE == 0, -torch.finfo(dots.dtype).max)"""


def lines_by_rule(folder, edit):
    """Return the line of each finding of level bug."""
    with written(folder, ATTENTION.replace("EDIT", edit)) as target:
        return {it.name: it.place.line for it in check(target).findings if it.level == "bug"}


@pytest.mark.parametrize("edit", [AFTER_A_CLASS_TOKEN, OF_EACH_TOKEN])
def test_a_mask_without_a_head_axis_is_named_with_its_line(tmp_path, edit):
    source = ATTENTION.replace("EDIT", edit).splitlines()
    line = next(n for n, line in enumerate(source) if "masked_fill" in line)
    assert lines_by_rule(tmp_path, edit.replace("PLACE", "")) == {"mask-broadcast": line}


@pytest.mark.parametrize("edit", [AFTER_A_CLASS_TOKEN, OF_EACH_TOKEN])
def test_a_mask_with_a_head_axis_is_right(tmp_path, edit):
    assert not lines_by_rule(tmp_path, edit.replace("PLACE", "[:, None]"))


def test_a_mask_of_the_tokens_after_a_class_token_is_found(tmp_path):
    edit = AFTER_A_CLASS_TOKEN.replace("PLACE", "[:, None]")
    with written(tmp_path, ATTENTION.replace("EDIT", edit)) as target:
        assert "mask (B, T - 1)" in str(check(target))


def test_padding_after_a_class_token_that_is_never_masked_is_a_bug(tmp_path):
    edit = "mask = F.pad(mask.flatten(1), (1, 0), value=True)"
    assert "mask-unused" in lines_by_rule(tmp_path, edit)
