"""Caches: several calls must give the outputs of one call on all tokens."""

from __future__ import annotations

import pytest
from attentions_with_caches import (
    FIXED,
    GROWING,
    UNSEEN,
    VISIBLE,
    assert_names_the_line,
    assert_no_finding,
    findings,
    findings_and_facts,
    written,
)
from torch import nn

from heedful import check
from heedful.conformance.calling.loading import loaded
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.textbook import causal, multi_head, self_attention

# name, source, the text that is replaced, its replacement, and a part of the line to be named
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
        GROWING.replace(VISIBLE, "visible = self.triangle(T, past)").replace(
            "    def forward(",
            "    def triangle(self, T, past):\n"
            "        return torch.ones(T, past + T, dtype=torch.bool).tril(past)\n\n"
            "    def forward(",
        ),
        "torch.ones(T, past + T, dtype=torch.bool).tril(past)",
        "torch.ones(T, T, dtype=torch.bool).tril()",
        "return torch.ones(T, T",
    ),
    (
        "causal-alignment",
        GROWING,
        VISIBLE,
        "visible = torch.ones(1, past + T, dtype=torch.bool)  # a single new token reads all\n"
        "        if T > 1:\n"
        "            visible = torch.ones(T, past + T, dtype=torch.bool).tril()",
        "tril()",
    ),
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
]
CORRECT = {
    "unchanged": (GROWING, "", ""),
    "a cache of a fixed size": (FIXED, "", ""),
    "a window over a cache that keeps all keys": (
        GROWING,
        "tril(past)",
        "tril(past).triu(past - 3)",
    ),
    "one token at a time": (
        GROWING,
        "total = past + T\n",
        "total = past + T\n        if past and T > 1:\n            raise ValueError('one at a time')\n",
    ),
}


@pytest.mark.parametrize(("name", "source", "old", "new", "line"), WRONG)
def test_the_wrong_line_is_named(tmp_path, name, source, old, new, line):
    assert_names_the_line(tmp_path, name, source, old, new, line)


@pytest.mark.parametrize("variant", CORRECT)
def test_correct_variants_give_no_finding(tmp_path, variant):
    assert_no_finding(tmp_path, *CORRECT[variant])


def transformers_attention(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="pip install 'heedful[transformers]'")
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "attn_implementation": "eager"}
    if name == "bert":
        from transformers.models.bert.modeling_bert import BertSelfAttention

        return BertSelfAttention(transformers.BertConfig(**sizes))
    from transformers.models.llama.modeling_llama import LlamaAttention

    return LlamaAttention(transformers.LlamaConfig(**sizes, num_key_value_heads=2), 0)


KNOWN = {
    "the textbook's single head": lambda: self_attention.SelfAttentionV2(6, 4),
    "the textbook's causal attention": lambda: causal.CausalAttention(
        6, 4, context_length=16, dropout=0.1
    ),
    "the textbook's multi-head attention": lambda: multi_head.MultiHeadAttention(
        24, 24, context_length=16, num_heads=4, dropout=0.0
    ),
    "heedful.nn with grouped heads": lambda: MultiHeadAttention(
        24, 4, num_kv_heads=2, rotary=RotaryEmbedding(6)
    ),
    "heedful.nn with a window": lambda: MultiHeadAttention(
        24, 4, rotary=RotaryEmbedding(6, layout="interleaved"), window=3
    ),
    "torch's layer": lambda: nn.TransformerEncoderLayer(24, 4, 32, batch_first=True),
    "transformers' Llama": lambda: transformers_attention("llama"),
    "transformers' BERT": lambda: transformers_attention("bert"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_correct_modules_give_no_finding(name):
    assert findings(KNOWN[name]()) == []


def test_facts_name_the_rotary_layout_the_padding_mask_and_the_cache(tmp_path):
    with written(tmp_path, GROWING) as target:
        results = findings_and_facts(target(24, 4))
    facts = {result.name: result.value for result in results if isinstance(result, Fact)}
    assert facts["rotary"] == "half (i, i + D/2)"
    assert facts["padding mask"] == "attention_mask (B, T), True keeps"
    assert facts["cache"].startswith("past_kv")
    (convention,) = [it for it in results if isinstance(it, Finding)]
    assert (convention.name, convention.level) == ("rotary-layout", "convention")
    ours = findings_and_facts(
        MultiHeadAttention(24, 4, rotary=RotaryEmbedding(6, layout="interleaved"))
    )
    assert Fact("rotary", "interleaved (2i, 2i + 1)") in ours


def test_a_table_kept_under_a_key_that_leaves_out_the_offset_is_stale_state(tmp_path):
    source = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.tables = {}

    def placed(self, x, start):
        length = x.shape[1]
        key = f"{length}"
        if key not in self.tables:
            self.tables[key] = torch.arange(start, start + length).to(x)[:, None].sin()
        return x + self.tables[key]

    def forward(self, x, past_kv=None):
        T, start = x.shape[1], 0 if past_kv is None else past_kv[0].shape[1]
        q, k, v = self.placed(x, start).matmul(self.qkv.weight.mT).chunk(3, dim=-1)
        if past_kv is not None:
            k, v = torch.cat([past_kv[0], k], dim=1), torch.cat([past_kv[1], v], dim=1)
        future = torch.ones(T, k.shape[1], dtype=torch.bool).triu(1 + start)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(future, -torch.inf)
        return scores.softmax(-1) @ v, (k, v)
"""
    path = tmp_path / "tabled.py"
    path.write_text(source)
    with loaded(f"{path}:Attention") as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "stale-state"
    assert bug.place is not None
    assert bug.place.source == "key = f'{length}'"
    path.write_text(source.replace('f"{length}"', 'f"{length} {start}"'))
    with loaded(f"{path}:Attention") as attention:
        assert not check(attention, causal=True).bugs
