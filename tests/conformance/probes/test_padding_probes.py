"""Padding on either side must not change the outputs of real tokens."""

from __future__ import annotations

import pytest
import torch
from attentions_with_caches import (
    FILL,
    GROWING,
    KEPT,
    POSITIONS,
    RESTARTED,
    SHIFTED,
    assert_names_the_line,
    assert_no_finding,
    findings,
    written,
)
from torch import nn

from heedful.conformance import check

STEP_BY_STEP = GROWING.replace(
    "weights = scores.softmax(dim=-1)",
    "shifted = scores - scores.amax(-1, keepdim=True)\n"
    "        weights = shifted.exp() / shifted.exp().sum(-1, keepdim=True)",
)
# name, source, the text that is replaced, its replacement, and a part of the line to be named
WRONG = [
    ("mask-unused", GROWING, "visible = visible & kept", "visible & kept", "visible & kept"),
    (
        "mask-inverted",
        GROWING,
        KEPT,
        KEPT.replace("attention_mask.bool()", "(attention_mask == 0)"),
        "attention_mask == 0",
    ),
    (
        "mask-broadcast",
        GROWING,
        KEPT,
        KEPT.replace("None, None, :", "None, :, None"),
        "[:, None, :, None]",
    ),
    ("mask-broadcast", GROWING, KEPT, KEPT.replace("()[", "().roll(1, 0)["), "roll(1, 0)"),
    ("padding-leak", GROWING, KEPT, KEPT.replace("()[", "().roll(1, 1)["), "roll(1, 1)"),
    (
        "padding-leak",
        GROWING,
        "visible = visible & kept",
        "visible = visible & kept if len(kept) > 1 else visible",
        None,
    ),
    ("mask-fill-too-small", GROWING, FILL, "-1e3", "-1e3"),
    ("left-padding-positions", GROWING, POSITIONS, SHIFTED, "argmax"),
    ("left-padding-positions", GROWING, POSITIONS, RESTARTED, None),
    ("nan-on-masked-rows", GROWING, FILL, 'float("-inf")', "-inf"),
    ("nan-on-masked-rows", STEP_BY_STEP, FILL, 'float("-inf")', "shifted = scores"),
]
CORRECT = {
    "padded queries see themselves": (
        GROWING,
        "visible & kept",
        "visible & kept | torch.eye(total, dtype=torch.bool)[past:]",
    ),
    "no mask in rows that see nothing": (
        GROWING.replace(FILL, 'float("-inf")'),
        "weights = scores",
        "weights = scores.masked_fill(~visible.any(-1, keepdim=True), 0.0)",
    ),
}


@pytest.mark.parametrize(("name", "source", "old", "new", "line"), WRONG)
def test_the_wrong_line_is_named(tmp_path, name, source, old, new, line):
    assert_names_the_line(tmp_path, name, source, old, new, line)


@pytest.mark.parametrize("variant", CORRECT)
def test_correct_variants_give_no_finding(tmp_path, variant):
    assert_no_finding(tmp_path, *CORRECT[variant])


def test_torch_attention_is_suspicious_for_its_nan_on_a_sequence_of_padding():
    (finding,) = findings(nn.MultiheadAttention(24, 4, batch_first=True))
    assert (finding.name, finding.level) == ("nan-on-masked-rows", "suspicious")


# Learned positions, counted from the first slot of each row.
LEARNED_POSITIONS = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.positions = nn.Embedding(16, d_model)

    def forward(self, x, attention_mask=None):
        B, T, C = x.shape
        positions = torch.arange(T)
        x = x + self.positions(positions)
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        scores = query @ key.mT / C**0.5
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -1e9)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        weights = scores.softmax(dim=-1)
        return weights @ value
"""


@pytest.mark.parametrize(("diagonal", "level"), [(1, "bug"), (99, "suspicious")])
def test_counting_positions_over_padding_is_a_bug_in_causal_targets(tmp_path, diagonal, level):
    with written(tmp_path, LEARNED_POSITIONS.replace("triu(1)", f"triu({diagonal})")) as target:
        (finding,) = findings(target(8))
    assert (finding.name, finding.level) == ("left-padding-positions", level)
    assert finding.place is not None
    assert finding.place.source == "positions = torch.arange(T)"


def test_an_example_of_tokens_and_their_mask_alone_may_be_padded_on_the_left(tmp_path):
    example = torch.randn(2, 5, 8), torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    with written(tmp_path, LEARNED_POSITIONS) as target:
        bugs = check(target(8), example=example, causal=True).bugs
    assert [bug.name for bug in bugs] == ["left-padding-positions"]


def test_positions_given_by_the_caller_are_not_blamed(tmp_path):
    source = LEARNED_POSITIONS.replace(
        "attention_mask=None", "attention_mask=None, position_ids=None"
    )
    positions = "torch.arange(T) if position_ids is None else position_ids"
    with written(tmp_path, source.replace("torch.arange(T)", positions)) as target:
        assert findings(target(8)) == []


def test_a_mask_must_follow_the_order_of_heads_before_the_batch(tmp_path):
    heads = (
        "        query, key, value = (torch.cat(it.chunk(2, -1)) for it in (query, key, value))\n"
    )
    repeated = "attention_mask.repeat(2, 1)"
    source = LEARNED_POSITIONS.replace("        scores = query", f"{heads}        scores = query")
    source = source.replace("        x = x + self.positions(positions)\n", "")
    source = source.replace(
        "return weights @ value", "return torch.cat((weights @ value).chunk(2), -1)"
    )
    source = source.replace("attention_mask[", f"{repeated}[")
    with written(tmp_path, source) as target:
        assert findings(target(8)) == []
    wrong = "attention_mask.repeat_interleave(2, 0)"
    with written(tmp_path, source.replace(repeated, wrong)) as target:
        (finding,) = findings(target(8))
    assert finding.name == "mask-broadcast"
    assert finding.place is not None
    assert wrong in finding.place.source


# A layer around PyTorch's module, which takes a mask for each head of each sequence.
AROUND_TORCH = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, clip, valid):
        \"\"\"valid: (batch, frames), 1 at real frames.\"\"\"
        blocked = valid.eq(0).unsqueeze(1).expand(-1, clip.size(1), -1)
        blocked = blocked.repeat_interleave(self.heads, dim=0)
        mixed, _ = self.inner(clip, clip, clip, attn_mask=blocked, need_weights=False)
        return clip + mixed
"""
INTERLEAVED = "blocked.repeat_interleave(self.heads, dim=0)"

