"""Probes of caches, rotary positions and padding, each on right modules and on wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from heedful.conformance.calling.loading import loaded
from heedful.conformance.check import evidence_of, run_probe
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.probes import PROBES, caches, padding, rotary
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.root_causes import root_causes
from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.textbook import causal, multi_head, self_attention

INTERLEAVED = RotaryEmbedding(6, layout="interleaved")
OWN = {it.__name__ for it in (caches, padding, rotary)}

# Queries and keys turned by halves, positions counted over real tokens, a cache that grows.
GROWING = """
import torch
from torch import nn

def turn(x, positions):
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
        query = turn(query, positions)
        key = turn(key, positions)
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

# A cache of a fixed size in the module, all slots of which are read and hidden where they are empty.
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

TURN_KEY = "        key = turn(key, positions)\n"
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

# name, source, what of it is replaced, by what, and what is on the line that is to be named
WRONG = [
    (
        "cache-mismatch",
        GROWING,
        "[past_kv[1], value]",
        "[value, past_kv[1]]",
        "[value, past_kv[1]]",
    ),
    ("cache-mismatch", GROWING, "[past_kv[0], key]", "[past_kv[1], key]", "[past_kv[1], key]"),
    ("cache-mismatch", GROWING, ", (key, value)", ", (key, value[:, :, -T:])", None),
    (
        "cache-garbage-read",
        FIXED,
        "self.key_cache[:B, :, slots] = key",
        "self.key_cache[:B, :, :T] = key",
        "[:B, :, :T] = key",
    ),
    ("causal-alignment", GROWING, "tril(past)", "tril()", "tril()"),
    ("causal-alignment", GROWING, VISIBLE, UNSEEN, None),
    (
        "causal-alignment",
        GROWING,
        VISIBLE,
        "visible = torch.ones(T, T, dtype=torch.bool).tril()",
        "& kept",
    ),
    (
        "causal-alignment",
        FIXED,
        "<= slots[:, None]",
        "<= torch.arange(T)[:, None]",
        "torch.arange(T)",
    ),
    (
        "cache-garbage-read",
        FIXED,
        "<= slots[:, None]",
        "<= slots[:, None] + (T == 1)",
        "+ (T == 1)",
    ),
    (
        "cache-garbage-read",
        FIXED,
        "self.key_cache[:B, :, slots] = key",
        "self.key_cache[:B, :, slots + 1] = key",
        "slots + 1",
    ),
    ("rotary-offset", GROWING, POSITIONS, POSITIONS.replace("past:", ":T"), "[:, :T]"),
    ("rotary-offset", GROWING, POSITIONS, POSITIONS + " + (past > 0)", "+ (past > 0)"),
    (
        "rotary-offset",
        GROWING,
        TURN_KEY,
        TURN_KEY.replace("positions", "positions - past"),
        "positions - past",
    ),
    ("rotary-offset", GROWING, TURN_KEY, TURN_KEY.replace("positions", "positions + 1"), None),
    ("rotary-mismatch", GROWING, TURN_KEY, "", "turn(query, positions)"),
    ("rotary-mismatch", GROWING, PARTNER, PARTNER.replace("-second", "second"), "[second, first]"),
    ("rotary-mismatch", GROWING, PARTNER, STACKED, "torch.stack"),
    ("rotary-mismatch", GROWING, SINES, "angles.sin().repeat_interleave(2, -1)", "angles.sin()"),
    (
        "rotary-precision",
        GROWING,
        ANGLES,
        ANGLES.replace(".double() * frequencies", ".to(x.dtype) * frequencies.to(x.dtype)"),
        "to(x.dtype) *",
    ),
    (
        "rotary-precision",
        GROWING,
        ANGLES,
        ANGLES.replace("frequencies", "frequencies\n    angles = angles.to(x.dtype)"),
        "angles.to(x.dtype)",
    ),
    ("length-dependent", GROWING, POSITIONS, POSITIONS.replace("_min(0)", "(0, 31)"), "(0, 31)"),
    ("length-dependent", GROWING, POSITIONS, f"{POSITIONS} % 16", "% 16"),
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
    ("mask-fill-too-small", GROWING, FILL, "-1e3", "-1e3"),
    ("left-padding-positions", GROWING, POSITIONS, SHIFTED, "argmax"),
    ("left-padding-positions", GROWING, POSITIONS, RESTARTED, None),
    ("nan-on-masked-rows", GROWING, FILL, 'float("-inf")', "-inf"),
]


