"""Bugs that show elsewhere than where they are written: in a helper, in a later step, in another call."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEADER = """import math

import torch
import torch.nn.functional as F
from torch import nn


"""


def found(tmp_path, source, example=None, **options):
    with written(tmp_path, HEADER + source) as target:
        report = check(target, example=example, **options)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


LOCAL_SCALE = """class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        size = q.size(-1)

        temperature = math.sqrt(size)
        weights = torch.softmax(torch.matmul(q, k.mT) / temperature, dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).reshape(B, T, C)
"""


def test_a_wrong_scale_is_that_of_the_variable(tmp_path):
    assert found(tmp_path, LOCAL_SCALE) == []
    wrong = LOCAL_SCALE.replace("math.sqrt(size)", "math.sqrt(C)")
    assert found(tmp_path, wrong) == [("scale-wrong", "temperature = math.sqrt(C)")]
    wrong = LOCAL_SCALE.replace("size = q.size(-1)", "size = q.size(-2)").replace(
        "k.mT) / temperature", "k.mT) / math.sqrt(size)"
    )
    assert found(tmp_path, wrong) == [("scale-wrong", "size = q.size(-2)")]
    wrong = LOCAL_SCALE.replace("size = q.size(-1)", "M = x.shape[1]").replace(
        "temperature = math.sqrt(size)", "pass"
    )
    name, line = found(tmp_path, wrong.replace("k.mT) / temperature", "k.mT) / math.sqrt(M)"))[0]
    assert (name, line[:7]) == ("scale-wrong", "weights")
    wrong = LOCAL_SCALE.replace("k.mT) / temperature", "k.mT) / size")
    name, line = found(tmp_path, wrong)[0]
    assert (name, line[:7]) == ("scale-wrong", "weights")


AGAIN = """class Attention(nn.Module):
    '''Causal attention that sharpens its weights.'''

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        weights = F.softmax(scores, dim=-1)
        sharper = (2 * weights).masked_fill(later, -torch.inf)
        sharper = F.softmax(sharper, dim=-1)
        return (sharper @ v).transpose(1, 2).reshape(B, T, C)
"""


def test_a_second_softmax_gives_hidden_keys_weight(tmp_path):
    assert "future-leak" not in [name for name, _ in found(tmp_path, AGAIN)]
    wrong = AGAIN.replace(
        "(2 * weights).masked_fill(later, -torch.inf)", "weights + weights.square()"
    )
    assert ("future-leak", "sharper = F.softmax(sharper, dim=-1)") in found(tmp_path, wrong)


BESIDE = """class Summary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, x):
        return torch.sigmoid(self.gate(x.mean(dim=1, keepdim=True)))


class Attention(nn.Module):
    '''A block of a decoder: causal attention, gated by a summary.'''

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.summary = Summary(width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(B, T, C)

        gate = self.summary(y)
        return x + gate * y
"""


def test_a_part_beside_the_attention_leaks(tmp_path):
    name, line = found(tmp_path, BESIDE, causal=True)[0]
    assert (name, line) == ("future-leak", "gate = self.summary(y)")


HEADS_FIRST = """class Attention(nn.Module):
    '''mask: True at padding, (batch, tokens)'''

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def split(self, t):
        B, T, C = t.shape
        return t.view(B, T, self.heads, -1).permute(2, 0, 1, 3).reshape(self.heads * B, T, -1)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        if mask is not None:
            hidden = mask.repeat(self.heads, 1)
            scores = scores.masked_fill(hidden.view(-1, 1, T), -torch.inf)
        y = torch.bmm(scores.softmax(-1), v).view(self.heads, B, T, -1)
        return y.permute(1, 2, 0, 3).reshape(B, T, C)
"""


def test_the_copies_of_a_mask_have_the_order_of_the_rows(tmp_path):
    assert found(tmp_path, HEADS_FIRST) == []
    wrong = HEADS_FIRST.replace(
        "mask.repeat(self.heads, 1)", "mask.repeat_interleave(self.heads, 0)"
    )
    assert found(tmp_path, wrong) == [
        ("mask-broadcast", "hidden = mask.repeat_interleave(self.heads, 0)")
    ]


BOUNDS = """def band(length, left, right):
    offset = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    return (offset >= -left) & (offset <= right)


class Attention(nn.Module):
    def __init__(self, width=32, heads=4, window_size=4):
        super().__init__()
        self.heads, self.window_size = heads, window_size
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        before = self.window_size - 1
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=band(T, before, 0))
        return y.transpose(1, 2).reshape(B, T, C)