# Weights that are masked once more after the softmax, so that padded queries give zeros.
MASKED_TWICE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, key_mask=None):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dots = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if key_mask is not None:
            pairs = key_mask.bool()[:, None, :, None] & key_mask.bool()[:, None, None, :]
            dots = dots.masked_fill(~pairs, -1e30)
        attn = torch.softmax(dots, dim=-1)
        if key_mask is not None:
            attn = torch.where(pairs, attn, 0.0)
        return (attn @ v).transpose(1, 2).reshape(b, n, d)
"""
BEFORE = "            dots = dots.masked_fill(~pairs, -1e30)\n"
AFTER = "attn = torch.where(pairs, attn, 0.0)"


@pytest.mark.parametrize(
    ("name", "source", "old", "new", "line"),
    [
        ("mask-broadcast", AROUND_TORCH, INTERLEAVED, "blocked.repeat(self.heads, 1, 1)", "repeat"),
        ("mask-broadcast", AROUND_TORCH, INTERLEAVED, "torch.cat([blocked] * self.heads)", "cat("),
        ("mask-unused", MASKED_TWICE, AFTER, "torch.where(pairs, attn, 0.0)", "torch.where"),
        ("mask-unused", MASKED_TWICE, AFTER, "attn.masked_fill(~pairs, 0.0)", "attn.masked_fill"),
        ("mask-after-softmax", MASKED_TWICE, BEFORE, "", "attn = torch.where"),
        (
            "mask-after-softmax",
            MASKED_TWICE.replace(AFTER, "attn[~pairs.expand_as(attn)] = -1e30"),
            BEFORE,
            "",
            "-1e30",
        ),
        (
            "mask-after-softmax",
            MASKED_TWICE.replace(AFTER, "attn = attn + (1 - pairs.float()) * -1e9"),
            BEFORE,
            "",
            "attn = attn +",
        ),
    ],
)
def test_masks_of_other_styles_are_named_on_their_line(tmp_path, name, source, old, new, line):
    assert source.count(old) == 1
    with written(tmp_path, source.replace(old, new)) as target:
        (bug,) = check(target(24, 4)).bugs
    assert bug.name == name
    assert bug.place is not None
    assert line in bug.place.source


@pytest.mark.parametrize("source", [AROUND_TORCH, MASKED_TWICE])
def test_masks_of_other_styles_are_no_bug(tmp_path, source):
    with written(tmp_path, source) as target:
        assert check(target(24, 4)).bugs == ()


COUNTED = '''
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        # WORDS
        self.table = nn.Parameter(torch.randn(64, width))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, attention_mask=None, positions=None):
        """attention_mask: (B, T), 1 at real tokens."""
        B, T, C = x.shape
        if positions is None:
            positions = torch.arange(T).expand(B, T)
        x = x + self.table[positions]
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = torch.ones(T, T, dtype=torch.bool).tril()
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None, None]
        scores = (q @ k.mT / (C // self.heads) ** 0.5).masked_fill(~seen, -1e30)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
'''


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("Batches are padded on the left, so that all sequences end together.", True),
        ("The tokenizer has left-padding.", True),
        ("What is left is the usual padding.", False),
        ("Those who pad give positions, too.", False),
    ],
)
def test_default_positions_are_counted_from_the_padding_on(tmp_path, words, names):
    with written(tmp_path, COUNTED.replace("WORDS", words)) as target:
        report = check(target(24, 4))
    assert [bug.name for bug in report.bugs] == ["left-padding-positions"] * names
    assert all("torch.arange(T)" in bug.place.source for bug in report.bugs)
    assert names or any(fact.name == "left padding" for fact in report.facts)


STACK = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, pad_mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None], -1e30)
        return x + self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(2))
        self.last = Layer(width, heads)

    def forward(self, x, pad_mask=None):
        for layer in self.layers:
            x = layer(x, pad_mask)
        return self.last(x)
"""


def test_the_only_call_that_does_not_pass_the_mask_on_is_named(tmp_path):
    with written(tmp_path, STACK) as target:
        (bug,) = check(target(24, 4)).bugs
    assert bug.name == "padding-leak"
    assert "self.last(x)" in bug.place.source
