"""A second sequence, beside one that attends to itself, has padding and a mask of its own."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful.conformance import check
from heedful.conformance.calling.convention import MEMORY
from heedful.conformance.calling.subject import find_subject

pytestmark = pytest.mark.slow

# A layer of a decoder whose masks are described in sentences and in comments.
LAYER = """
import torch
from torch import nn

class Mha(nn.Module):
    def __init__(self, size, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(size, size) for _ in range(4))

    def heads(self, t):
        return t.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, q, kv, mask=None):
        q, k, v = self.heads(self.wq(q)), self.heads(self.wk(kv)), self.heads(self.wv(kv))
        s = q @ k.transpose(2, 3) / q.size(-1) ** 0.5
        if mask is not None:
            s = s.masked_fill(mask[:, None, None], -1e30)
        p = s.softmax(-1)
        return self.wo((p @ v).transpose(1, 2).flatten(2))

class Attention(nn.Module):
    \"\"\"A decoder layer. `tgt_pad` is True at padding, as `enc_pad` is.

    `enc_pad` is True where a token of the encoder is padding.
    \"\"\"

    def __init__(self, size, h):
        super().__init__()
        self.self_mha, self.cross_mha = Mha(size, h), Mha(size, h)

    def forward(
        self,
        tgt,
        enc,
        tgt_pad=None,
        enc_pad=None,
    ):
        tgt = tgt + self.self_mha(tgt, tgt, mask=tgt_pad)
        return tgt + self.cross_mha(tgt, enc, mask=enc_pad)
"""
COMMENTED = LAYER.replace("`enc_pad` is True where a token of the encoder is padding.", "").replace(
    "enc_pad=None,", "enc_pad=None,  # (B, S), 1 at padding"
)
CROSS = "mask=enc_pad)"


@pytest.mark.parametrize(
    ("name", "source", "old", "new", "line"),
    [
        ("mask-inverted", LAYER, CROSS, "mask=None if enc_pad is None else ~enc_pad)", "enc_pad"),
        (
            "mask-inverted",
            COMMENTED,
            CROSS,
            "mask=None if enc_pad is None else ~enc_pad)",
            "enc_pad",
        ),
        ("mask-fill-too-small", LAYER, "-1e30", "-1e-9", "-1e-9"),
        ("mask-unused", LAYER, CROSS, "mask=None)", "cross_mha("),
        (
            "mask-broadcast",
            LAYER,
            CROSS,
            "mask=None if enc_pad is None else enc_pad.roll(1, 0))",
            "masked_fill(mask",
        ),
    ],
)
def test_the_mask_of_a_second_sequence_is_checked(tmp_path, name, source, old, new, line):
    assert source.count(old) == 1
    with written(tmp_path, source.replace(old, new)) as target:
        (bug,) = check(target(24, 4)).bugs
    assert bug.name == name
    assert bug.place is not None
    assert line in bug.place.source


# Takes the keys and the values of the source as a pair, which the check does not pad.
PAIRED = """
import torch
from torch import nn
from torch.nn import functional as F

class Products(nn.Module):
    def forward(self, query, key, value, padding_mask=None):
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None], float("-inf"))
        return scores.softmax(-1) @ value

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.attention = nn.Linear(d_model, d_model), Products()

    def forward(self, x, memory, memory_mask=None):
        '''memory: the pair of keys and values, each (B, S, d_model). memory_mask: (B, S), True at padding.'''
        keys, values = memory
        return x + self.attention(self.query(x), keys, values, memory_mask)
