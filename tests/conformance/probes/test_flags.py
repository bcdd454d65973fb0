"""Flags that are off by default, two masks in one call, one sequence alone, and views that infer a size."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check
from heedful.conformance.reporting.finding import Fact

pytestmark = pytest.mark.slow

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
"""
CAUSAL = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, is_causal=False):
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        if is_causal:
            later = torch.ones_like(scores).triu(1).bool()
            scores = scores.masked_fill(later, float("-inf"))
        return scores.softmax(-1) @ self.v(x)
"""
)
MASKED = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, padding_mask=None, future_mask=None):
        '''padding_mask: (B, T), True at padding. future_mask: (T, T), True at later keys.'''
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        masked = scores
        if padding_mask is not None:
            masked = masked.masked_fill(padding_mask[:, None], float("-inf"))
        if future_mask is not None:
            masked = masked.masked_fill(future_mask, float("-inf"))
        return masked.softmax(-1) @ self.v(x)
"""
)
LINEAR = (
    HEAD
    + """
    def __init__(self, dim=16, linear=False):
        super().__init__()
        self.linear = linear
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if not self.linear:
            return F.scaled_dot_product_attention(q, k, v)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bsd,bse->bde", k, v)
        z = 1 / torch.einsum("btd,bd->bt", q, k.sum(1))
        return torch.einsum("btd,bde,bt->bte", q, state, z)
"""
)
SWITCHED = (
    HEAD
    + """
    def __init__(self, dim=16, p=0.1, fused=True):
        super().__init__()
        self.p, self.fused = p, fused
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        p = self.p if self.training else 0.0
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        weights = (q @ k.mT * x.shape[-1] ** -0.5).softmax(-1)
        return F.dropout(weights, self.p, self.training) @ v
"""
)
POOLED = (
    HEAD
    + """
    def __init__(self, vocab_size=30, dim=16):
        super().__init__()
        self.words, self.score, self.out = nn.Embedding(vocab_size, dim), nn.Linear(dim, 1), nn.Linear(dim, 1)

    def forward(self, ids):
        x = self.words(ids)
        weights = self.score(x).softmax(1)
        return self.out((weights * x).sum(1)).squeeze(1)
"""
)
PIXELS = (
    HEAD
    + """
    def __init__(self, channels=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x):
        b, c, h, w = x.shape
        y = x.view(b, c, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y))
        return y.transpose(1, 2).view(b, c, h, w)
"""
)


# Two regions are summed up, and each pixel reads the summaries.
REGIONS = (
    HEAD
    + """
    def __init__(self, channels=16):
        super().__init__()
        self.regions = nn.Conv2d(channels, 2, 1)
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x):
        b, c, h, w = x.shape
        weights = self.regions(x).flatten(2).softmax(-1)
        summaries = weights @ x.view(b, c, -1).transpose(1, 2)
        q = self.q(x.flatten(2).transpose(1, 2))
        y = F.scaled_dot_product_attention(q, self.k(summaries), self.v(summaries))
        return y.transpose(1, 2).view(b, c, h, w)
"""
)


def found_in(folder, source, levels=("bug", "suspicious")):
    with written(folder, source) as attention:
        findings = check(attention).findings
    return {it.name: it for it in findings if it.level in levels}


@pytest.mark.parametrize(
    "source",
    [CAUSAL, MASKED, LINEAR, SWITCHED, POOLED, PIXELS, REGIONS],
    ids=["causal", "masked", "linear", "switched", "pooled", "pixels", "regions"],
)
def test_sound_modules_are_left_alone(tmp_path, source):
    assert found_in(tmp_path, source, ("bug",)) == {}


@pytest.mark.parametrize(
    ("source", "old", "new", "name", "line", "case"),
    [
        (CAUSAL, "(later,", "(~later,", "mask-inverted", "masked_fill", "is_causal=True"),
        (CAUSAL, "triu(1)", "triu(2)", "future-leak", "triu(2)", "is_causal=True"),
        (
            CAUSAL.replace("is_causal", "causal_mask"),
            "scores = scores.masked",
            "scores.masked",
            "mask-unused",
            "masked_fill",
            "causal_mask=True",
        ),
        (SWITCHED, ", self.training", "", "dropout-in-eval", "F.dropout", "fused=False"),
        (MASKED, "masked.masked_fill(fut", "scores.masked_fill(fut", "mask-unused", "(fut", ""),
        (LINEAR, "bsd,bse->", "bsd,ble->", "rows-not-normalised", "k.sum(1)", "linear=True"),
        (POOLED, ".squeeze(1)", ".squeeze()", "length-dependent", "return", "B = 1"),
        (
            PIXELS,
            "x.view(b, c, -1).transpose(1, 2)",
            "x.view(b, h * w, -1)",
            "heads-mixed-split",
            "h * w, -1)",
            "",
        ),
        (
            REGIONS,
            "x.view(b, c, -1).transpose(1, 2)",
            "x.view(b, h * w, -1)",
            "heads-mixed-split",
            "h * w, -1)",
            "",
        ),
    ],
)
def test_mistakes_are_named_on_their_line(tmp_path, source, old, new, name, line, case):
    assert source.count(old) == 1
    bug = found_in(tmp_path, source.replace(old, new))[name]
    assert line in bug.place.source
    assert case in bug.case
    assert bug.level == ("suspicious" if source is LINEAR else "bug")  # behind a flag


