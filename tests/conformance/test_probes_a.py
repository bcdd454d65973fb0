"""Probes of dropout, state, gradients, strides, lengths and projections, each on a right module and on wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.conformance.calling.loading import loaded
from heedful.conformance.check import check, evidence_of, run_probe
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.probes import (
    PROBES,
    crashes,
    dropout,
    gradients,
    lengths,
    projections,
    state,
    strides,
)
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.root_causes import root_causes
from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.textbook import causal, multi_head, self_attention

OWN = {it.__name__ for it in (crashes, dropout, gradients, lengths, projections, state, strides)}

RIGHT = """
import torch
import torch.nn.functional as F
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model, num_heads, context_length, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.p = dropout
        self.W_query = nn.Linear(d_model, d_model)
        self.W_key = nn.Linear(d_model, d_model)
        self.W_value = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(context_length, context_length, dtype=torch.bool).triu(1))

    def split(self, x):
        B, T, C = x.shape
        return x.reshape(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)

    def forward(self, x):
        B, T, C = x.shape
        query = self.split(self.W_query(x))
        key = self.split(self.W_key(x))
        value = self.split(self.W_value(x))
        scores = query @ key.transpose(-2, -1)
        scores = scores / key.shape[-1] ** 0.5
        scores = scores.masked_fill(self.mask[:T, :T], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = self.dropout(weights)
        context = weights @ value
        context = context.transpose(1, 2).reshape(B, T, C)
        return self.out_proj(context)
"""

SOFTMAX = "        weights = torch.softmax(scores, dim=-1)\n"
DROP = "        weights = self.dropout(weights)\n"
MASK = '        scores = scores.masked_fill(self.mask[:T, :T], float("-inf"))\n'
VALUE = "        value = self.split(self.W_value(x))\n"
CONTEXT = "        context = weights @ value\n"
BUFFER = '        self.register_buffer("mask", torch.ones(context_length, context_length, dtype=torch.bool).triu(1))\n'
MANUAL = "        if self.training:\n            weights = weights * (torch.rand(weights.shape) > self.p){}\n"
CLASS = "class Attention(nn.Module):\n"

# name, what of RIGHT is replaced, by what, and what is on the line that is to be named
WRONG = [
    (
        "dropout-in-eval",
        DROP,
        "        weights = F.dropout(weights, self.p)\n",
        "F.dropout(weights",
    ),
    (
        "dropout-in-eval",
        DROP,
        "        weights = weights * (torch.rand_like(weights) > self.p) / (1 - self.p)\n",
        "rand_like",
    ),
    (
        "dropout-in-eval",
        SOFTMAX + DROP + CONTEXT,
        "        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=self.p)\n",
        "dropout_p=self.p",
    ),
    (
        "dropout-in-eval",
        SOFTMAX + DROP + CONTEXT,
        "        p = self.p\n"
        "        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=p)\n",
        "p = self.p",
    ),
    (
        "dropout-misplaced",
        SOFTMAX + DROP,
        "        scores = self.dropout(scores)\n" + SOFTMAX,
        "scores = self.dropout",
    ),
    (
        "dropout-misplaced",
        DROP + CONTEXT,
        CONTEXT + "        context = self.dropout(context)\n",
        "context = self.dropout",
    ),
    ("dropout-rescale", DROP, MANUAL.format(""), "torch.rand(weights.shape)"),
    ("dropout-rescale", DROP, MANUAL.format(" / self.p"), "/ self.p"),
    (
        "dropout-rescale",
        DROP,
        DROP + "        weights = weights / (1 - self.p)\n",
        "/ (1 - self.p)",
    ),
    (
        "stale-state",
        MASK,
        "        if not hasattr(self, 'hidden'):\n            self.hidden = scores > scores.mean()\n"
        + "        scores = scores + self.hidden\n"
        + MASK,
        "self.hidden = scores",
    ),
    (
        "stale-state",
        MASK,
        MASK + "        self.mask.logical_or_(self.mask.roll(1, 0).triu())\n",
        "self.mask.logical_or_",
    ),
    (
        "stale-state",
        MASK,
        "        hidden = self.__dict__.setdefault('hidden', scores > scores.mean())\n"
        "        scores = scores + (hidden if hidden.shape == scores.shape else 0)\n" + MASK,
        "setdefault",
    ),
    (
        "stale-state",
        SOFTMAX,
        SOFTMAX + "        if getattr(self, 'last', weights).shape == weights.shape:\n"
        "            weights = 0.5 * weights + 0.5 * getattr(self, 'last', weights)\n"
        "        self.last = weights.detach()\n",
        "self.last = weights",
    ),
    (
        "stale-state",
        MASK,
        "        if T not in SEEN:\n            SEEN.clear()\n            SEEN[T] = scores.detach()[0]\n"
        "        scores = 0.5 * scores + 0.5 * SEEN[T]\n" + MASK,
        "SEEN[T]",
    ),
    ("undefined-or-global-name", CONTEXT, CONTEXT.replace("value", "values"), "weights @ values"),
    (
        "mask-not-a-buffer",
        BUFFER,
        BUFFER.replace('register_buffer("mask", ', "mask = ("),
        "self.mask = ",
    ),
    (
        "mask-not-a-buffer",
        BUFFER,
        "        self.mask = torch.ones(context_length, context_length).triu(1) > 0\n",
        "self.mask = ",
    ),
    (
        "projection-unused",
        VALUE,
        VALUE.replace("W_value", "W_key"),
        "value = self.split(self.W_key",
    ),
    ("projection-unused", CONTEXT, CONTEXT.replace("value", "key"), "weights @ key"),
    ("projection-unused", "self.out_proj(context)", "context", "return context"),
    ("gradient-wrong", SOFTMAX, SOFTMAX.replace("scores,", "scores.detach(),"), "scores.detach()"),
    ("gradient-wrong", VALUE, VALUE.replace("W_value(x)", "W_value(x).data"), "W_value(x).data"),
    ("gradient-wrong", VALUE, "        with torch.no_grad():\n    " + VALUE, "self.W_value(x)"),
    (
        "gradient-wrong",
        SOFTMAX,
        "        weights = Softmax.apply(scores)\n",
        "return weights * gradient",
    ),
    (
        "gradient-not-deterministic",
        SOFTMAX,
        "        weights = Noisy.apply(torch.softmax(scores, -1), 0.1)\n",
        "rand_like",
    ),
    (
        "stride-dependent",
        "        query = self.split(self.W_query(x))\n",
        "        x = torch.as_strided(x, (B, T, C), (T * C, C, 1))\n        query = self.split(self.W_query(x))\n",
        "as_strided",
    ),
    (
        "stride-dependent",
        "        B, T, C = x.shape\n        query",
        "        B, T, C = x.shape\n        x = x.view(B * T, C).view(B, T, C)\n        query",
        "x.view(B * T",
    ),
    (
        "length-dependent",
        CONTEXT,
        "        context = weights[..., :32] @ value[:, :, :32]\n",
        "weights[..., :32]",
    ),
    (
        "length-dependent",
        VALUE,
        VALUE + "        value = torch.cat([value[:, :, :32], value[:, :, 32:].flip(-1)], dim=2)\n",
        "weights @ value",
    ),
    (
        "length-dependent",
        CONTEXT,
        CONTEXT + "        T = 8 if T == 16 else T\n        context = context[:, :, :T]\n",
        None,
    ),
    (
        "length-dependent",
        SOFTMAX,
        "        if T > 32:\n            scores = scores * 1.5\n" + SOFTMAX,
        "scores * 1.5",
    ),
    ("length-dependent", MASK, "        if T <= 16:\n    " + MASK, "masked_fill"),
    (
        "length-dependent",
        SOFTMAX,
        SOFTMAX + "        if T == 31:\n            raise IndexError(T)\n",
        "raise IndexError",
    ),
    (
        "length-dependent",
        CONTEXT,
        CONTEXT + "        context = context.squeeze(0) if B == 1 else context\n",
        "context.squeeze",
    ),
    (
        "crashes",
        DROP,
        "        weights = self.dropout(weights)\n        if self.training:\n            weights = weights.half_of\n",
        "half_of",
    ),
]

HELP = """
SEEN = {}
SLOPES = torch.ones(4, 1, 1)
attn_scores = torch.randn(2, 4, 9, 9)
values = torch.randn(7, 6, dtype=torch.float64)

class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        weights = torch.softmax(scores, dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient):
        weights, = ctx.saved_tensors
        return weights * gradient

class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, size):
        ctx.size = size
        return weights.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + ctx.size * torch.rand_like(gradient), None

