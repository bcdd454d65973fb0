"""How any attention is called: layouts, masks, caches, sizes; and that nothing of the caller's is touched."""

from __future__ import annotations

import functools
import random
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful.conformance.calling.isolation import undisturbed, within
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.subject import Subject, find_subject
from heedful.conformance.calling.target import TargetError
from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT
from heedful.masks import Causal
from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.textbook import causal, multi_head, self_attention, simplified

BASES = Path(__file__).parent / "corpus" / "bases"
BATCH_FIRST, TOKENS_FIRST, UNBATCHED, IDS = "(B, T, C)", "(T, B, C)", "(T, C)", "(B, T) ids"
HEADS_FIRST, HEADS_LAST = "(B, H, T, D)", "(B, T, H, D)"
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


def attend(query, key, value, hidden=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value


class Projected(nn.Module):
    """One head; the masks and caches of its subclasses differ."""

    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def split(self, x):
        return self.qkv(x).chunk(3, dim=-1)

    def forward(self, x):
        return attend(*self.split(x))


class TokensFirst(Projected):
    def forward(self, x):
        T, B, C = x.shape
        q, k, v = (it.transpose(0, 1) for it in self.split(x))
        return attend(q, k, v).transpose(0, 1).reshape(T, B, C)


class Wrapped(nn.Module):
    """An attention of torch's that takes tokens first, and nothing that says so."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, nhead)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Assuming(Wrapped):
    """The same in a module that says otherwise: a bug, which the check is to find."""

    def forward(self, x):
        B, T, C = x.shape
        return self.attention(x, x, x)[0].reshape(B, T, C)


class Unbatched(Projected):
    def forward(self, x):
        q, k, v = self.split(x)
        return (q @ k.transpose(0, 1)).softmax(-1) @ v


class Weighted(Projected):
    """Keeps its last weights, and returns them beside the output."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.last = [torch.zeros(1)]

    def forward(self, x):
        q, k, v = self.split(x)
        weights = (q @ k.mT).softmax(-1)
        self.last = [weights]
        return weights @ v, weights


class Turned(Projected):
    """Rotary angles as a table of complex numbers, a softmax in float32."""

    def __init__(self, d_model, max_seq_len):
        super().__init__(d_model)
        angles = torch.arange(max_seq_len)[:, None] / 10 ** torch.arange(d_model // 2)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        q, k, v = self.split(x)
        turns = self.turns[: x.shape[1]]
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(it.unflatten(-1, (-1, 2)).contiguous()) * turns
            )
            for it in (q, k)
        )
        scores = q.flatten(-2) @ k.flatten(-2).mT
        return scores.float().softmax(-1).type_as(v) @ v


class Misspelt(Projected):
    def forward(self, x):
        q, k, v = self.split(x)  # noqa: RUF059
        return (q @ kk.mT).softmax(-1) @ v  # noqa: F821


