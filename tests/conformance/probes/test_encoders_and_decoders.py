"""Models of two texts, whose first ids stand for padding, and a decoder's result beside its encoder's."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Heads(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context, mask):
        projected = self.q(x), self.k(context), self.v(context)
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in projected)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(mask == 0, torch.finfo(q.dtype).min)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Attention(nn.Module):
"""
# A query that sees padding alone sees all keys alike, so no sequence of the check may begin with padding.
TEXTS = (
    HEAD
    + """
    def __init__(self, src_pad_idx, trg_pad_idx, enc_voc_size, dec_voc_size, dim=16, heads=2):
        super().__init__()
        self.src_pad_idx, self.trg_pad_idx = src_pad_idx, trg_pad_idx
        self.source, self.target = nn.Embedding(enc_voc_size, dim), nn.Embedding(dec_voc_size, dim)
        self.encode, self.decode, self.cross = (Heads(dim, heads) for _ in range(3))
        self.out = nn.Linear(dim, dec_voc_size)

    def forward(self, src, trg):
        src_mask = (src != self.src_pad_idx)[:, None, None]
        later = torch.ones(trg.shape[1], trg.shape[1], dtype=torch.bool).tril()
        trg_mask = (trg != self.trg_pad_idx)[:, None, None] & later
        x = self.source(src)
        x = x + self.encode(x, x, src_mask)
        y = self.target(trg)
        y = y + self.decode(y, y, trg_mask)
        y = y + self.cross(y, x, src_mask)
        return self.out(y)
"""
)
# The encoder's rows see each other; the triangle is that of the decoder.
SPEECH = (
    HEAD
    + """
    def __init__(self, tgt_vocab, dim=16, heads=2):
        super().__init__()
        self.embedding = nn.Embedding(tgt_vocab, dim)
        self.encode, self.decode, self.cross = (Heads(dim, heads) for _ in range(3))

    def forward(self, src, tgt):
        later = torch.ones(tgt.shape[1], tgt.shape[1]).tril()
        visible = torch.ones(src.shape[1])
        src = src + self.encode(src, src, visible)
        y = self.embedding(tgt)
        y = y + self.decode(y, y, later)
        return src, y + self.cross(y, src, visible)
"""
)
# A segment is seen by later tokens alone, so the scores within the first one have no effect on few tokens.
SEGMENTS = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=16, segment=16):
        super().__init__()
        self.segment = segment
        self.score, self.qkv = nn.Linear(dim, 1), nn.Linear(dim, 3 * dim)

    def forward(self, x):
        T = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        parts = F.pad(k, (0, 0, 0, -T % self.segment)).unflatten(1, (-1, self.segment))
        shares = F.pad(self.score(x), (0, 0, 0, -T % self.segment), value=-1e30)
        summary = torch.einsum("bnsd,bns->bnd", parts, shares.unflatten(1, (-1, self.segment))[..., 0].softmax(-1))
        last = torch.arange(1, summary.shape[1] + 1) * self.segment - 1
        seen = torch.cat([torch.ones(T, T).tril(), torch.arange(T)[:, None] >= last], -1).bool()
        scores = q @ torch.cat([k, summary], 1).mT * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return weights @ torch.cat([v, summary], 1)
"""


def bugs(folder, source):
    with written(folder, source) as attention:
        return {it.name for it in check(attention).bugs}


@pytest.mark.parametrize("source", [TEXTS, SPEECH, SEGMENTS], ids=["texts", "speech", "segments"])
def test_sound_modules_are_left_alone(tmp_path, source):
    assert bugs(tmp_path, source) == set()


def test_a_decoder_that_sees_later_tokens_is_named(tmp_path):
    assert bugs(
        tmp_path, TEXTS.replace("dtype=torch.bool).tril()", "dtype=torch.bool).tril(1)")
    ) == {"future-leak"}


def test_weights_that_are_summed_apart_have_no_effect_on_any_tokens(tmp_path):
    assert "attention-ignored" in bugs(
        tmp_path, SEGMENTS.replace('"bnsd,bns->bnd"', '"bnsd,bnt->bnd"')
    )


def test_an_id_of_padding_that_stands_in_the_place_of_its_twin_is_named(tmp_path):
    source = TEXTS.replace("(trg != self.trg_pad_idx)", "(trg != self.src_pad_idx)")
    with written(tmp_path, source) as attention:
        places = {it.name: it.place.source for it in check(attention).bugs if it.place is not None}
    assert places == {"padding-leak": "trg_mask = (trg != self.src_pad_idx)[:, None, None] & later"}