class Right(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, dim):
        weights = torch.softmax(scores, dim)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx, gradient):
        weights, = ctx.saved_tensors
        return weights * (gradient - (gradient * weights).sum(-1, keepdim=True)), None

"""


def found(target: object) -> list[Finding | Fact]:
    """What the probes of this file's subject find, consequences apart."""
    torch.manual_seed(0)
    evidence = evidence_of(target, example=None, expected=Expected(), cache=None, arguments={})
    runs = [run_probe(evidence, it) for it in PROBES if it.ask.__module__ in OWN]
    findings = root_causes(it for run in runs for it in run.findings)
    return [*findings, *(it for run in runs for it in run.facts)]


def findings(target: object) -> list[Finding]:
    return [it for it in found(target) if isinstance(it, Finding)]


@contextmanager
def written(tmp_path: Path, source: str) -> Iterator[type[nn.Module]]:
    """The attention of a source that lies in a file, so that lines can be told."""
    file = tmp_path / "attention.py"
    file.write_text(source.replace(CLASS, HELP + CLASS))
    with loaded(f"{file}:Attention") as target:
        yield target


@pytest.mark.parametrize(("name", "old", "new", "line"), WRONG)
def test_a_wrong_line_is_named(tmp_path, name, old, new, line):
    assert RIGHT.count(old) == 1
    with written(tmp_path, RIGHT.replace(old, new)) as target:
        (finding,) = findings(target(24, 4, 70, 0.25))
    assert (finding.name, finding.level) == (name, "bug")
    if line is not None:
        assert finding.place is not None
        assert line in finding.place.source