@pytest.mark.parametrize(
    ("target", "layout", "width"),
    [
        (Projected, BATCH_FIRST, 24),
        (Projected(10), BATCH_FIRST, 10),
        (TokensFirst, TOKENS_FIRST, 24),
        (Unbatched, UNBATCHED, 24),
        (Wrapped, TOKENS_FIRST, 24),
        (Assuming, BATCH_FIRST, 24),
        (Weighted, BATCH_FIRST, 24),
        (nn.MultiheadAttention(12, 4), TOKENS_FIRST, 12),
        (nn.MultiheadAttention(12, 4, batch_first=True), BATCH_FIRST, 12),
        (nn.TransformerEncoderLayer(12, 4, 20), TOKENS_FIRST, 12),
        (nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), BATCH_FIRST, 12),
        (nn.TransformerDecoderLayer(12, 4, 20, batch_first=True), BATCH_FIRST, 12),
        (self_attention.SelfAttentionV1, BATCH_FIRST, 24),
        (causal.CausalAttention, BATCH_FIRST, 24),
        (multi_head.MultiHeadAttention, BATCH_FIRST, 24),
        (multi_head.MultiHeadAttentionWrapper, BATCH_FIRST, 24),
        (MultiHeadAttention(12, 4, num_kv_heads=2), BATCH_FIRST, 12),
        (MultiHeadAttention(12, 4, d_context=12), BATCH_FIRST, 12),
        (simplified.attend, BATCH_FIRST, 24),
        (heedful.attention, HEADS_FIRST, 6),
        (F.scaled_dot_product_attention, HEADS_FIRST, 6),
        (lambda Q, K, V: attend(Q, K, V), HEADS_FIRST, 6),
        (lambda q, k, v: (q @ k.transpose(0, 1)).softmax(1) @ v, UNBATCHED, 6),
        (lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v), BATCH_FIRST, 6),
    ],
    ids=lambda it: it if isinstance(it, str) else getattr(it, "__name__", type(it).__name__),
)
def test_the_layout_is_found(target, layout, width):
    subject = find_subject(target)
    assert subject.layout == layout
    B = 2 if subject.batched else 1
    inputs = subject.draw(B, 7)
    for tokens in inputs.arguments.values():
        assert tokens.shape[:2] == (B, 7)
        assert tokens.shape[-1] == width
    output = subject.run(inputs)
    assert output.shape[:2] == (B, 7)
    assert output.dtype == torch.float64
    assert torch.equal(subject.record(inputs).output, output)


def test_heads_that_come_last_are_read_off_the_source():
    def attention(query, key, value):
        B, T, H, D = query.shape  # noqa: RUF059 - tells the layout
        q, k, v = (it.transpose(1, 2) for it in (query, key, value))
        return attend(q, k, v).transpose(1, 2)

    subject = find_subject(attention)
    assert subject.layout == HEADS_LAST
    inputs = subject.draw(2, 7)
    given = [it.transpose(1, 2) for it in inputs.arguments.values()]
    expected = F.scaled_dot_product_attention(*given).transpose(1, 2)
    torch.testing.assert_close(subject.run(inputs), expected)


def test_batches_agree_with_their_entries_in_every_layout():
    for target in (Projected, TokensFirst, nn.MultiheadAttention(12, 4), attend):
        subject = find_subject(target)
        inputs = subject.draw(2, 7)
        alone = [subject.run(inputs.entry(b)) for b in range(2)]
        torch.testing.assert_close(subject.run(inputs), torch.cat(alone))


def test_a_target_that_computes_in_float32_is_run_in_float32():
    assert find_subject(Projected).dtype == torch.float64
    assert find_subject(Turned).dtype == torch.float32


def test_complex_tables_stay_complex():
    module = find_subject(Turned).module
    assert module is not None
    assert module.get_buffer("turns").is_complex()


def test_an_example_tells_what_names_do_not():
    def unusual(a, matrix, divisor):
        return (a @ matrix @ a.mT / divisor).softmax(-1) @ a

    with pytest.raises(ArgumentError, match=r"matrix.*example"):
        find_subject(unusual)
    subject = find_subject(unusual, example=(torch.randn(2, 5, 8), torch.randn(8, 8), 3.0))
    assert subject.run(subject.draw(2, 7)).shape == (2, 7, 8)
    tokens_first = find_subject(nn.MultiheadAttention(12, 4), example=torch.randn(5, 3, 12))
    assert tokens_first.layout == TOKENS_FIRST


class LastAlone(nn.Module):
    """A model that without targets gives the last token's logits only."""

    def __init__(self, vocab_size, n_embd):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, n_embd)

    def forward(self, idx, targets=None):
        x = self.embedding(idx)
        x = attend(x, x, x) @ self.embedding.weight.mT
        return (x[:, [-1]], None) if targets is None else (x, F.cross_entropy(x.mT, targets))


def test_a_model_is_brought_to_give_the_logits_of_every_token():
    subject = find_subject(LastAlone)
    assert subject.layout == IDS
    assert subject.run(subject.draw(2, 7)).shape == (2, 7, 37)


