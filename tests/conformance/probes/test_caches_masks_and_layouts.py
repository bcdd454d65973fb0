"""Caches by flags and by words, masks that hide twice or not at all, sums of loops, and layouts of channels first."""

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in, self_attention

from heedful import check

pytestmark = pytest.mark.slow

CACHING = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.k_cache = self.v_cache = None

    def forward(self, x, mask, caching=None):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if caching == "on":
            if self.k_cache is None:
                self.k_cache = k
                self.v_cache = KEPT
            else:
                self.k_cache = torch.cat([self.k_cache, k], 1)
                self.v_cache = torch.cat([self.v_cache, v], 1)
            k, v = self.k_cache, self.v_cache
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(mask, -torch.inf).softmax(-1) @ v
"""


def test_the_cache_of_the_values_is_not_filled_with_the_keys(tmp_path):
    assert bugs_in(tmp_path, CACHING.replace("KEPT", "k"))["cache-mismatch"] == "self.v_cache = k"
    assert "cache-mismatch" not in bugs_in(tmp_path, CACHING.replace("KEPT", "v"))


SLIDING = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.kv_cache = None

    def forward(self, x, use_kv_cache: bool):
        q, k, v = self.q(x), self.k(x), self.v(x)  # the sequence length is 1 once the cache is filled
        filled = self.kv_cache is not None
        if use_kv_cache:
            if filled:  # WORDS
                k = torch.cat([self.kv_cache[0], k], dim=1)[:, 1:]
                v = torch.cat([self.kv_cache[1], v], dim=1)[:, 1:]
            self.kv_cache = k, v
        return F.scaled_dot_product_attention(q, k, v, is_causal=CAUSAL)
"""


def test_a_cache_that_slides_drops_its_oldest_token(tmp_path):
    slides = SLIDING.replace("WORDS", "slide the context by one token")
    right = "not (use_kv_cache and filled)"
    assert not bugs_in(tmp_path, slides.replace("CAUSAL", right))
    assert [*bugs_in(tmp_path, slides.replace("CAUSAL", "True"))] == ["causal-alignment"]
    silent = SLIDING.replace("WORDS", "").replace("CAUSAL", right)
    assert [*bugs_in(tmp_path, silent)] == ["cache-mismatch"]


GUARDED = """allow = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask[:, None, None] > 0
        allow = allow.expand_as(scores)
        scores = scores.masked_fill(~allow, -1e30)
        some = ROWS
        scores = torch.where(some, scores, torch.zeros_like(scores))"""


def test_scores_of_queries_that_see_nothing_may_be_zero(tmp_path):
    source = self_attention(GUARDED).replace("(self, x)", "(self, x, mask=None)")
    assert not bugs_in(tmp_path, source.replace("ROWS", "allow.any(-1, keepdim=True)"))
    assert [*bugs_in(tmp_path, source.replace("ROWS", "allow"))] == ["mask-fill-too-small"]


MASKED_TWICE = """if region_mask is not None:
            mask = (region_mask >= 0.5)[:, None, None]
            weights = scores.masked_fill(~mask, -1e4).softmax(-1) AGAIN
            return self.out((weights @ v).transpose(1, 2).flatten(2))"""


def test_a_weak_fill_hides_keys_whose_weights_are_multiplied_with_the_mask_again(tmp_path):
    source = self_attention(MASKED_TWICE).replace("(self, x)", "(self, x, region_mask=None)")
    again = "* mask\n            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-8)"
    assert not bugs_in(tmp_path, source.replace("AGAIN", again))
    assert [*bugs_in(tmp_path, source.replace("AGAIN", ""))] == ["mask-fill-too-small"]


TARGETS = """# is_target: (batch, n) bool mask, True for targets, which do not see each other.
        pairs = is_target[:, None, :, None] & is_target[:, None, None, :]
        scores = scores.masked_fill(pairs & ~torch.eye(x.shape[1], dtype=torch.bool), -1e30)"""


def test_an_argument_that_is_no_padding_may_hide_other_tokens(tmp_path):
    source = self_attention(TARGETS).replace("(self, x)", "(self, x, is_target)")
    with written(tmp_path, source) as target:
        report = check(target)
    assert not report.bugs
    assert "mask-broadcast" in [it.name for it in report.findings]


DOCUMENTED = '''"""Attends.

        Args:
            x: Tokens (B, T, C).
            mask: [B, T] or [B, T, T], True for visible keys.
        """'''


