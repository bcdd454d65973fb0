"""A correct attention in a file, edits of its lines, and what the probes of a call find in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from heedful.conformance.calling.loading import loaded
from heedful.conformance.checking import evidence_of, run_probe
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.probes import PROBES
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.root_causes import root_causes

# The findings whose probes are run; masks, caches, padding and rotary positions are tested elsewhere.
FINDINGS: tuple[str, ...] = (
    *("dropout-in-eval", "dropout-misplaced", "stale-state", "undefined-or-global-name"),
    *("mask-not-a-buffer", "gradient-wrong", "gradient-not-deterministic", "stride-dependent"),
    *("projection-unused", "length-dependent", "crashes", "output-not-finite"),
)

CORRECT = """
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

SIZES = (24, 4, 70, 0.25)  # of all attentions here: d_model, num_heads, context_length, dropout

CLASS = "class Attention(nn.Module):\n"
MASK_BUFFER = (
    '        self.register_buffer("mask", '
    "torch.ones(context_length, context_length, dtype=torch.bool).triu(1))\n"
)
SPLIT_VALUE = "        value = self.split(self.W_value(x))\n"
APPLY_MASK = '        scores = scores.masked_fill(self.mask[:T, :T], float("-inf"))\n'
SOFTMAX = "        weights = torch.softmax(scores, dim=-1)\n"
DROPOUT = "        weights = self.dropout(weights)\n"
CONTEXT = "        context = weights @ value\n"
# Dropout written by hand; in braces, the division by what is kept.
MANUAL_DROPOUT = "        if self.training:\n            weights = weights * (torch.rand(weights.shape) > self.p){}\n"

# What edits may use beside the class.
HELPERS = """
SEEN = {}
SLOPES = torch.ones(4, 1, 1)
attn_scores = torch.randn(2, 4, 9, 9)
values = torch.randn(7, 6, dtype=torch.float64)

class WrongSoftmax(torch.autograd.Function):
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

class CorrectSoftmax(torch.autograd.Function):
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


@contextmanager
def edited(
    folder: Path, old: str = "", new: str = "", source: str = CORRECT
) -> Iterator[type[nn.Module]]:
    """Write a source, with one passage replaced, into a file, so that its lines are known, and import its class."""
    assert not old or source.count(old) == 1
    file = folder / "attention.py"
    file.write_text(source.replace(old, new).replace(CLASS, HELPERS + CLASS))
    with loaded(f"{file}:Attention") as target:
        yield target


def results_of(target: object) -> list[Finding | Fact]:
    """Return the findings of the probes, consequences of others left out, and the facts."""
    torch.manual_seed(0)
    evidence = evidence_of(target, example=None, expected=Expected(), cache=None, arguments={})
    runs = [run_probe(evidence, probe) for probe in PROBES if probe.finds[0] in FINDINGS]
    findings = root_causes(finding for run in runs for finding in run.findings)
    return [*findings, *(fact for run in runs for fact in run.facts)]


def findings_of(target: object) -> list[Finding]:
    return [result for result in results_of(target) if isinstance(result, Finding)]


def assert_bug(
    folder: Path, name: str, old: str, new: str, line: str | None, source: str = CORRECT
) -> None:
    """Assert that an edit is found as one bug, on the line that holds a text; None: on any line."""
    with edited(folder, old, new, source) as attention:
        (finding,) = findings_of(attention(*SIZES))
    assert (finding.name, finding.level) == (name, "bug")
    if line is not None:
        assert finding.place is not None
        assert line in finding.place.source


def assert_no_finding(folder: Path, old: str = "", new: str = "", source: str = CORRECT) -> None:
    """Assert that nothing is found in an edited attention, which is still correct."""
    with edited(folder, old, new, source) as attention:
        assert findings_of(attention(*SIZES)) == []