def test_an_error_within_the_target_is_told_from_a_call_that_does_not_fit():
    with pytest.raises(TargetError) as raised:
        find_subject(Misspelt)
    assert isinstance(raised.value.__cause__, NameError)


# -- building ------------------------------------------------------------------------------------------------------


@dataclass
class Config:
    n_embd: int
    n_head: int
    dropout: float = 0.0
    flavour: str = "plain"


class OfDataclass(Projected):
    def __init__(self, config: Config):
        super().__init__(config.n_embd)
        self.n_head, self.drop = config.n_head, nn.Dropout(config.dropout)


class OfDict(Projected):
    def __init__(self, cfg):
        super().__init__(cfg["emb_dim"])
        self.drop = nn.Dropout(cfg["drop_rate"])


class OfNames(Projected):
    def __init__(self, args):
        super().__init__(args.dim)
        self.flavour = args.flavour


def test_constructors_get_conventional_values_and_dropout_that_can_be_seen():
    subject = find_subject(multi_head.MultiHeadAttention)
    module = subject.module
    assert isinstance(module, multi_head.MultiHeadAttention)
    assert module.dropout.p > 0
    assert len({module.d_in, module.num_heads, module.head_dim, module.context_length}) == 4
    assert find_subject(OfDataclass).module.drop.p > 0  # pyright: ignore
    assert find_subject(OfDict).module.drop.p > 0  # pyright: ignore


@pytest.mark.parametrize(
    ("arguments", "heads", "width"),
    [({"d_out": 10}, 2, 10), ({"num_heads": 5}, 5, 30), ({"d_in": 3, "d_out": 4}, 4, 4)],
)
def test_what_is_not_given_fits_what_is(arguments, heads, width):
    module = find_subject(multi_head.MultiHeadAttention, arguments=arguments).module
    assert isinstance(module, multi_head.MultiHeadAttention)
    assert (module.num_heads, module.d_out) == (heads, width)


def test_what_cannot_be_guessed_is_asked_for_by_name():
    with pytest.raises(ArgumentError, match=r"flavour.*--with flavour=VALUE"):
        find_subject(OfNames)
    assert find_subject(OfNames, arguments={"flavour": "sweet"}).module.flavour == "sweet"  # pyright: ignore
    with pytest.raises(ArgumentError, match=r"colour.*d_model"):
        find_subject(Projected, arguments={"colour": 1})


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (Projected(4).forward, {}),
        (functools.partial(Projected(4)), {}),
        (Projected(4), {"d_model": 8}),
        (3, {}),
        (lambda: None, {}),
    ],
    ids=["method", "partial", "instance", "number", "no argument"],
)
def test_what_cannot_be_checked_is_refused(target, arguments):
    with pytest.raises(ArgumentError):
        find_subject(target, arguments=arguments)


def test_what_is_compiled_is_checked_as_it_was_written():
    assert find_subject(torch.compile(Projected(4))).name == "Projected"


def test_projections_of_zeros_are_drawn_anew_and_norms_stay():
    module = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)
    nn.init.zeros_(module.self_attn.out_proj.weight)
    copy = find_subject(module).module
    assert isinstance(copy, nn.TransformerEncoderLayer)
    assert copy.self_attn.out_proj.weight.all()
    assert (copy.norm1.weight == 1).all()
    assert not module.self_attn.out_proj.weight.any()


# -- masks ---------------------------------------------------------------------------------------------------------


class Kept(Projected):
    """attention_mask (B, T), 1 for what is real."""

    def forward(self, x, attention_mask=None):
        hidden = None if attention_mask is None else attention_mask[:, None] == 0
        return attend(*self.split(x), hidden)


class Subtracted(Projected):
    """The same by arithmetic, which takes no Boolean."""

    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None]) * -1e4
        return scores.softmax(-1) @ v