def test_each_of_two_documented_shapes_of_a_mask_fits(tmp_path):
    edit = """if mask is not None:
            mask = mask[:, None, None] if mask.dim() == 2 else MASK
            scores = scores.masked_fill(~mask.bool(), -1e30)"""
    source = self_attention(edit).replace(
        "(self, x):", f"(self, x, mask=None):\n        {DOCUMENTED}"
    )
    assert not bugs_in(tmp_path, source.replace("MASK", "mask[:, None]"))
    assert [*bugs_in(tmp_path, source.replace("MASK", "mask"))] == ["mask-broadcast"]


ROTATED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_dim, num_heads=8):
        super().__init__()
        self.heads = num_heads
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)
        size = hidden_dim // num_heads
        angles = torch.arange(16)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, context=None, causal: bool = True):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if context is None:
            cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
            q, k = (it * cos + self.half(it) * sin for it in (q, k))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if causal and context is None:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def half(self, x):
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)
"""


def test_a_class_of_eight_heads_gets_an_even_head_size(tmp_path):
    with written(tmp_path, ROTATED) as target:
        report = check(target)
    assert not report.bugs
    assert {it.name: it.value for it in report.facts}["causal"] == "yes"


EXPERTS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.expert = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        rows = x.flatten(0, 1)
        NAME = len(rows) // 2
        chosen = rows.sum(-1).argsort()[:NAME]
        return rows.index_add(0, chosen, self.expert(rows[chosen])).view_as(x)
"""


def test_an_expert_may_leave_out_the_tokens_of_other_sequences(tmp_path):
    assert "batch-mixed" in bugs_in(tmp_path, EXPERTS.replace("NAME", "half"))
    assert "batch-mixed" not in bugs_in(tmp_path, EXPERTS.replace("NAME", "capacity"))


def test_a_shape_may_stay_where_it_is(tmp_path):
    edit = "scores = scores + torch.zeros(()).expand(self.NAME.add(0).tolist())"
    kept = self_attention(edit, "self.NAME = torch.ones(1, dtype=torch.int64)")
    assert [*bugs_in(tmp_path, kept.replace("NAME", "table"))] == ["table-not-a-buffer"]
    assert not bugs_in(tmp_path, kept.replace("NAME", "input_shape"))


SUMMED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, norm=False):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.norm = norm

    def forward(self, x, attention_mask=None):
        q, k, v = self.q(x).exp(), self.k(x).exp(), self.v(x)
        if attention_mask is not None:
            v = v * attention_mask[..., None]
        return summed(q, k, v, normalize=NORM)


def summed(q, k, v, normalize):
    state = q.new_zeros(len(q), q.shape[-1], v.shape[-1])
    rows = []
    for start in range(0, q.shape[1], 64):
        part = slice(start, start + 64)
        weights = (q[:, part] @ k[:, part].mT).tril()
        rows.append(q[:, part] @ state + weights @ v[:, part])
        state = state + k[:, part].mT @ v[:, part]
    rows = torch.cat(rows, 1)
    if normalize:
        rows = rows / (q * k.cumsum(1)).sum(-1, keepdim=True)
    return rows
"""


def test_the_last_sum_of_a_loop_is_no_lost_mask(tmp_path):
    with written(tmp_path, SUMMED.replace("NORM", "True")) as target:
        assert [it.name for it in check(target).bugs] == ["padding-leak"]


def test_a_flag_that_is_handed_to_a_function_is_set_the_other_way_round(tmp_path):
    with written(tmp_path, SUMMED.replace("NORM", "self.norm")) as target:
        report = check(target)
    assert "norm=True" in {it.name: it.value for it in report.facts}["also with"]
    assert "padding-leak" in [it.name for it in report.findings]


IDS = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab_size, d_model, max_block_size):
        super().__init__()
        self.block_size = max_block_size
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T = x.shape
        assert T <= self.block_size, "too long"
        x = self.embedding(x)
        q, k = self.q(x), self.k(x)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ x
"""


def test_the_largest_block_holds_all_tokens_of_the_check(tmp_path):
    with written(tmp_path, IDS.replace("class Model", "class Attention")) as target:
        assert not [it for it in check(target).findings if it.level in ("bug", "suspicious")]


SWITCHED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.register_buffer("k_cache", None, persistent=False)
        self.register_buffer("v_cache", None, persistent=False)

    def forward(self, x, cache=False):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if cache and self.k_cache is not None:
            k, v = torch.cat([self.k_cache, k], 1), torch.cat([self.v_cache, VALUES], 1)
        if cache:
            self.k_cache, self.v_cache = k, v
        T, S = q.shape[1], k.shape[1]
        future = torch.ones(T, S, dtype=torch.bool).triu(1 + S - T)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ v
