"""Keys and values are projected from what a target is given for them, and the result of an attention is used."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

CROSS = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    '''query: (b, s, width), key and value: (b, t, width)'''

    def __init__(self, width=24, heads=4):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(width, width)) for _ in range(3))
        self.out_proj = nn.Linear(width, width)

    def forward(self, query, key, value):
        q = query @ self.w_q
        k = key @ self.w_k
        v = value @ self.w_v
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(context.transpose(1, 2).flatten(2))
"""
ONE_MEMORY = CROSS.replace("query, key, value):", "queries, keys):").replace("query @", "queries @")
BLOCK = """import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        weights = (self.to_q(x) @ self.to_k(x).mT * x.shape[-1] ** -0.5).softmax(-1)
        return weights @ self.to_v(x)


class Attention(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.attn = CrossAttention(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        attended = self.attn(x)
        attended = attended.contiguous()
        return x + attended + self.mlp(x)
"""


def with_forward(forward):
    return CROSS[: CROSS.index("    def forward")] + forward


def found(tmp_path, source):
    with written(tmp_path, source) as target:
        report = check(target)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


def test_keys_and_values_that_nothing_reads_are_named(tmp_path):
    assert found(tmp_path, CROSS) == []
    alone = CROSS.replace("key @", "query @").replace("value @", "query @")
    assert found(tmp_path, alone) == [("context-wrong", "k = query @ self.w_k")]


def test_a_signature_that_code_says_is_for_compatibility_may_ignore_keys(tmp_path):
    alone = CROSS.replace("key @", "query @").replace("value @", "query @")
    said = alone.replace("key and value: (b, t, width)", "key and value are ignored")
    assert found(tmp_path, said) == []


@pytest.mark.parametrize("name", ["keys", "memory_keys"])
def test_values_projected_from_projected_keys_are_named(tmp_path, name):
    """Under a name of its own, the projection may be meant."""
    projected = f"{name} = keys @ self.w_k\n        v = {name} @ self.w_v\n        k = {name}"
    source = ONE_MEMORY.replace("k = key @ self.w_k\n        v = value @ self.w_v", projected)
    bugs = found(tmp_path, source)
    assert bugs == ([("keys-values-swapped", "v = keys @ self.w_v")] if name == "keys" else [])


def test_the_line_that_overwrites_the_result_of_an_attention_is_named(tmp_path):
    assert found(tmp_path, BLOCK) == []
    wrong = BLOCK.replace("attended.contiguous()", "x.contiguous()")
    assert found(tmp_path, wrong) == [("attention-ignored", "attended = x.contiguous()")]


@pytest.mark.parametrize("update", ["attended += 0", "attended = attended + 0"])
def test_a_result_that_is_read_is_not_overwritten(tmp_path, update):
    """Then the line that overwrites the variable is not the one to edit."""
    forward = f"attended = self.attn(x)\n        {update}\n        attended = x\n        return self.mlp(x)\n"
    source = BLOCK[: BLOCK.index("attended")] + forward
    (line,) = (line for name, line in found(tmp_path, source) if name == "attention-ignored")
    assert line != "attended = x"


def test_keys_of_a_pooled_map_meet_transposed_weights(tmp_path):
    """There are fewer keys than queries, and the weights are transposed before they meet the values."""
    source = with_forward(
        "    def forward(self, x):\n"
        "        q, k, v = x @ self.w_q, x @ self.w_k, x @ self.w_v\n"
        "        k, v = (F.avg_pool1d(t.mT, 2, ceil_mode=True) for t in (k, v))\n"
        "        weights = F.softmax(torch.bmm(q, k) * q.shape[-1] ** -0.5, -1)\n"
        "        return self.out_proj(torch.bmm(v, weights.transpose(1, 2)).mT)\n",
    )
    with written(tmp_path, source) as target:
        report = check(target)
    assert not [it for it in report.findings if it.level == "not-testable"]
    assert any(fact.name == "scale" and fact.value.startswith("0.2041") for fact in report.facts)


def test_a_mask_that_hides_the_wrong_one_of_two_joined_sequences(tmp_path):
    source = with_forward(
        "    def forward(self, x, text, attention_mask=None):\n"
        "        x, B = torch.cat([text, x], 1), len(x)\n"
        "        q, k, v = ((x @ w)[:, None] for w in (self.w_q, self.w_k, self.w_v))\n"
        "        if attention_mask is not None:\n"
        "            others = attention_mask.new_ones(B, x.shape[1] - text.shape[1])\n"
        "            attention_mask = torch.cat([attention_mask, others], 1).bool()[:, None, None]\n"
        "        context = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)[:, 0]\n"
        "        text_out, out = self.out_proj(context).split([text.shape[1], x.shape[1] - text.shape[1]], 1)\n"
        "        return text_out, out\n",
    ).replace("        self.heads = heads\n", "")
    words = (torch.arange(6) < torch.tensor([6, 4])[:, None]).long()
    example = torch.randn(2, 9, 24), torch.randn(2, 6, 24), words
    with written(tmp_path, source) as target:
        assert check(target, example=example).bugs == ()
    wrong = source.replace("[attention_mask, others]", "[others, attention_mask]")
    with written(tmp_path, wrong) as target:
        (bug,) = check(target, example=example).bugs
    assert bug.name == "padding-leak"


DECODER = """import torch
from torch import nn


class MultiHead(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query, key, value, hidden=None):
        q, k, v = self.w_q(query), self.w_k(key), self.w_v(value)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Attention(nn.Module):
    '''A layer of a decoder.'''

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.own, self.other = MultiHead(width, heads), MultiHead(width, heads)

    def forward(self, x, memory, hidden=None):
        x = x + self.own(x, x, x, hidden)
        x = x + self.other(x, memory, memory)
        return x
"""


@pytest.mark.parametrize("said", [False, True])
def test_outputs_of_an_encoder_that_nothing_reads_are_named(tmp_path, said):
    with written(tmp_path, DECODER) as target:
        assert not check(target, causal=True).bugs
    source = DECODER.replace("(x, memory, memory)", "(x, x, x)")
    if said:
        source = source.replace("A layer of a decoder.", "A layer of a decoder; memory is ignored.")
    with written(tmp_path, source) as target:
        bugs = check(target, causal=True).bugs
    named = [(bug.name, bug.place and bug.place.source) for bug in bugs]
    line = "x = x + self.other(x, x, x)"
    assert said or named == [("context-wrong", line)]
    assert not said or "context-wrong" not in dict(named)