class Hidden(TokensFirst):
    """key_padding_mask (B, T), True for what is not real; tokens first."""

    def forward(self, x, key_padding_mask=None):
        T, B, C = x.shape  # noqa: RUF059 - tells the layout
        q, k, v = (it.transpose(0, 1) for it in self.split(x))
        hidden = None if key_padding_mask is None else key_padding_mask[:, None]
        return attend(q, k, v, hidden).transpose(0, 1)


class Contrary(Projected):
    """An attention_mask against its name's convention."""

    def forward(self, x, attention_mask=None):
        hidden = None if attention_mask is None else attention_mask[:, None] == 1
        return attend(*self.split(x), hidden)


class Added(Projected):
    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT
        return (scores if mask is None else scores + mask).softmax(-1) @ v


class Required(Projected):
    def forward(self, x, mask):
        return attend(*self.split(x), mask == 0)


class Lengths(Projected):
    def forward(self, x, lengths=None):
        hidden = None
        if lengths is not None:
            hidden = torch.arange(x.shape[1]) >= lengths[:, None, None]
        return attend(*self.split(x), hidden)


class Deaf(Projected):
    def forward(self, x, attention_mask=None):
        return attend(*self.split(x))


class Causally(Projected):
    """A padding mask beside causality."""

    def forward(self, x, padding_mask=None):
        T = x.shape[1]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        if padding_mask is not None:
            hidden = hidden | ~padding_mask[:, None]
        return attend(*self.split(x), hidden)


def padding_of(subject: Subject):
    it = subject.padding
    return None if it is None else (it.name, it.form, it.dtype, it.true_keeps)