"""


def test_a_flag_named_cache_switches_the_cache_on(tmp_path):
    assert not bugs_in(tmp_path, SWITCHED.replace("VALUES", "v"))
    assert [*bugs_in(tmp_path, SWITCHED.replace("VALUES", "k"))] == ["cache-mismatch"]


BIASED = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        T = x.shape[1]
        bias = torch.zeros(T, T, dtype=torch.float32)
        bias = bias.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), attn_mask=bias)
"""


def test_a_float32_mask_of_the_fused_attention_is_no_wrong_gradient(tmp_path):
    assert not bugs_in(tmp_path, BIASED)


LATENT = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, num_heads, kv_latent_dim=16):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.query = nn.Linear(d_model, num_heads * kv_latent_dim)
        self.down = nn.Linear(d_model, kv_latent_dim)
        self.up = nn.Linear(kv_latent_dim, d_model)

    def forward(self, x):
        latents = self.down(x)
        q = self.query(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        weights = (q @ KEYS.mT[:, None] / self.head_dim**0.5).softmax(-1)
        v = self.up(latents).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return (weights @ v).transpose(1, 2).flatten(2)
"""


def test_latents_are_compared_at_the_scale_of_the_heads_that_they_stand_for(tmp_path):
    assert not bugs_in(tmp_path, LATENT.replace("KEYS", "latents"))
    others = LATENT.replace("KEYS", "self.other(x)").replace(
        "self.up =", "self.other = nn.Linear(d_model, kv_latent_dim)\n        self.up ="
    )
    assert [*bugs_in(tmp_path, others)] == ["scale-wrong"]


def test_one_row_of_positions_may_be_a_wrong_guess(tmp_path):
    source = self_attention(
        "scores = scores + (q @ self.pos(pos_embedding).view(1, -1, self.heads, 6).permute(0, 2, 3, 1))"
        "[..., : scores.shape[-1] // 2 + 1]",
        "self.pos = nn.Linear(dim, dim)",
    ).replace("(self, x)", "(self, x, pos_embedding)")
    assert "weights-wrong" not in bugs_in(tmp_path, source)


SIGNAL = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, audio_dim, text_dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(audio_dim, audio_dim)
        self.k, self.v = nn.Linear(text_dim, audio_dim), nn.Linear(text_dim, audio_dim)

    def forward(self, x, context):
        B, C, T = x.shape
        q, k, v = self.q(x.transpose(1, 2)), self.k(context), self.v(context)
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in (q, k, v))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(DIM)
        out = torch.einsum("bhqk,bhVALUESd->bhqd", weights, v)
        return out.transpose(1, 2).flatten(2).transpose(1, 2)
"""


def test_a_signal_whose_channels_come_first_attends_to_rows_of_a_text(tmp_path):
    source = SIGNAL.replace("VALUES", "k")
    assert not bugs_in(tmp_path, source.replace("DIM", "-1"))
    assert [*bugs_in(tmp_path, source.replace("DIM", "2"))] == ["softmax-wrong-dim"]


def test_weights_and_values_are_summed_over_the_same_letter(tmp_path):
    source = SIGNAL.replace("DIM", "-1")
    assert bugs_in(tmp_path, source.replace("VALUES", "v")) == {
        "attention-ignored": 'out = torch.einsum("bhqk,bhvd->bhqd", weights, v)'
    }


LAID_OUT = """from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4, bias=True, scaled=True, batch_first=False):
        super().__init__()
        self.heads, self.batch_first = heads, batch_first
        self.qkv = nn.Linear(dim, 3 * dim)
        self.bias = nn.Linear(dim, dim) if bias else None
        self.scale = (dim // heads) ** -0.5 if scaled else 1.0

    def forward(self, x):
        if self.batch_first:
            x = x.transpose(0, 1)
        T, B, D = x.shape
        q, k, v = self.qkv(x).view(T, B * self.heads, 3, -1).transpose(0, 1).unbind(2)
        context = (q @ k.mT * self.scale).softmax(-1) @ v
        if self.batch_first:
            return context.MERGED
        return context.transpose(0, 1).reshape(T, B, D)
"""


def test_both_layouts_are_checked_first(tmp_path):
    right = "unflatten(0, (B, -1)).transpose(1, 2).reshape(B, T, D)"
    assert not bugs_in(tmp_path, LAID_OUT.replace("MERGED", right))
    wrong = LAID_OUT.replace("MERGED", "reshape(B, T, D)")
    assert bugs_in(tmp_path, wrong) == {"heads-mixed-merge": "return context.reshape(B, T, D)"}