"""


def test_the_bounds_of_a_window_are_those_that_the_module_hands_over(tmp_path):
    assert found(tmp_path, BOUNDS, causal=True, window=4) == []
    wrong = BOUNDS.replace("self.window_size - 1", "self.window_size")
    assert found(tmp_path, wrong, causal=True, window=4) == [
        ("window-off-by-one", "before = self.window_size")
    ]


OFFSET = """class Rotary(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer('freqs', 10000.0 ** (-torch.arange(0, size, 2) / size), False)

    def angles(self, count, first):
        places = torch.arange(first, first + count)
        return torch.outer(places.float(), self.freqs.float())

    def forward(self, x, first):
        angles = self.angles(x.shape[-2], first)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    '''cache: the keys and values so far, before their rotation'''

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.rotary = Rotary(width // heads)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = (torch.cat(pair, -2) for pair in zip(cache, (k, v)))
        cache = (k, v)

        start = k.shape[-2] - T
        q, k = self.rotary(q, start), self.rotary(k, 0)
        seen = torch.ones(T, k.shape[-2], dtype=torch.bool).tril(k.shape[-2] - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return y.transpose(1, 2).reshape(B, T, C), cache
"""


def test_a_wrong_first_position_is_followed_to_the_line_that_computes_it(tmp_path):
    assert found(tmp_path, OFFSET) == []
    wrong = OFFSET.replace("start = k.shape[-2] - T", "start = q.shape[-2] - T")
    assert found(tmp_path, wrong) == [("rotary-offset", "start = q.shape[-2] - T")]


UNTRANSPOSED = """class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).unflatten(-1, (self.heads, -1))
        k = self.k(x).unflatten(-1, (self.heads, -1))
        v = self.v(x).unflatten(-1, (self.heads, -1))

        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
"""


def test_operands_that_are_not_transposed_are_blamed_where_they_meet(tmp_path):
    assert found(tmp_path, UNTRANSPOSED) == []
    wrong = UNTRANSPOSED.replace(
        "        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)\n", ""
    ).replace("@ v).transpose(1, 2)", "@ v)")
    name, line = found(tmp_path, wrong)[0]
    assert (name, line[:12]) == ("heads-mixed-split", "scores = q @")


def test_a_mask_that_nothing_uses_is_blamed_for_weak_scores(tmp_path):
    source = HEADS_FIRST.replace("mask.repeat(self.heads, 1)", "mask.repeat(self.heads, 1).to(x)")
    source = source.replace(
        "scores = scores.masked_fill(hidden.view(-1, 1, T), -torch.inf)",
        "hiden_mask = hidden * -1e9\n            scores = scores - hidden.view(-1, 1, T)",
    )
    name, line = found(tmp_path, source)[0]
    assert (name, line[:10]) == ("mask-unused", "hiden_mask")


FRAMES = """class Attention(nn.Module):
    '''lengths: how many tokens of each sequence are real, (batch,)'''

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x, lengths):
        real = torch.arange(x.shape[1])[None, :] < lengths[:, None]
        x = x * real[..., None]
        y, _ = self.attn(x, x, x, key_padding_mask=~real)
        return y * real[..., None]
"""


def test_lengths_that_hide_the_real_tokens_are_found_where_padding_is_zero(tmp_path):
    example = torch.randn(2, 6, 16), torch.tensor([6, 4])
    assert found(tmp_path, FRAMES, example) == []
    wrong = FRAMES.replace("~real", "real")
    name, line = found(tmp_path, wrong, example)[0]
    assert (name, "key_padding_mask=real" in line) == ("mask-inverted", True)


IDS = """class Pool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, x, mask=None):
        scores = self.score(x).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)
        return (scores.softmax(-1)[..., None] * x).sum(1)


class Attention(nn.Module):
    def __init__(self, words=30, width=16):
        super().__init__()
        self.embed, self.pool = nn.Embedding(words, width), Pool(width)

    def forward(self, ids):
        padded = ids == 0
        x = self.embed(ids) * (~padded)[..., None]
        return self.pool(x, mask=padded)
