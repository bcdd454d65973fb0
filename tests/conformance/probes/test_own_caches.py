"""Caches of a target's own kind: made by its method, counted by the caller, or the earlier tokens themselves."""

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def heads(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def attend(self, q, k, v, past):
        Tq, Tk = q.shape[2], k.shape[2]
        scores = q @ k.mT * q.shape[-1] ** -0.5
        distance = (torch.arange(Tk) - torch.arange(OFFSET, OFFSET + Tq)[:, None]).abs()
        scores = scores - self.slopes() * distance
        seen = torch.ones(Tq, Tk, dtype=torch.bool).tril(past)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))

    def slopes(self):
        return 2.0 ** -torch.arange(1, self.n_heads + 1)[:, None, None]
"""
MADE = """
    def empty_cache(self, batch_size, max_len):
        size = self.wk.out_features
        return [torch.zeros(batch_size, max_len, size) for _ in range(2)]

    def forward(self, x, cache=None, n_past=0):
        '''n_past: the number of tokens that the cache holds'''
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        past = n_past
        if cache is not None:
            end = past + x.shape[1]
            cache[0][:, past:end], cache[1][:, past:end] = k, v
            k, v = cache[0][:, :end], cache[1][:, :end]
        return self.attend(self.heads(q), self.heads(k), self.heads(v), past)
"""
COUNTED = """
    def forward(self, x, decoding_state=None):
        q, k, v = self.heads(self.wq(x)), self.heads(self.wk(x)), self.heads(self.wv(x))
        past = 0
        if decoding_state is not None:
            past = decoding_state.seen_tokens
            if past:
                k = torch.cat((decoding_state.kept[0], k), 2)
                v = torch.cat((decoding_state.kept[1], v), 2)
            decoding_state.kept = (k, v)
        return self.attend(q, k, v, past)


class DecodingState:
    def __init__(self):
        self.seen_tokens = 0
        self.kept = None
"""
EARLIER = """
    def forward(self, x, prev_segment=None):
        whole = x if prev_segment is None else torch.cat((prev_segment, x), 1)
        past = whole.shape[1] - x.shape[1]
        k, v = self.heads(self.wk(whole)), self.heads(self.wv(whole))
        return self.attend(self.heads(self.wq(x)), k, v, past)
"""


@pytest.mark.parametrize("forward", [MADE, COUNTED, EARLIER])
@pytest.mark.parametrize(("offset", "line"), [("past", None), ("0", "torch.arange(0, 0 + Tq)")])
def test_positions_are_counted_from_the_first_token(tmp_path, forward, offset, line):
    source = HEAD.replace("OFFSET", offset) + forward
    with written(tmp_path, source) as target:
        report = check(target, causal=True)
    found = [bug.place.source if bug.place else "" for bug in report.bugs]
    assert "cache" in {fact.name for fact in report.facts}
    assert len(found) == (line is not None)
    assert all(line in source for source in found)


def test_a_number_that_counts_no_tokens_is_no_position(tmp_path):
    """The number of a layer is 0 by default, too."""
    source = (HEAD + MADE).replace("OFFSET", "past").replace("n_past=0", "layer_pos=0")
    source = source.replace("n_past: the number of tokens that the cache holds", "the layer")
    source = source.replace("past = n_past", "past = 0 * layer_pos")
    with written(tmp_path, source) as target:
        report = check(target, causal=True)
    assert "mask-unused" not in {bug.name for bug in report.bugs}


CALLER_MASKS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))
        self.k_cache = self.v_cache = None

    def forward(self, x, freqs_cis, mask=None, start_pos=0):
        q, k, v = (w(x).unflatten(-1, (self.n_heads, -1)) for w in (self.wq, self.wk, self.wv))
        turns = freqs_cis[start_pos : start_pos + x.shape[1], None]
        q, k = (turned(it, turns) for it in (q, k))
        if KEPT:
            if start_pos > 0 and self.k_cache is not None:
                k = torch.cat((self.k_cache, k), 1)
                v = torch.cat((self.v_cache, v), 1)
            self.k_cache, self.v_cache = k, v
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        context = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return self.wo(context.flatten(2))


def turned(x, turns):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)
"""


@pytest.mark.parametrize(("kept", "names"), [("True", []), ("start_pos > 0", ["cache-mismatch"])])
def test_a_cache_keeps_the_prompt_though_the_caller_masks_and_hands_on_whole_tables(
    tmp_path, kept, names
):
    with written(tmp_path, CALLER_MASKS.replace("KEPT", kept)) as target:
        report = check(target)
    assert any(it.name == "cache" and "start_pos" in it.value for it in report.facts)
    assert [it.name for it in report.bugs] == names


LISTED = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, n_heads=4):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, kv_cache=None):
        parts = self.qkv(x).unflatten(-1, (3, self.n_heads, self.head_dim))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            k, v = torch.cat((kv_cache[0], k), 2), torch.cat((kv_cache[1], v), 2)
            kv_cache[:] = [k, v]
        Tq, Tk = q.shape[2], k.shape[2]
        seen = torch.ones(Tq, Tk, dtype=torch.bool).tril(PAST)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(context.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("past", "names"), [("Tk - Tq", []), ("0", ["causal-alignment"])])
def test_a_cache_may_be_a_list_of_keys_and_values_that_the_target_replaces(tmp_path, past, names):
    with written(tmp_path, LISTED.replace("PAST", past)) as target:
        assert [it.name for it in check(target).bugs] == names


# Keys are kept in the module, which a text of several tokens must begin anew.
KEPT = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, qkv_layer, dropout: nn.Module, o_proj, dev, max_batch_size=1, max_len=64):
        super().__init__()
        self.n_heads, self.size = n_heads, d_model // n_heads
        self.qkv_proj, self.o_proj, self.dropout = qkv_layer, o_proj, dropout
        dtype = next(o_proj.parameters()).dtype
        shape = max_batch_size, n_heads, max_len, self.size
        self.register_buffer("k", torch.zeros(shape, device=dev, dtype=dtype), persistent=False)
        self.register_buffer("v", torch.zeros(shape, device=dev, dtype=dtype), persistent=False)
        self.start_pos = 0

    def forward(self, hidden_states):
        B, T, C = hidden_states.shape
        if T > 1:
            self.start_pos = 0
        rows = slice(self.start_pos, self.start_pos + T)
        q, k, v = self.qkv_proj(hidden_states).view(B, T, 3, self.n_heads, self.size).permute(2, 0, 3, 1, 4)
        self.k[:B, :, rows], self.v[:B, :, rows] = k, v
        if T == 1:
            k, v = self.k[:B, :, : rows.stop], self.v[:B, :, : rows.stop]
        seen = torch.ones(T, k.shape[2], dtype=torch.bool).tril(k.shape[2] - T)
        weights = (q @ k.mT * self.size**-0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        self.start_pos += T
        return self.o_proj((self.dropout(weights) @ v).transpose(1, 2).flatten(2))
"""


def test_a_text_begins_anew_where_a_module_keeps_keys_for_single_tokens(tmp_path):
    with written(tmp_path, KEPT) as attention:
        assert not check(attention).bugs
    with written(tmp_path, KEPT.replace("if T > 1:", "if self.start_pos + T > 64:")) as attention:
        (bug,) = check(attention).bugs
    assert bug.place is not None
    assert (bug.name, bug.place.source) == ("stale-state", "self.start_pos = 0")
