"""The argument for a mask of queries and keys: it has an effect, with the polarity that the docstring states."""

import pytest
from attentions_with_caches import written

from heedful import check
from heedful.conformance.calling.polarity import is_documented_as_additive

BLOCK = """import torch
import torch.nn.functional as F
from torch import nn


class Inner(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], -torch.inf)
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class Attention(nn.Module):
    def __init__(self, width=24, heads=4):
        super().__init__()
        self.attn = Inner(width, heads)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, src_mask=None, src_key_padding_mask=None):
        '''src_mask: SAID'''
        return x + self.attn(self.norm(x), ARGS)
"""
BOTH = "src_mask, src_key_padding_mask"
HIDES = "(T, T), True where a query does not see a key."
ADDED = "of shape (T, T), 0 where a query sees a key and the lowest number elsewhere."
ADD = "scores = scores + attn_mask"
FILL = "scores = scores.masked_fill(attn_mask, -torch.inf)"


@pytest.mark.parametrize(
    ("arguments", "said", "applied", "bugs"),
    [
        (BOTH, HIDES, FILL, []),
        (BOTH, ADDED, ADD, []),
        ("key_padding_mask=src_key_padding_mask", HIDES, FILL, [("mask-unused", "key_padding_mask=src")]),
        (BOTH, HIDES, "masked = scores.masked_fill(attn_mask, -9e9)", [("mask-unused", "masked = ")]),
        (BOTH, HIDES, FILL.replace("(attn", "(~attn"), [("mask-inverted", "~attn_mask")]),
        (BOTH, ADDED, FILL.replace("attn_mask", "attn_mask == 0"), [("mask-inverted", "attn_mask == 0")]),
    ],
)  # fmt: skip
def test_a_mask_of_queries_and_keys_beside_one_of_padding(tmp_path, arguments, said, applied, bugs):
    source = BLOCK.replace("ARGS", arguments).replace("SAID", said).replace(FILL, applied)
    with written(tmp_path, source) as target:
        found = check(target).bugs
    assert [bug.name for bug in found] == [name for name, _ in bugs]
    assert all(line in bug.place.source for bug, (_, line) in zip(found, bugs, strict=True))


NUMPY = """

        Parameters
        ----------
        src_mask : torch.Tensor
            (T, T), the non-zero entries are not allowed to attend.
        """


BELOW = """

        Args:
            src_mask:
                Of shape (T, T).
                Its non-zero entries are not allowed to attend.
        """


@pytest.mark.parametrize("docstring", [NUMPY, BELOW])
@pytest.mark.parametrize(
    ("applied", "bugs"), [(FILL, []), (FILL.replace("(attn", "(~attn"), ["mask-inverted"])]
)
def test_a_description_below_its_entry_states_the_polarity(tmp_path, docstring, applied, bugs):
    source = BLOCK.replace("ARGS", BOTH).replace("src_mask: SAID", docstring).replace(FILL, applied)
    with written(tmp_path, source) as target:
        assert [bug.name for bug in check(target).bugs] == bugs


def test_an_argument_that_is_said_to_be_ignored_is_no_bug(tmp_path):
    source = BLOCK.replace("ARGS", "key_padding_mask=src_key_padding_mask")
    with written(tmp_path, source.replace("SAID", "ignored, for other encoders' sake.")) as target:
        assert not check(target).bugs


@pytest.mark.parametrize(
    ("text", "additive"),
    [
        ("-inf at padding, 0 elsewhere", True),
        ("float mask with 0.0 for visible keys and float('-inf') for hidden ones", True),
        ("added to the attention scores before the softmax", True),
        ("positions with mask=0 are filled with -inf", False),
        ("0 at padding, which gets -inf", False),
        ("1 for real tokens; turned into an additive mask", False),
        ("mask for additive attention", False),
    ],
)
def test_what_a_docstring_says_about_added_masks(text, additive):
    assert is_documented_as_additive(text) is additive