"""


def test_a_mask_of_ids_is_handed_to_the_part_that_takes_one(tmp_path):
    ids = torch.randint(1, 30, (2, 7))
    ids[1, 5:] = 0
    assert found(tmp_path, IDS, (ids,)) == []
    wrong = IDS.replace("self.pool(x, mask=padded)", "self.pool(x)")
    assert found(tmp_path, wrong, (ids,)) == [("padding-leak", "return self.pool(x)")]


def test_tokens_in_another_order_mix_no_features(tmp_path):
    source = LOCAL_SCALE.replace(
        "q, k, v = self.qkv(x)",
        "order = torch.arange(T).flip(0)\n        q, k, v = self.qkv(x[:, order])",
    )
    assert found(tmp_path, source) == []


def test_a_detached_copy_beside_the_tensor_is_meant(tmp_path):
    source = """class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        still = v.detach()
        first = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ still
        return (first @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
"""
    assert "gradient-wrong" not in [name for name, _ in found(tmp_path, source)]
    wrong = source.replace("still = v.detach()", "v = v.detach()").replace("@ still", "@ v")
    assert "gradient-wrong" in [name for name, _ in found(tmp_path, wrong)]


def test_heads_that_were_never_split_cannot_be_merged(tmp_path):
    split = ".view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)"
    wrong = LOCAL_SCALE.replace(split, ".chunk(3, dim=-1)")
    (bug,) = found(tmp_path, wrong)
    assert bug == ("heads-mixed-merge", "q, k, v = self.qkv(x).chunk(3, dim=-1)")
    one_head = wrong.replace("heads=4", "heads=1").replace(".transpose(1, 2)", "")
    assert found(tmp_path, one_head) == []


MASKED_BY_HELPER = """def visible(scores, padding, causal):
    plain = padding is None
    if plain:
        return scores
    T = scores.shape[-1]
    keep = padding[:, None, :]
    if causal:
        keep = keep & torch.ones(T, T, dtype=torch.bool).tril()
    return scores.masked_fill(~keep, -1e9)


class Attention(nn.Module):
    def __init__(self, width=16, causal=True):
        super().__init__()
        self.qkv, self.causal = nn.Linear(width, 3 * width), causal

    def forward(self, x, padding=None):
        '''padding: True at tokens, False at padding, (batch, tokens).'''
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = visible(q @ k.mT / q.shape[-1] ** 0.5, padding, self.causal)
        return scores.softmax(-1) @ v
"""


def test_a_helper_that_returns_before_it_masks_is_named_by_its_condition(tmp_path):
    right = MASKED_BY_HELPER.replace("padding is None", "padding is None and not causal").replace(
        "keep = padding[:, None, :]",
        "keep = torch.ones(1, 1, T, dtype=torch.bool) if padding is None else padding[:, None, :]",
    )
    assert found(tmp_path, right, causal=True) == []
    assert found(tmp_path, MASKED_BY_HELPER, causal=True) == [
        ("future-leak", "plain = padding is None")
    ]
    ignored = MASKED_BY_HELPER.replace("plain = padding is None", "plain = not causal")
    assert ("mask-unused", "plain = not causal") in found(
        tmp_path, ignored.replace("causal=True", "causal=False")
    )


RECENT = """class Attention(nn.Module):
    '''Causal attention that forgets what lies more than `reach` tokens back.'''

    def __init__(self, width=16, reach=4):
        super().__init__()
        self.qkv, self.reach = nn.Linear(width, 3 * width), reach

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.shape[1])
        back = at[:, None] - at
        hidden = (back < 0) | (back > self.reach)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores.masked_fill_(hidden, -torch.inf)
        chosen = scores.topk(min(5, x.shape[1]), -1)
        return torch.einsum("btn,btnd->btd", chosen.values.softmax(-1), v[:, None].expand(
            -1, x.shape[1], -1, -1).gather(2, chosen.indices[..., None].expand(-1, -1, -1, v.shape[-1])))
"""


def test_a_mask_that_is_true_nowhere_is_named(tmp_path):
    wrong = RECENT.replace("(back < 0) | (back", "(back < 0) & (back")
    assert found(tmp_path, wrong, causal=True) == [
        ("future-leak", "hidden = (back < 0) & (back > self.reach)")
    ]


SLOTS = """class Attention(nn.Module):
    def __init__(self, width=16, slots=12):
        super().__init__()
        self.slots, self.qkv = slots, nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        T = x.shape[1]
        k, v = (F.pad(it, (0, 0, 0, max(0, self.slots - T))) for it in (k, v))
        place = torch.arange(k.shape[1])
        empty = torch.where(place > torch.arange(T)[:, None], -1e9, 0.0)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + empty
        return scores.softmax(-1) @ v
"""


def test_a_mask_that_is_the_same_for_every_query_is_named(tmp_path):
    assert found(tmp_path, SLOTS, causal=True) == []
    wrong = SLOTS.replace("torch.arange(T)[:, None]", "T - 1").replace(
        "-1e9, 0.0)", "-1e9, 0.0)[None]"
    )
    (bug, *_) = found(tmp_path, wrong, causal=True)
    assert bug == ("future-leak", "empty = torch.where(place > T - 1, -1e9, 0.0)[None]")


SIGNAL = """class Attention(nn.Module):
    '''x: (batch, channels, samples)'''

    def __init__(self, channels=16, num_heads=4):
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.attn = nn.MultiheadAttention(channels, num_heads, batch_first=True)

    def forward(self, x):
        y = self.norm(x).transpose(1, 2)
        y, _ = self.attn(y, y, y)
        return x + y.transpose(1, 2)
"""


def test_a_documented_shape_says_that_sequences_come_first(tmp_path):
    example = (torch.randn(2, 16, 12),)
    assert found(tmp_path, SIGNAL, example) == []
    wrong = SIGNAL.replace(", batch_first=True", "")
    line = "self.attn = nn.MultiheadAttention(channels, num_heads)"
    assert found(tmp_path, wrong, example) == [("batch-mixed", line)]
