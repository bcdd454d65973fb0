"""Attentions with caches, padding and rotary positions, and what the probes of these find in them."""

from __future__ import annotations

import tempfile
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

PROBE_FILES = (
    *("caches", "padded_cache", "unused_slots"),
    *("padding", "padding_argument", "padding_fill", "masked_rows"),
    *("rotary", "rotary_precision"),
)
MODULES = {f"heedful.conformance.probes.{file}" for file in PROBE_FILES}

# Queries and keys are rotated by halves, positions are counted over real tokens, and the cache grows.
GROWING = """
import torch
from torch import nn

def rotate(x, positions):
    D = x.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = positions[:, None, :, None].double() * frequencies
    cos = torch.cat([angles.cos(), angles.cos()], dim=-1).to(x.dtype)
    sin = torch.cat([angles.sin(), angles.sin()], dim=-1).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    partner = torch.cat([-second, first], dim=-1)
    return x * cos + partner * sin

class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, attention_mask=None, past_kv=None):
        B, T, C = x.shape
        query, key, value = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        past = 0 if past_kv is None else past_kv[0].shape[2]
        total = past + T
        if attention_mask is None:
            attention_mask = torch.ones(B, total, dtype=torch.long)
        positions = (attention_mask.cumsum(-1) - 1).clamp_min(0)[:, past:]
        query = rotate(query, positions)
        key = rotate(key, positions)
        if past_kv is not None:
            key = torch.cat([past_kv[0], key], dim=2)
            value = torch.cat([past_kv[1], value], dim=2)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        visible = torch.ones(T, total, dtype=torch.bool).tril(past)
        kept = attention_mask.bool()[:, None, None, :]
        visible = visible & kept
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        context = (weights @ value).transpose(1, 2).flatten(2)
        return self.out_proj(context), (key, value)
"""

# A cache of a fixed size in the module. All slots are read, and empty ones are hidden.
FIXED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        for name in ("key_cache", "value_cache"):
            self.register_buffer(name, torch.zeros(4, num_heads, 16, d_model // num_heads), persistent=False)

    def forward(self, x, start_pos=0):
        B, T, C = x.shape
        query, key, value = self.qkv(x).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        slots = torch.arange(start_pos, start_pos + T)
        with torch.no_grad():
            self.key_cache[:B, :, slots] = key
            self.value_cache[:B, :, slots] = value
        keys = self.key_cache[:B]
        values = self.value_cache[:B]
        visible = torch.arange(16) <= slots[:, None]
        scores = query @ keys.mT / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~visible, float("-inf"))
        context = scores.softmax(dim=-1) @ values
        return context.transpose(1, 2).flatten(2)
"""

ROTATE_KEY = "        key = rotate(key, positions)\n"
POSITIONS = "positions = (attention_mask.cumsum(-1) - 1).clamp_min(0)[:, past:]"
ANGLES = "    angles = positions[:, None, :, None].double() * frequencies\n"
PARTNER = "    partner = torch.cat([-second, first], dim=-1)\n"
STACKED = "    partner = torch.stack([-second, first], dim=-1).flatten(-2)\n"
SHIFTED = f"{POSITIONS} + attention_mask.argmax(-1, keepdim=True) ** 2 * torch.arange(T)"
RESTARTED = f"{POSITIONS} if past == 0 else torch.arange(past, total).expand(B, T)"
VISIBLE = "visible = torch.ones(T, total, dtype=torch.bool).tril(past)"
UNSEEN = f"{VISIBLE} if past == 0 else torch.ones(T, total, dtype=torch.bool)"
KEPT = "attention_mask.bool()[:, None, None, :]"
SINES = "torch.cat([angles.sin(), angles.sin()], dim=-1)"
FILL = "torch.finfo(scores.dtype).min"


def findings_and_facts(target: object) -> list[Finding | Fact]:
    """Return what the probes of caches, padding and rotary positions find, without mere consequences."""
    torch.manual_seed(0)
    evidence = evidence_of(target, example=None, expected=Expected(), cache=None, arguments={})
    runs = [run_probe(evidence, probe) for probe in PROBES if probe.ask.__module__ in MODULES]
    findings = root_causes(finding for run in runs for finding in run.findings)
    return [*findings, *(fact for run in runs for fact in run.facts)]


def findings(target: object) -> list[Finding]:
    """Return the findings that report a fault."""
    results = findings_and_facts(target)
    return [it for it in results if isinstance(it, Finding) and it.level != "convention"]


@contextmanager
def written(tmp_path: Path, source: str) -> Iterator[type[nn.Module]]:
    """Write a source into a file, so that its lines can be named, and load its attention.

    Each source gets a folder of its own: Python takes a file of the same name, size and second for the one that it has
    compiled before.
    """
    file = Path(tempfile.mkdtemp(dir=tmp_path)) / "attention.py"
    file.write_text(source)
    with loaded(f"{file}:Attention") as target:
        yield target


def assert_names_the_line(
    tmp_path: Path, name: str, source: str, old: str, new: str, line: str | None
) -> None:
    """Assert that an edit of a correct source gives one bug of that name, on that line."""
    assert source.count(old) == 1
    with written(tmp_path, source.replace(old, new)) as target:
        (finding,) = findings(target(24, 4))
    assert (finding.name, finding.level) == (name, "bug")
    if line is not None:
        assert finding.place is not None
        assert line in finding.place.source


def assert_no_finding(tmp_path: Path, source: str, old: str, new: str) -> None:
    """Assert that an edit of a correct source that keeps it correct gives no finding."""
    with written(tmp_path, source.replace(old, new) if old else source) as target:
        assert findings(target(32, 4)) == []