def test_gradients_are_compared_where_only_float32_runs(tmp_path):
    cut = SOFTMAX.replace("scores,", "scores.detach().float(),")
    with written(tmp_path, RIGHT.replace(SOFTMAX, cut)) as target:
        (finding,) = findings(target(24, 4, 70, 0.25))
    assert finding.name == "gradient-wrong"
    assert finding.case.startswith("float32")


PACKED = RIGHT.replace(
    RIGHT[RIGHT.index("        query = ") : RIGHT.index("        scores = ")],
    "        query, key, value = (self.split(it) for it in self.packed(x).chunk(3, -1))\n",
).replace(BUFFER, BUFFER + "        self.packed = nn.Linear(d_model, 3 * d_model)\n")
for own in ("query", "key", "value"):
    PACKED = PACKED.replace(f"        self.W_{own} = nn.Linear(d_model, d_model)\n", "")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (CONTEXT, CONTEXT.replace("value", "key"), "weights @ key"),
        ("= query @ key", "= key @ key", "key @ key"),
    ],
)
def test_a_piece_of_a_packed_projection_that_comes_to_nothing(tmp_path, old, new, line):
    with written(tmp_path, PACKED) as target:
        assert findings(target(24, 4, 70, 0.25)) == []
    (tmp_path / "wrong").mkdir()
    with written(tmp_path / "wrong", PACKED.replace(old, new)) as target:
        (finding,) = findings(target(24, 4, 70, 0.25))
    assert finding.name == "projection-unused"
    assert finding.place is not None
    assert line in finding.place.source


class Encoder(nn.Module):
    """Takes padding, True at what is hidden."""

    def __init__(self, keeps: bool):
        super().__init__()
        self.keeps, self.hidden = keeps, None
        self.projections = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x, key_padding_mask=None):
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        if self.hidden is None or not self.keeps or self.hidden.shape != key_padding_mask.shape:
            self.hidden = key_padding_mask
        query, key, value = (it(x) for it in self.projections)
        scores = query @ key.mT / 24**0.5
        weights = scores.masked_fill(self.hidden[:, None, :], -torch.inf).softmax(-1)
        return weights @ value


def test_padding_that_a_module_keeps_from_an_earlier_call():
    assert findings(Encoder(keeps=False)) == []
    (finding,) = findings(Encoder(keeps=True))
    assert finding.name == "stale-state"
    assert finding.place is not None
    assert finding.place.source == "self.hidden = key_padding_mask"


def test_gradients_that_differ_by_rounding_alone_are_suspicious(tmp_path):
    noisy = "        weights = Noisy.apply(torch.softmax(scores, -1), 1e-9)\n"
    with written(tmp_path, RIGHT.replace(SOFTMAX, noisy)) as target:
        (finding,) = findings(target(24, 4, 70, 0.25))
    assert (finding.name, finding.level) == ("gradient-not-deterministic", "suspicious")


def test_a_global_of_another_size_is_named_though_what_it_does_not_fit_raises(tmp_path):
    stale = SOFTMAX.replace("(scores", "(attn_scores")
    with written(tmp_path, RIGHT.replace(SOFTMAX, stale)) as target:
        (bug,) = check(target, causal=True).bugs
    assert bug.name == "undefined-or-global-name"
    assert bug.place is not None
    assert "softmax(attn_scores" in bug.place.source


def test_a_name_that_nothing_defines_is_named(tmp_path):
    with written(tmp_path, RIGHT.replace("weights @ value", "weight @ value")) as target:
        (bug,) = check(target, causal=True).bugs
    assert bug.name == "undefined-or-global-name"
    assert bug.place is not None
    assert "weight @ value" in bug.place.source