@pytest.mark.parametrize(
    ("target", "padding"),
    [
        (Projected, None),
        (Kept, ("attention_mask", "(B, T)", torch.bool, True)),
        (Subtracted, ("attention_mask", "(B, T)", torch.int64, True)),
        (Hidden, ("key_padding_mask", "(B, T)", torch.bool, False)),
        (Contrary, ("attention_mask", "(B, T)", torch.bool, False)),
        (Added, ("mask", "(B, 1, T)", torch.float64, True)),
        (Required, ("mask", "(B, 1, T)", torch.bool, True)),
        (Lengths, ("lengths", "(B,)", torch.int64, True)),
        (Causally, ("padding_mask", "(B, T)", torch.bool, True)),
        (nn.MultiheadAttention(12, 4), ("key_padding_mask", "(B, T)", torch.bool, False)),
        (nn.TransformerEncoderLayer(12, 4, 20), ("src_key_padding_mask", "(B, T)", torch.bool, False)),
        (nn.TransformerDecoderLayer(12, 4, 20), ("tgt_key_padding_mask", "(B, T)", torch.bool, False)),
        (F.scaled_dot_product_attention, ("attn_mask", "(B, 1, 1, T)", torch.bool, True)),
        (MultiHeadAttention(12, 4), ("mask", "(B, 1, 1, T)", torch.bool, True)),
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)  # fmt: skip
def test_padding_is_told_so_that_a_padded_batch_equals_each_sample_alone(target, padding):
    subject = find_subject(target)
    assert padding_of(subject) == padding
    if padding is None:
        return
    inputs = subject.draw(2, 6)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    padded = subject.run(inputs, keep=keep)
    torch.testing.assert_close(padded[1:, :4], subject.run(inputs.entry(1).tokens(0, 4)))
    torch.testing.assert_close(padded[:1], subject.run(inputs.entry(0)))


@pytest.mark.parametrize(
    "target",
    [
        *(Added, Required, nn.MultiheadAttention(12, 4), nn.TransformerEncoderLayer(12, 4, 20)),
        *(
            F.scaled_dot_product_attention,
            heedful.attention,
            MultiHeadAttention(12, 4, causal=False),
        ),
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)
def test_queries_are_told_which_keys_they_see(target):
    subject = find_subject(target)
    inputs = subject.draw(2, 6)
    told = subject.run(inputs, attend=CAUSAL)
    later = subject.run(inputs.changed(0, 4), attend=CAUSAL)
    torch.testing.assert_close(told[0, :4], later[0, :4])
    assert (told[0, 4:] != later[0, 4:]).all()
    # both at once, by one argument or by two
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    both = subject.run(inputs, keep=keep, attend=CAUSAL)
    torch.testing.assert_close(both[1, :4], told[1, :4])


def test_a_mask_that_is_accepted_and_ignored_is_known_as_such():
    padding = find_subject(Deaf).padding
    assert padding is not None
    assert not padding.effective
    assert padding.declared is True


def test_lengths_cannot_say_that_padding_is_on_the_left():
    subject = find_subject(Lengths)
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    with pytest.raises(ArgumentError, match="first"):
        subject.run(subject.draw(2, 6), keep=keep)


def switchable(query, key, value, is_causal=False):
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


@pytest.mark.parametrize(
    "target",
    [
        *(switchable, nn.MultiheadAttention(12, 4), nn.TransformerEncoderLayer(12, 4, 20)),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), 2),
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)
@pytest.mark.parametrize("causal", [None, False, True])
def test_a_target_is_made_causal_if_it_is_to_be(target, causal):
    subject = find_subject(target, causal=causal)
    inputs = subject.draw(2, 6)
    earlier, later = (subject.run(it)[0, :5] for it in (inputs, inputs.changed(0, 5)))
    assert torch.allclose(earlier, later) == bool(causal)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    if subject.padding is not None:
        alone = subject.run(inputs.entry(1).tokens(0, 4))
        torch.testing.assert_close(subject.run(inputs, keep=keep)[1:, :4], alone)


# -- caches --------------------------------------------------------------------------------------------------------


def causal_with(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    return attend(q, k, v, torch.ones(T, S, dtype=torch.bool).triu(S - T + 1))


class Grown(Projected):
    """Keys so far go out as a tuple and come in again."""

    def forward(self, x, past_kv=None):
        q, k, v = self.split(x)
        if past_kv is not None:
            k, v = (torch.cat(pair, dim=1) for pair in zip(past_kv, (k, v), strict=True))
        return causal_with(q, k, v), (k, v)


class Dictionary(Projected):
    """Keys so far lie in a dictionary of the caller's."""

    def forward(self, x, cache=None):
        q, k, v = self.split(x)
        if cache is not None:
            k, v = (
                torch.cat([cache[n], it], 1) if n in cache else it for n, it in (("k", k), ("v", v))
            )
            cache["k"], cache["v"] = k, v
        return causal_with(q, k, v)


class Slots(Projected):
    """Slots in the module itself, told a start."""

    def __init__(self, dim, max_batch_size, max_seq_len):
        super().__init__(dim)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(max_batch_size, max_seq_len, dim))

    def forward(self, x, start_pos=0):
        q, k, v = self.split(x)
        B, stop = x.shape[0], start_pos + x.shape[1]
        self.k_cache[:B, start_pos:stop], self.v_cache[:B, start_pos:stop] = k, v
        return causal_with(q, self.k_cache[:B, :stop], self.v_cache[:B, :stop])


class Flagged(Projected):
    """Keys so far stay in the module while a flag says so."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.cache = None

    def forward(self, x, use_cache=False):
        q, k, v = self.split(x)
        if use_cache:
            if self.cache is not None:
                k, v = (torch.cat(pair, 1) for pair in zip(self.cache, (k, v), strict=True))
            self.cache = (k, v)
        return causal_with(q, k, v)


class Passed(Projected):
    """Slots of the caller's, (B, H, capacity, D), for keys and values apart."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model)
        self.n_heads, self.head_dim = n_heads, d_model // n_heads

    def forward(self, x, k_cache=None, v_cache=None, start_pos=0):
        B, T, C = x.shape
        q, k, v = (it.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for it in self.split(x))
        if k_cache is not None and v_cache is not None:
            k_cache[:, :, start_pos : start_pos + T] = k
            v_cache[:, :, start_pos : start_pos + T] = v
            k, v = (it[:, :, : start_pos + T] for it in (k_cache, v_cache))
        return causal_with(q, k, v).transpose(1, 2).reshape(B, T, C)


class Expected(Slots):
    """As Llama's first code: slots in the module, and a mask that the caller makes."""

    def forward(self, x, start_pos, mask):
        q, k, v = self.split(x)
        B, stop = x.shape[0], start_pos + x.shape[1]
        self.k_cache[:B, start_pos:stop], self.v_cache[:B, start_pos:stop] = k, v
        scores = q @ self.k_cache[:B, :stop].mT
        if mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ self.v_cache[:B, :stop]


class Broken(Grown):
    """Appends along the features."""

    def forward(self, x, past_kv=None):
        q, k, v = self.split(x)
        if past_kv is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past_kv, (k, v), strict=True))
        return causal_with(q, k, v), (k, v)