def found(target: object) -> list[Finding | Fact]:
    """What the probes of this file's subject find, consequences apart."""
    torch.manual_seed(0)
    evidence = evidence_of(target, example=None, expected=Expected(), cache=None, arguments={})
    runs = [run_probe(evidence, it) for it in PROBES if it.ask.__module__ in OWN]
    findings = root_causes(it for run in runs for it in run.findings)
    return [*findings, *(it for run in runs for it in run.facts)]


def findings(target: object) -> list[Finding]:
    """Those that say that something is wrong."""
    return [it for it in found(target) if isinstance(it, Finding) and it.level != "convention"]


@contextmanager
def written(tmp_path: Path, source: str) -> Iterator[type[nn.Module]]:
    """The attention of a source that lies in a file, so that lines can be told."""
    file = tmp_path / "attention.py"
    file.write_text(source)
    with loaded(f"{file}:Attention") as target:
        yield target


@pytest.mark.parametrize(("name", "source", "old", "new", "line"), WRONG)
def test_a_wrong_line_is_named(tmp_path, name, source, old, new, line):
    assert source.count(old) == 1
    with written(tmp_path, source.replace(old, new)) as target:
        (finding,) = findings(target(24, 4))
    assert (finding.name, finding.level) == (name, "bug")
    if line is not None:
        assert finding.place is not None
        assert line in finding.place.source


RIGHT_VARIANTS = {
    "as it is": (GROWING, "", ""),
    "a cache of a fixed size": (FIXED, "", ""),
    "neighbours are pairs": (
        GROWING.replace("x.chunk(2, dim=-1)", "x[..., ::2], x[..., 1::2]")
        .replace("cat([-second, first], dim=-1)", "stack([-second, first], dim=-1).flatten(-2)")
        .replace(
            "torch.cat([angles.cos(), angles.cos()], dim=-1)",
            "angles.cos().repeat_interleave(2, -1)",
        ),
        SINES,
        "angles.sin().repeat_interleave(2, -1)",
    ),
    "turned the other way round": (GROWING, "[-second, first]", "[second, -first]"),
    "half of the features turned": (
        GROWING.replace("    D = x", "    x, rest = x.chunk(2, dim=-1)\n    D = x"),
        "return x * cos + partner * sin",
        "return torch.cat([x * cos + partner * sin, rest], dim=-1)",
    ),
    "a window, of keys that are all kept": (GROWING, "tril(past)", "tril(past).triu(past - 3)"),
    "padded queries see themselves": (
        GROWING,
        "visible & kept",
        "visible & kept | torch.eye(total, dtype=torch.bool)[past:]",
    ),
    "no mask where nothing is seen": (
        GROWING.replace(FILL, 'float("-inf")'),
        "weights = scores",
        "weights = scores.masked_fill(~visible.any(-1, keepdim=True), 0.0)",
    ),
    "one token at a time": (
        GROWING,
        "total = past + T\n",
        "total = past + T\n        if past and T > 1:\n            raise ValueError('one at a time')\n",
    ),
}


@pytest.mark.parametrize("variant", RIGHT_VARIANTS)
def test_what_is_right_is_left_alone(tmp_path, variant):
    source, old, new = RIGHT_VARIANTS[variant]
    with written(tmp_path, source.replace(old, new) if old else source) as target:
        assert findings(target(32, 4)) == []


def transformers_attention(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install 'heedful[transformers]'")
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "attn_implementation": "eager"}
    if name == "bert":
        from transformers.models.bert.modeling_bert import BertSelfAttention

        return BertSelfAttention(transformers.BertConfig(**sizes))
    from transformers.models.llama.modeling_llama import LlamaAttention

    return LlamaAttention(transformers.LlamaConfig(**sizes, num_key_value_heads=2), 0)