RIGHT_VARIANTS = {
    "as it is": (SOFTMAX, SOFTMAX),
    "dropout by hand": (DROP, MANUAL.format(" / (1 - self.p)")),
    "dropout on the tokens, and by hand": (
        RIGHT[RIGHT.index("        query = ") :],
        "        x = self.dropout(x)\n"
        + RIGHT[RIGHT.index("        query = ") :]
        .replace(DROP, MANUAL.format(" / (1 - self.p)"))
        .replace(
            "T, C)\n        return",
            "T, C)\n        context = self.dropout(context)\n        return",
        ),
    ),
    "dropout on the output": (
        "return self.out_proj(context)",
        "return self.dropout(self.out_proj(context))",
    ),
    "dropout on the output alone": (DROP + CONTEXT, CONTEXT + "        self.last = self.dropout\n"),
    "the largest score taken off": (
        SOFTMAX,
        "        scores = scores - scores.amax(-1, keepdim=True).detach()\n" + SOFTMAX,
    ),
    "a mask kept for as many tokens": (
        MASK,
        "        if getattr(self, 'size', 0) != T:\n            self.size, self.hidden = T, self.mask[:T, :T]\n"
        + MASK.replace("self.mask[:T, :T]", "self.hidden"),
    ),
    "the last weights kept": (DROP, DROP + "        self.last_weights = weights.detach()\n"),
    "a table of the file": (CONTEXT, "        scores = scores * SLOPES\n" + CONTEXT),
    "a softmax with its own gradient": (
        SOFTMAX,
        SOFTMAX.replace("torch.softmax", "Right.apply").replace("dim=-1", "-1"),
    ),
    "a part that is not called": (
        BUFFER,
        BUFFER + "        self.cross = nn.MultiheadAttention(d_model, num_heads)\n",
    ),
    "a query for another call": (
        BUFFER,
        BUFFER + "        self.cross_query = nn.Linear(d_model, d_model)\n",
    ),
    "too long is refused": (
        CONTEXT,
        CONTEXT + "        if T > 50:\n            raise ValueError(T)\n",
    ),
}


@pytest.mark.parametrize("variant", RIGHT_VARIANTS)
def test_a_right_attention_raises_no_alarm(tmp_path, variant):
    old, new = RIGHT_VARIANTS[variant]
    assert RIGHT.count(old) == 1
    with written(tmp_path, RIGHT.replace(old, new)) as target:
        assert findings(target(24, 4, 70, 0.25)) == []


@pytest.mark.parametrize(
    "target",
    [
        nn.MultiheadAttention(24, 4, dropout=0.2),
        nn.MultiheadAttention(24, 4, dropout=0.2, batch_first=True),
        nn.TransformerEncoderLayer(24, 4, 32),
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, norm_first=True),
        self_attention.SelfAttentionV2,
        causal.CausalAttention,
        multi_head.MultiHeadAttention,
        multi_head.MultiHeadAttentionWrapper,
        MultiHeadAttention(24, 4, dropout=0.2),
        MultiHeadAttention(24, 4, num_kv_heads=2, rotary=RotaryEmbedding(6), window=5),
        MultiHeadAttention(24, 4, causal=False),
        F.scaled_dot_product_attention,
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)
def test_known_attentions_raise_no_alarm(target):
    assert findings(target) == []


def test_a_row_without_a_gradient_by_design_is_no_bug():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(5, 24, padding_idx=0)
            self.attention = causal.CausalAttention(24, 24, context_length=16)

        def forward(self, tokens):
            return self.attention(self.embedding(tokens))

    assert findings(Reader()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (SOFTMAX, SOFTMAX, "on the weights, p = 0.25"),
        (
            "return self.out_proj(context)",
            "return self.dropout(self.out_proj(context))",
            "on the weights, p = 0.25; on the output, p = 0.25",
        ),
        (DROP, "", "none"),
    ],
)
def test_where_dropout_acts_is_said(tmp_path, old, new, said):
    with written(tmp_path, RIGHT.replace(old, new)) as target:
        assert Fact("dropout", said) in found(target(24, 4, 70, 0.25))


def test_the_largest_context_is_found_where_nothing_says_it(tmp_path):
    short = RIGHT.replace(
        CONTEXT, CONTEXT + "        context = context + torch.zeros(41)[:T].view(T, 1)\n"
    )
    with written(tmp_path, short) as target:
        assert Fact("largest context", "41 tokens") in found(target(24, 4, 70, 0.25))


def test_the_random_state_of_a_check_is_not_that_of_its_caller(tmp_path):
    with written(tmp_path, RIGHT.replace(DROP, MANUAL.format(""))) as target:
        module = target(24, 4, 70, 0.25)
        state, weights = torch.get_rng_state(), [it.clone() for it in module.parameters()]
        assert check(module, causal=True).bugs
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(weights, module.parameters(), strict=True))