"""


@pytest.mark.parametrize("mask", ["memory_mask", "encoder_padding_mask"])
def test_a_mask_that_is_never_read_is_named_where_it_is_not_passed_on(tmp_path, mask):
    source, call = PAIRED.replace("memory_mask", mask), f"values, {mask})"
    assert source.count(call) == 1
    with written(tmp_path, source.replace(call, "values)")) as target:
        (bug,) = check(target).bugs
    assert bug.name == "mask-unused"
    assert "self.attention(" in bug.place.source
    for sound in (source, source.replace(call, "values)").replace("True at", "unused, no")):
        with written(tmp_path, sound) as target:
            assert not check(target).bugs


def test_a_call_that_is_given_none_is_blamed_before_one_without_a_second_sequence(tmp_path):
    call = "return x + self.attention(self.query(x), keys, values, memory_mask)"
    calls = """if x is None:
            x = self.attention(x, x, x)
        return x + self.attention(
            self.query(x), keys, values,
            padding_mask=None)"""
    assert PAIRED.count(call) == 1
    with written(tmp_path, PAIRED.replace(call, calls)) as target:
        (bug,) = check(target).bugs
    assert (bug.name, bug.place.source.strip()) == ("mask-unused", "padding_mask=None)")


@pytest.mark.parametrize("source", [LAYER, COMMENTED])
def test_the_padding_of_a_second_sequence_is_no_leak_of_the_first(tmp_path, source):
    with written(tmp_path, source) as target:
        subject = find_subject(target(24, 4))
        report = check(target(24, 4))
    assert subject.convention.constants["enc"] is MEMORY
    assert report.bugs == ()
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["padding of enc"] == "enc_pad (B, T), True hides"


def test_cross_attention_alone_gets_the_same_tokens_twice(tmp_path):
    alone = LAYER.replace("tgt = tgt + self.self_mha(tgt, tgt, mask=tgt_pad)", "pass")
    with written(tmp_path, alone) as target:
        subject = find_subject(target(24, 4))
        report = check(target(24, 4))
    assert subject.convention.names == ("tgt", "enc")
    assert {fact.name: fact.value for fact in report.facts}["causal"] == "no"


# Queries look at keys of another sequence. The function drops the padding before it attends.
DROPPING = """
import torch
from torch import nn

class Attention(nn.Module):
    \"\"\"Readers (batch, Tr, size) look at pages (batch, Tp, size). `pages_mask` is True at pages.\"\"\"

    def __init__(self, size, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(size, size) for _ in range(4))

    def forward(self, readers, pages, pages_mask=None):
        if pages_mask is None:
            pages_mask = torch.ones(pages.shape[:2], dtype=torch.bool, device=pages.device)
        found = []
        for reader, page, real in zip(readers, pages, pages_mask):
            q, k, v = self.wq(reader), self.wk(page[real]), self.wv(page[real])
            q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(0, 1) for t in (q, k, v))
            context = (q @ k.transpose(1, 2) / q.size(-1) ** 0.5).softmax(-1) @ v
            found.append(context.transpose(0, 1).flatten(1))
        return self.wo(torch.stack(found))
"""
STACK = "        return self.wo(torch.stack(found))"
HIDING = STACK.replace("found)", "found) * pages_mask[:, -readers.shape[1] :, None]")


def test_a_mask_of_keys_that_also_hides_queries_is_named(tmp_path):
    sizes = {"size": 24, "h": 3}
    with written(tmp_path, DROPPING) as attention:
        assert check(attention, arguments=sizes).bugs == ()
    with written(tmp_path, DROPPING.replace(STACK, HIDING)) as attention:
        assert "padding-leak" in {bug.name for bug in check(attention, arguments=sizes).bugs}


# Cross-attention alone, whose mask has no axis of sequences. Its docstring also names an entry of it.
UNBATCHED_MASK = """
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, size, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv = (nn.Linear(size, size) for _ in range(3))

    def forward(self, query, key, value, attn_mask=None):
        '''Attend.

        Parameters
        ----------
        attn_mask : torch.Tensor
            Boolean, [len_in, len_ctx]. True at [i, j] means that query i attends to key j.
        '''
        q, k, v = self.wq(query), self.wk(key), self.wv(value)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask).transpose(1, 2).flatten(2)
"""


def test_a_mask_of_queries_and_keys_is_not_given_for_the_padding_of_the_keys(tmp_path):
    with written(tmp_path, UNBATCHED_MASK) as attention:
        report = check(attention(24, 4))
    assert report.bugs == ()
    assert "padding of key" not in {fact.name for fact in report.facts}