KNOWN = {
    "one head of the textbook": lambda: self_attention.SelfAttentionV2(6, 4),
    "the textbook's causal one": lambda: causal.CausalAttention(
        6, 4, context_length=16, dropout=0.1
    ),
    "the textbook's heads": lambda: multi_head.MultiHeadAttention(
        24, 24, context_length=16, num_heads=4, dropout=0.0
    ),
    "ours, grouped": lambda: MultiHeadAttention(24, 4, num_kv_heads=2, rotary=RotaryEmbedding(6)),
    "ours with a window": lambda: MultiHeadAttention(24, 4, rotary=INTERLEAVED, window=3),
    "torch's layer": lambda: nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
    "transformers' Llama": lambda: transformers_attention("llama"),
    "transformers' BERT": lambda: transformers_attention("bert"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_modules_that_are_known_to_be_right_are_left_alone(name):
    assert findings(KNOWN[name]()) == []


def test_torchs_attention_is_suspected_of_what_it_makes_of_a_sequence_of_padding():
    (finding,) = findings(nn.MultiheadAttention(24, 4, batch_first=True))
    assert (finding.name, finding.level) == ("nan-on-masked-rows", "suspicious")


def test_layouts_masks_and_caches_are_said(tmp_path):
    with written(tmp_path, GROWING) as target:
        results = found(target(24, 4))
    said = {it.name: it.value for it in results if isinstance(it, Fact)}
    assert said["rotary"] == "half (i, i + D/2)"
    assert said["padding mask"] == "attention_mask (B, T), True keeps"
    assert said["cache"].startswith("past_kv")
    (convention,) = [it for it in results if isinstance(it, Finding)]
    assert (convention.name, convention.level) == ("rotary-layout", "convention")
    ours = found(MultiHeadAttention(24, 4, rotary=INTERLEAVED))
    assert Fact("rotary", "interleaved (2i, 2i + 1)") in ours


def test_frequencies_that_a_cast_rounds_are_suspected(tmp_path):
    base = "10.0 ** (-torch.arange(0, 6, 2) / 6)"
    source = GROWING.replace("positions)\n", "positions, self.inv_freq)\n")
    source = source.replace("def turn(x, positions)", "def turn(x, positions, frequencies)")
    source = source.replace("    frequencies =", "    unused =").replace(
        "        self.out_proj =",
        f"        self.register_buffer('inv_freq', {base}, persistent=False)\n        self.out_proj =",
    )
    with written(tmp_path, source) as target:
        (finding,) = findings(target(24, 4))
    assert (finding.name, finding.level) == ("rotary-precision", "suspicious")


# Learned places, counted from the first slot of each row.
PLACED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.places = nn.Embedding(16, d_model)

    def forward(self, x, attention_mask=None):
        B, T, C = x.shape
        places = torch.arange(T)
        x = x + self.places(places)
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        scores = query @ key.mT / C**0.5
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -1e9)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        weights = scores.softmax(dim=-1)
        return weights @ value
"""


@pytest.mark.parametrize(("diagonal", "level"), [(1, "bug"), (99, "suspicious")])
def test_places_counted_over_padding_are_a_bug_of_causal_targets(tmp_path, diagonal, level):
    with written(tmp_path, PLACED.replace("triu(1)", f"triu({diagonal})")) as target:
        (finding,) = findings(target(8))
    assert (finding.name, finding.level) == ("left-padding-positions", level)
    assert finding.place is not None
    assert finding.place.source == "places = torch.arange(T)"


def test_places_that_the_caller_gives_are_the_callers(tmp_path):
    source = PLACED.replace("attention_mask=None", "attention_mask=None, position_ids=None")
    told = "torch.arange(T) if position_ids is None else position_ids"
    with written(tmp_path, source.replace("torch.arange(T)", told)) as target:
        assert findings(target(8)) == []


def test_heads_before_the_batch_need_a_mask_in_their_order(tmp_path):
    heads = (
        "        query, key, value = (torch.cat(it.chunk(2, -1)) for it in (query, key, value))\n"
    )
    repeated = "attention_mask.repeat(2, 1)"
    source = PLACED.replace("        scores = query", f"{heads}        scores = query")
    source = source.replace("        x = x + self.places(places)\n", "")
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
