"""Projections, and parts of packed ones, that the output does not depend on."""

import pytest
from attentions_with_caches import written
from edited_attention import (
    CONTEXT,
    CORRECT,
    MASK_BUFFER,
    SIZES,
    SPLIT_VALUE,
    assert_bug,
    assert_no_finding,
    edited,
    findings_of,
)

from heedful.conformance import check

# What is replaced, by what, and what is on the line to be named.
BUGS = {
    "values from W_key": (
        SPLIT_VALUE,
        SPLIT_VALUE.replace("W_value", "W_key"),
        "value = self.split(self.W_key",
    ),
    "keys as values": (CONTEXT, CONTEXT.replace("value", "key"), "weights @ key"),
    "no output projection": ("self.out_proj(context)", "context", "return context"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_an_unused_projection_is_found(tmp_path, bug):
    assert_bug(tmp_path, "projection-unused", *BUGS[bug])


MERGED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.qkv, self.mixed = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.gate = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.gate(x).sigmoid() * mixed
"""


def test_a_layer_of_the_name_of_a_variable_is_there_to_be_used(tmp_path):
    with written(tmp_path, MERGED) as target:
        (bug,) = check(target).bugs
    assert (bug.name, bug.place.source.split()[0]) == ("projection-unused", "mixed")
    with written(tmp_path, MERGED.replace("* mixed\n", "* self.mixed(mixed)\n")) as target:
        assert not check(target).bugs
    with written(tmp_path, MERGED.replace("self.mixed", "self.other")) as target:
        assert not check(target).bugs


PACKED = CORRECT.replace(
    CORRECT[CORRECT.index("        query = ") : CORRECT.index("        scores = ")],
    "        query, key, value = (self.split(part) for part in self.packed(x).chunk(3, -1))\n",
).replace(MASK_BUFFER, MASK_BUFFER + "        self.packed = nn.Linear(d_model, 3 * d_model)\n")
for role in ("query", "key", "value"):
    PACKED = PACKED.replace(f"        self.W_{role} = nn.Linear(d_model, d_model)\n", "")


SPLIT_PARTS = ".chunk(3, -1))\n"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (SPLIT_PARTS, SPLIT_PARTS[:-1] + "; value = key\n", "value = key"),
        (CONTEXT, CONTEXT.replace("value", "key"), "weights @ key"),
        ("= query @ key", "= key @ key", "key @ key"),
        (CONTEXT, "        value = key\n" + CONTEXT, "value = key"),
        (CONTEXT, "        value = key.contiguous()\n" + CONTEXT, "value = key.contiguous()"),
    ],
)
def test_an_unused_part_of_a_packed_projection_is_found(tmp_path, old, new, line):
    assert_no_finding(tmp_path, source=PACKED)
    (tmp_path / "wrong").mkdir()
    assert_bug(tmp_path / "wrong", "projection-unused", old, new, line, PACKED)


INDEXED = PACKED.replace(
    "(self.split(part) for part in self.packed(x).chunk(3, -1))",
    "self.packed(x).view(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)",
)


@pytest.mark.parametrize(
    ("parts", "twice"), [("002", "Queries and keys"), ("022", "Keys and values")]
)
def test_a_part_that_nothing_takes_is_found(tmp_path, parts, twice):
    assert_no_finding(tmp_path, source=INDEXED)
    wrong = INDEXED.replace(
        "permute(2, 0, 3, 1, 4)", f"permute(2, 0, 3, 1, 4)[{[*map(int, parts)]}]"
    )
    with edited(tmp_path, source=wrong) as attention:
        (finding,) = findings_of(attention(*SIZES))
    assert finding.proof.startswith(twice)


@pytest.mark.parametrize(
    "member",
    [
        "self.cross = nn.MultiheadAttention(d_model, num_heads)",
        "self.cross_query = nn.Linear(d_model, d_model)",
    ],
    ids=["a module", "a query projection"],
)
def test_members_for_another_call_raise_no_alarm(tmp_path, member):
    assert_no_finding(tmp_path, MASK_BUFFER, f"{MASK_BUFFER}        {member}\n")


# A decoder's layer in which each part is called once.
LAYER = """
import torch
import torch.nn.functional as F
from torch import nn

class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.mix = nn.Linear(width, width)

    def forward(self, x, source):
        k, v = self.kv(source).chunk(2, dim=-1)
        mixed = F.scaled_dot_product_attention(self.q(x), k, v)
        mixed = self.mix(mixed)
        return mixed

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_a, self.ln_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.own = Mixer(width)
        self.other = Mixer(width)

    def forward(self, tgt, memory):
        h = self.ln_a(tgt)
        mixed = self.own(h, h)
        tgt = tgt + mixed
        h = self.ln_b(tgt)
        seen = self.other(h, memory)
        return tgt + seen
"""


@pytest.mark.parametrize(
    ("old", "new", "level", "line"),
    [
        ("self.other(h, memory)", "self.own(h, memory)", "bug", "seen = self.own(h, memory)"),
        ("self.own(h, h)", "self.other(h, h)", "bug", "mixed = self.other(h, h)"),
        ("self.ln_b(tgt)", "self.ln_a(tgt)", "suspicious", "h = self.ln_a(tgt)"),
        ("tgt = tgt + mixed", "tgt = tgt + h", "bug", "mixed = self.own(h, h)"),
    ],
    ids=["the first again", "the second before", "norm", "result"],
)
def test_a_part_that_is_called_in_place_of_another_is_found(tmp_path, old, new, level, line):
    assert LAYER.count(old) == 1
    with written(tmp_path, LAYER) as right:
        assert [it for it in check(right(16)).findings if it.level != "convention"] == []
    (tmp_path / "wrong").mkdir()
    with written(tmp_path / "wrong", LAYER.replace(old, new)) as wrong:
        findings = [it for it in check(wrong(16)).findings if it.name == "projection-unused"]
    (finding,) = findings
    assert finding.level == level
    assert finding.place is not None
    assert finding.place.source == line


def test_a_part_for_another_branch_raises_no_alarm(tmp_path):
    branches = LAYER.replace(
        "seen = self.other(h, memory)",
        "seen = self.own(h, memory) if self.training or True else self.other(h, memory)",
    ).replace("mixed = self.own(h, h)", "mixed = self.ln_a(h)")
    with written(tmp_path, branches) as target:
        assert check(target(16)).bugs == ()


NORMED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.q_norm = self.k_norm = None
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.q_norm, self.k_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self.q_norm(q), self.k_norm(k)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
"""


def test_norms_of_queries_and_keys_are_there_to_be_called(tmp_path):
    with written(
        tmp_path, NORMED.replace("        q, k = self.q_norm(q), self.k_norm(k)\n", "")
    ) as it:
        (bug,) = check(it).bugs
    assert bug.name == "projection-unused"
    assert "q_norm.weight" in bug.proof
    behind_flag = NORMED.replace(
        "        q, k = self", "        if v is None:\n            q, k = self"
    )
    for sound in (NORMED, behind_flag):
        with written(tmp_path, sound) as target:
            assert not check(target).bugs


HEADS = """
import torch
from torch import nn
from torch.nn import functional as F

class Head(nn.Module):
    def __init__(self, d_model, size):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, size) for _ in range(3))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))

class Attention(nn.Module):
    def __init__(self, d_model=24, n_head=4):
        super().__init__()
        self.size = d_model // n_head
        self.heads = nn.ModuleList(Head(d_model, self.size) for _ in range(n_head))
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        contexts = torch.zeros_like(x)
        for head, start in enumerate(range(0, x.shape[-1], self.size)):
            contexts[..., start : start + self.size] = self.heads[head](x)
        return self.out(contexts)
"""


def test_a_loop_that_leaves_out_heads_is_found(tmp_path):
    with written(tmp_path, HEADS) as target:
        assert not check(target).bugs
    with written(tmp_path, HEADS.replace("range(0, x.shape[-1],", "range(0, self.size,")) as target:
        bug = next(it for it in check(target).bugs if it.name == "projection-unused")
    assert "heads.1.q.weight" in bug.proof
    assert "range(0, self.size" in bug.place.source


FOR_DIAGNOSTICS = """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int = 16):
        super().__init__()
        self.qkv, self.out, self.judge = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, x, diagnose: bool = False):
        q, k, v = self.qkv(x).chunk(3, -1)
        context = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        certainty = self.judge(context).squeeze(-1)
        if diagnose:
            return self.out(context), {"certainty": certainty}
        return self.out(context)
"""


def test_what_is_computed_for_diagnostics_alone_is_used(tmp_path):
    with written(tmp_path, FOR_DIAGNOSTICS) as attention:
        assert not check(attention).bugs
    unread = FOR_DIAGNOSTICS.replace('{"certainty": certainty}', '{"mean": context.mean()}')
    with written(tmp_path, unread) as attention:
        (bug,) = check(attention).bugs
    assert bug.name == "projection-unused"
    assert bug.place.source == "certainty = self.judge(context).squeeze(-1)"