def test_a_flag_that_changes_nothing_is_suspicious_alone(tmp_path):
    with written(tmp_path, CAUSAL.replace("if is_causal:", "if is_causal and x is None:")) as it:
        levels = [(finding.name, finding.level) for finding in check(it).findings]
    assert ("future-leak", "suspicious") in levels


CACHED = (
    HEAD
    + """
    def __init__(self, dim=16, keep_cache=False):
        super().__init__()
        self.keep_cache = keep_cache
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.cached_k = self.cached_v = None

    def forward(self, x, use_cache=False):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if use_cache and self.keep_cache:
            if self.cached_k is not None:
                k, v = torch.cat([self.cached_k, k], 1), torch.cat([self.cached_v, v], 1)
            self.cached_k, self.cached_v = k, v
        queries, keys = q.shape[1], k.shape[1]
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
        return scores.softmax(-1) @ v
"""
)
CHOSEN = (
    HEAD
    + """
    def __init__(self, how, dim=16):
        super().__init__()
        self.how = how
        self.score = nn.Linear(dim, 1)

    def forward(self, x):
        '''x: (batch, tokens, dim). Returns one row for each sequence.'''
        if self.how == "bilinear":
            energies = self.bilinear(x)
        elif self.how == "linear":
            energies = self.score(x)
        weights = energies.softmax(AXIS)
        return (weights * x).sum(1)
"""
)


def test_a_cache_that_a_flag_allows_is_checked_with_the_flag(tmp_path):
    assert not found_in(tmp_path, CACHED)
    bug = found_in(tmp_path, CACHED.replace("1 + keys - queries", "1"))["causal-alignment"]
    assert (bug.level, "triu(1)" in bug.place.source) == ("bug", True)


WINDOWED = (
    HEAD
    + """
    def __init__(self, dim=16, sliding_window=512):
        super().__init__()
        self.sliding_window = sliding_window
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        places = torch.arange(x.shape[1])
        before = places[:, None] - places
        hidden = (before < 0) | (before >= self.sliding_window)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.v(x)
"""
)


def test_a_window_wider_than_every_sequence_is_made_narrow(tmp_path):
    with written(tmp_path, WINDOWED) as target:
        report = check(target)
    assert not report.bugs
    assert Fact("also with", "sliding_window=5") in report.facts
    wide = WINDOWED.replace(" | (before >= self.sliding_window)", "")
    bug = found_in(tmp_path, wide)["window-missing"]
    assert bug.level == "bug"
    assert "sliding_window=5" in bug.case