def small_gpt(family):
    sizes = {"vocab_size": 19, "context_length": 16, "d_model": 12, "num_layers": 2, "num_heads": 2}
    return GPT(family(**sizes, num_kv_heads=1, d_mlp=20))


@pytest.mark.parametrize(
    ("target", "kind", "argument"),
    [
        (Grown, "grown", "past_kv"),
        (Dictionary, "object", "cache"),
        (Slots, "buffers", "start_pos"),
        (Flagged, "buffers", "use_cache"),
        (Passed, "object", "k_cache, v_cache"),
        (Expected, "buffers", "start_pos"),
        (MultiHeadAttention(12, 2, rotary=RotaryEmbedding(6)), "object", "cache"),
        (MultiHeadAttention(12, 2, window=3), "object", "cache"),
        (small_gpt(GPTConfig.gpt2), "object", "caches"),
        (small_gpt(GPTConfig.llama), "object", "caches"),
    ],
    ids=lambda it: it if isinstance(it, str) else getattr(it, "__name__", type(it).__name__),
)
def test_chunks_with_a_cache_equal_one_run(target, kind, argument):
    subject = find_subject(target)
    assert subject.cache_use is not None
    assert (subject.cache_use.kind, subject.cache_use.argument) == (kind, argument)
    inputs = subject.draw(2, 7)
    whole = subject.run(inputs)
    for sizes in ([6, 1], [3, 3, 1], [1] * 7):
        pieces = [it.output for it in subject.run_in_chunks(inputs, sizes)]
        assert [it.shape[1] for it in pieces] == sizes
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    torch.testing.assert_close(subject.run(inputs), whole)  # nothing stayed behind


@pytest.mark.parametrize("target", [Slots, Passed, MultiHeadAttention(12, 2)], ids=repr)
def test_unused_slots_are_filled_with_what_is_asked_for(target):
    subject = find_subject(target)
    inputs = subject.draw(2, 7)
    filled = subject.run_in_chunks(inputs, [4, 3], unused=float("nan"))
    torch.testing.assert_close(torch.cat([it.output for it in filled], 1), subject.run(inputs))
    seen = [it for it in filled[0].values.values() if it.is_floating_point() and it.isnan().any()]
    assert seen, "no slot was NaN"


def test_what_sees_later_tokens_has_no_use_for_a_cache():
    assert find_subject(MultiHeadAttention(12, 2, causal=False)).cache_use is None


def test_a_cache_that_breaks_is_a_cache():
    subject = find_subject(Broken)
    assert subject.cache_use is not None
    with pytest.raises(RuntimeError):
        subject.run_in_chunks(subject.draw(2, 6), [4, 2])


def test_a_cache_of_the_callers_own_making():
    class Pair:
        def __init__(self, batch, capacity):
            self.k, self.v = torch.zeros(2, batch, 0, 24, dtype=torch.float64)

    class Own(Projected):
        def forward(self, x, memo_cache=None, cache=None):
            q, k, v = self.split(x)
            if cache is not None:
                cache.k, cache.v = torch.cat([cache.k, k], 1), torch.cat([cache.v, v], 1)
                k, v = cache.k, cache.v
            return causal_with(q, k, v)

    subject = find_subject(Own, cache=Pair)
    inputs = subject.draw(2, 6)
    pieces = [it.output for it in subject.run_in_chunks(inputs, [4, 2])]
    torch.testing.assert_close(torch.cat(pieces, 1), subject.run(inputs))