# Its options are off by default.
PLAIN = (
    HEAD
    + """
    def __init__(self, dim=32, num_heads=4, num_kv_heads=None, window_size=None, softcap=0.0):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.window_size, self.softcap = window_size, softcap
        self.q, self.o = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.k, self.v = (nn.Linear(dim, dim // num_heads * self.num_kv_heads) for _ in range(2))

    def forward(self, x):
        T, n = x.shape[1], self.num_heads // self.num_kv_heads
        q = self.q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.k(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2).repeat_interleave(n, 1)
        v = self.v(x).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2).repeat_interleave(n, 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if self.softcap > 0:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        visible = torch.ones(T, T, dtype=torch.bool).tril()
        if self.window_size is not None:
            visible = visible.triu(1 - self.window_size)
        scores = scores.masked_fill(~visible, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
)
CAP = """
        if self.softcap > 0:
            scores = self.softcap * torch.tanh(scores / self.softcap)
"""


def test_options_that_are_off_by_default_are_checked_as_well(tmp_path):
    with written(tmp_path, PLAIN) as target:
        report = check(target)
    assert not report.findings
    tried = {it.value for it in report.facts if it.name == "also with"}
    assert tried == {"num_kv_heads=2", "window_size=5", "softcap=5.0"}


@pytest.mark.parametrize(
    ("name", "case", "line", "source"),
    [
        (
            "group-order",
            "num_kv_heads=2",
            ".repeat(1, n, 1, 1)",
            PLAIN.replace("repeat_interleave(n, 1)", "repeat(1, n, 1, 1)"),
        ),
        ("window-off-by-one", "window_size=5", "triu(-self", PLAIN.replace("triu(1 - ", "triu(-")),
        (
            "future-leak",
            "softcap=5.0",
            "torch.tanh(",
            PLAIN.replace(CAP, "\n").replace("        return", CAP + "        return"),
        ),
    ],
)
def test_what_an_option_that_is_off_by_default_shows_is_a_bug(tmp_path, name, case, line, source):
    assert source != PLAIN
    found = found_in(tmp_path, source)
    assert {*found} == {name}
    assert found[name].level == "bug"
    assert case in found[name].case
    assert line in found[name].place.source


@pytest.mark.parametrize(
    ("axis", "names"), [("0", {"crashes", "softmax-wrong-dim"}), ("1", {"crashes"})]
)
def test_a_choice_that_cannot_be_called_hides_no_bug_of_another_one(tmp_path, axis, names):
    found = found_in(tmp_path, CHOSEN.replace("AXIS", axis))
    assert {*found} == names
    assert "self.bilinear(x)" in found["crashes"].place.source
    assert "softmax-wrong-dim" not in names or "how='linear'" in found["softmax-wrong-dim"].case


# Its flag, which is off by default, makes it causal.
FLAGGED = (
    HEAD
    + """
    def __init__(self, dim=16, causal=False):
        super().__init__()
        self.causal = causal
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
        return scores.softmax(-1) @ self.v(x)
"""
)
# A block of it that keeps the flag for itself is causal whatever the flag says.
NESTED = (
    FLAGGED.replace("class Attention", "class Inner").replace("=False", "=True")
    + """

class Attention(nn.Module):
    def __init__(self, dim=16, causal=True):
        super().__init__()
        self.inner = Inner(dim, causal)

    def forward(self, x):
        return x + self.inner(x)
"""
)


@pytest.mark.parametrize("source", [FLAGGED, NESTED])
def test_a_flag_of_causality_is_checked_both_ways(tmp_path, source):
    with written(tmp_path, source) as target:
        report = check(target)
    assert not report.findings
    assert Fact("also with", f"causal={source is FLAGGED}") in report.facts


@pytest.mark.parametrize(
    ("source", "old", "new", "name", "line"),
    [
        (FLAGGED, "triu(1)", "triu(2)", "future-leak", "triu(2)"),
        (FLAGGED, "if self.causal", "if False", "future-leak", "softmax(-1)"),
        (NESTED, "if self.causal", "if True", "statement-contradicted", "masked_fill"),
        (NESTED, "Inner(dim, causal)", "Inner(dim)", "statement-contradicted", "Inner(dim)"),
    ],
)
def test_a_flag_of_causality_that_does_not_do_what_it_says(tmp_path, source, old, new, name, line):
    assert source.count(old) == 1
    bug = found_in(tmp_path, source.replace(old, new))[name]
    assert (bug.level, line in bug.place.source) == ("bug", True)
    assert f"causal={source is FLAGGED}" in bug.case
    assert "caller" not in bug.proof


SCORED = (
    HEAD
    + """
    def __init__(self, dim=16, score="dot"):
        # the scores of Luong et al. 2015 are not scaled
        super().__init__()
        self.score = score
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        if self.score == "dot":
            scores = q @ k.mT
        elif self.score == "scaled":
            scores = q @ k.mT / x.shape[-1] ** 0.5
        elif self.score == "cosine":
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        else:
            raise ValueError(self.score)
        return scores.softmax(-1) @ self.v(x)
"""
)


def test_each_text_that_chooses_a_way_is_checked(tmp_path):
    with written(tmp_path, SCORED) as target:
        report = check(target)
    assert report.bugs == ()
    tried = {fact.value for fact in report.facts if fact.name == "also with"}
    assert tried == {"score='scaled'", "score='cosine'"}


def test_a_bug_of_one_way_is_named_with_its_text(tmp_path):
    wrong = SCORED.replace("q @ k.mT / x.shape", "F.dropout(q, 0.5) @ k.mT / x.shape")
    with written(tmp_path, wrong) as target:
        (bug,) = check(target).bugs
    assert bug.name == "dropout-in-eval"
    assert "score='scaled'" in bug.case