# -- lengths -------------------------------------------------------------------------------------------------------


class Learned(Projected):
    def __init__(self, d_model, most):
        super().__init__(d_model)
        self.positions = nn.Parameter(torch.randn(most, d_model))

    def forward(self, x):
        return super().forward(x + self.positions[: x.shape[1]])


@pytest.mark.parametrize(
    ("target", "longest"),
    [
        (Projected(24), None),
        (Learned(24, 9), 9),
        (Slots(24, 3, 11), 11),
        (causal.CausalAttention(6, 6, context_length=13), 13),
        (small_gpt(GPTConfig.gpt2), 16),
    ],
)
def test_the_longest_input_is_known(target, longest):
    assert find_subject(target).max_length == longest


# -- the attentions of the corpus, and of transformers -------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(it.stem for it in BASES.glob("*.py")))
def test_attentions_as_people_write_them_are_called(file):
    chosen = ":MultiHead" if file == "listed" else ""  # of the two modules in it
    with loaded(f"{BASES / file}.py{chosen}") as target:
        subject = find_subject(target)
        inputs = subject.draw(2, 7)
        observed = subject.record(inputs)
    named = {(it.kind, it.name) for step in observed.trace for it in step.inputs}
    assert {it for it in named if it[0] not in ("step", "constant")} <= observed.values.keys()
    assert observed.output.isfinite().all()


def of_transformers(name, implementation):
    transformers = pytest.importorskip(
        "transformers",
        reason="transformers is missing; install it with: pip install -e '.[transformers]'",
    )
    from transformers.models.bert import modeling_bert as bert
    from transformers.models.gpt2 import modeling_gpt2 as gpt2
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral

    sizes = {"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 20, "max_position_embeddings": 32}
    chosen = {"attn_implementation": implementation}
    grouped = {**sizes, **chosen, "num_key_value_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    small = {"vocab_size": 37, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32, **ends}
    configs = {
        "llama": transformers.LlamaConfig(**grouped),
        "mistral": transformers.MistralConfig(**grouped, sliding_window=3),
        "gpt2": transformers.GPT2Config(**small, **chosen),
        "bert": transformers.BertConfig(**sizes, **chosen),
    }
    family, _, part = name.partition(" ")
    attentions = {
        "llama": lambda it: llama.LlamaAttention(it, 0),
        "mistral": lambda it: mistral.MistralAttention(it, 0),
        "gpt2": lambda it: gpt2.GPT2Attention(it, layer_idx=0),
        "bert": bert.BertAttention,
    }
    models = {
        "llama": transformers.LlamaForCausalLM,
        "mistral": transformers.MistralForCausalLM,
        "gpt2": transformers.GPT2LMHeadModel,
        "bert": transformers.BertModel,
    }
    return {"attention": attentions, "model": models}[part][family](configs[family])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("part", ["attention", "model"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "bert"])
def test_transformers(family, part, implementation):
    subject = find_subject(of_transformers(f"{family} {part}", implementation))
    assert subject.layout == (IDS if part == "model" else BATCH_FIRST)
    inputs = subject.draw(2, 6)
    whole = subject.run(inputs)
    later = subject.run(inputs.changed(0, 5))
    assert torch.allclose(whole[0, :5], later[0, :5], atol=1e-5) == (family != "bert")
    if (family, part) == ("mistral", "attention"):  # of three tokens, its own included
        earlier = subject.run(inputs.changed(0, 1))
        same = [torch.allclose(whole[0, t], earlier[0, t], atol=1e-6) for t in range(6)]
        assert same == [True, False, False, False, True, True]
    for keep in ([True] * 4 + [False] * 2, [False] * 2 + [True] * 4):
        real = torch.tensor(keep)
        padded = subject.run(inputs, keep=torch.stack([torch.ones_like(real), real]))
        start = keep.index(True)
        alone = subject.run(inputs.entry(1).tokens(start, start + 4))
        if part == "model" or start == 0 or family in ("gpt2", "bert"):
            torch.testing.assert_close(padded[1:, start : start + 4], alone, atol=1e-5, rtol=1e-4)
    if family == "bert":
        assert subject.cache_use is None
        return
    for sizes in ([4, 2], [1] * 6):
        pieces = [it.output for it in subject.run_in_chunks(inputs, sizes)]
        torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=1e-4)


# -- nothing of the caller's is touched ----------------------------------------------------------------------------


def test_the_original_is_never_run_and_stays_as_it_was():
    class Counting(Slots):
        calls = 0

        def forward(self, x, start_pos=0):
            self.calls += 1
            return super().forward(x, start_pos)

    module = Counting(24, 3, 11).train()
    before = {name: it.clone() for name, it in module.state_dict().items()}
    subject = find_subject(module)
    subject.run_in_chunks(subject.draw(2, 6), [4, 2])
    subject.run(subject.draw(2, 6)).sum().backward()
    assert module.calls == 0
    assert module.training
    assert all(it.grad is None for it in module.parameters())
    for name, it in module.state_dict().items():
        assert it.dtype == torch.float32
        assert torch.equal(it, before[name])


class Counting(Projected):
    """Counts its calls in a buffer, in place, and adds them to what it sees."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x * self.calls)


def test_every_run_begins_with_the_same_state_unless_it_is_to_last():
    subject = find_subject(Counting)
    inputs = subject.draw(2, 5)
    torch.testing.assert_close(subject.run(inputs), subject.run(inputs))
    lasting = subject.fresh(keep_state=True)
    assert not torch.equal(lasting.run(inputs), lasting.run(inputs))


def test_a_module_that_was_run_and_kept_its_result_is_copied():
    module = Weighted(24)
    module(torch.randn(2, 5, 24))
    assert find_subject(module).run(find_subject(module).draw(2, 4)).shape == (2, 4, 24)


def test_fresh_copies_are_pristine_cast_and_train_if_asked():
    subject = find_subject(multi_head.MultiHeadAttention)
    inputs = subject.draw(2, 7)
    torch.testing.assert_close(subject.fresh().run(inputs), subject.run(inputs))
    training = subject.fresh(train=True)
    assert not torch.equal(training.run(inputs), subject.run(inputs))
    low = subject.fresh(dtype=torch.bfloat16)
    assert low.run(low.draw(2, 7)).dtype == torch.bfloat16


def test_global_state_is_as_before(capsys):
    torch.manual_seed(3)
    settings = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    others = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    with undisturbed():
        torch.manual_seed(0)
        random.random()
        numpy.random.rand()
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1 + others[1])
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        print("from the target")
        warnings.warn("from the target, too", stacklevel=1)
    assert torch.equal(torch.get_rng_state(), settings[0])
    assert random.getstate() == settings[1]
    assert (numpy.random.get_state()[1] == settings[2]).all()
    assert others == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    assert not torch.are_deterministic_algorithms_enabled()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "from the target\n"


def test_finding_out_draws_nothing_from_the_callers_generator():
    before = torch.get_rng_state()
    with undisturbed():
        find_subject(multi_head.MultiHeadAttention)
    assert torch.equal(torch.get_rng_state(), before)


def for_ever():
    while True:
        time.sleep(0.001)


def test_a_time_limit_ends_what_would_not_end():
    started = time.perf_counter()
    with pytest.raises(TimeoutError), within(0.2):
        for_ever()
    assert time.perf_counter() - started < 2
    with within(0.2):
        pass
    time.sleep(0.3)  # what was done in time is not interrupted afterwards


def test_masks_of_our_own_function_are_kept_apart_from_its_causality():
    subject = find_subject(lambda query, key, value: heedful.attention(query, key, value, Causal()))
    assert subject.padding is None
    assert subject.attention_mask is None
