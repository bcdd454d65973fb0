"""Designs and bugs of attention classes that were checked as strangers had written them, in our own words."""

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in, self_attention

from heedful import check

pytestmark = pytest.mark.slow

# --- masks ------------------------------------------------------------------------------------------

MASK_OR_NONE = """if mask is None:
            mask = DEFAULT
        scores = scores + mask"""
CAUSAL = "torch.full(scores.shape[-2:], float('-inf')).triu(1)"
ALL_HIDDEN = "torch.zeros(scores.shape[-2:]).masked_fill(torch.tensor(True), float('-inf'))"


def test_a_mask_that_the_target_makes_itself_may_hide_no_row_of_keys(tmp_path):
    source = self_attention(MASK_OR_NONE.replace("DEFAULT", ALL_HIDDEN))
    source = source.replace("self, x)", "self, x, temper, mask=None)")
    source = source.replace("** -0.5", "** -0.5 + 0 * temper")
    with written(tmp_path, source) as target:
        (bug,) = (it for it in check(target).bugs if it.name == "output-not-finite")
    assert "without mask" in bug.case
    assert "masked_fill" in bug.place.source
    right = self_attention(MASK_OR_NONE.replace("DEFAULT", CAUSAL))
    assert not bugs_in(tmp_path, right.replace("self, x)", "self, x, mask=None)"))


BY_BLOCKS = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, block=3):
        super().__init__()
        self.block = block
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, mask=None):
        B, T, C = x.shape
        W = self.block
        missing = -T % W
        if mask is None:
            mask = x.new_zeros(B, 1, T)
        mask = F.pad(mask, (0, missing), value=1.0)
        EXPAND
        x = F.pad(x, (0, 0, 0, missing)).view(B, -1, W, C)
        starts = range(0, T + missing, W)
        masks = torch.stack([mask[:, i : i + W, i : i + W] for i in starts], 1)
        scores = self.query(x) @ self.key(x).mT * C**-0.5 - 1e9 * masks
        return (scores.softmax(-1) @ self.value(x)).view(B, -1, C)[:, :T]
"""
EXPAND = "mask = mask.expand(-1, T + missing, -1)"


def test_a_target_runs_with_the_mask_that_it_makes_itself(tmp_path):
    assert {*bugs_in(tmp_path, BY_BLOCKS.replace("EXPAND", "pass"))} == {"crashes"}


def test_the_last_token_may_be_alone_in_its_block(tmp_path):
    assert not bugs_in(tmp_path, BY_BLOCKS.replace("EXPAND", EXPAND))


IN_A_BRANCH = """if x.shape[1] > 10_000:
            scores.masked_fill(scores > 1, 0.0)"""


def test_a_dropped_masked_fill_is_named_though_its_branch_never_ran(tmp_path):
    bugs = bugs_in(tmp_path, self_attention(IN_A_BRANCH))
    assert bugs == {"mask-unused": "scores.masked_fill(scores > 1, 0.0)"}
    kept = IN_A_BRANCH.replace("scores.masked", "scores = scores.masked")
    assert not bugs_in(tmp_path, self_attention(kept))


OF_A_TUPLE = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.attention = nn.MultiheadAttention(dim, heads)

    def forward(self, inputs: tuple):
        x, mask = inputs
        masks = REPEATED
        return x + self.attention(x, x, x, need_weights=False, attn_mask=masks)[0], mask
"""


def test_a_mask_within_a_tuple_shows_all_tokens_at_first(tmp_path):
    wrong = OF_A_TUPLE.replace("REPEATED", "mask.repeat(self.heads, 1, 1)")
    assert bugs_in(tmp_path, wrong) == {"mask-broadcast": "masks = mask.repeat(self.heads, 1, 1)"}
    right = OF_A_TUPLE.replace("REPEATED", "mask.repeat_interleave(self.heads, 0)")
    assert not bugs_in(tmp_path, right)


REQUIRED_PADDING = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, ARGUMENTS):
        b, n, d = x.shape
        q, k, v = (it(x).view(b, n, self.heads, -1).transpose(1, 2) for it in (self.q, self.k, self.v))
        s = q @ k.mT / (d // self.heads) ** 0.5
        s = s.masked_fill(SPREAD, FILL)
        return (s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
"""
OF_TUPLE = """inputs: tuple):
        x, pad = inputs
        b, n, d"""


@pytest.mark.parametrize("within", [False, True])
def test_a_required_mask_named_after_padding_shows_all_tokens_at_first(tmp_path, within):
    start = REQUIRED_PADDING.replace(
        "ARGUMENTS):\n        b, n, d", OF_TUPLE if within else "x, pad):\n        b, n, d"
    )
    right = start.replace("SPREAD, FILL", "pad[:, None, None, :], float('-inf')")
    with written(tmp_path, right) as target:
        report = check(target)
        assert "True hides" in {fact.name: fact.value for fact in report.facts}["padding mask"]
        assert {it.name for it in report.findings} == {"nan-on-masked-rows"}
    spread = "pad.repeat(self.heads, 1).view(b, self.heads, 1, n), -1e9"
    wrong = start.replace("SPREAD, FILL", spread)
    assert bugs_in(tmp_path, wrong) == {"mask-broadcast": f"s = s.masked_fill({spread})"}


def test_a_small_fill_in_front_of_the_softmax_may_be_chosen_by_the_scores(tmp_path):
    edit = "scores = scores.masked_fill(scores.isnan(), 0.0)"
    assert not bugs_in(tmp_path, self_attention(edit))


OF_LATENTS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, context, latents, context_mask=None):
        both = torch.cat((context, latents), 1)
        scores = self.to_q(latents) @ self.to_k(both).mT * latents.shape[-1] ** -0.5
        if context_mask is not None:
            seen = torch.cat((context_mask, context_mask.new_ones(latents.shape[:2])), 1)
            scores = scores.masked_fill(~seen[:, None], torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ self.to_v(both)
"""


def test_a_mask_named_after_one_of_two_sequences_hides_that_one_alone(tmp_path):
    assert not bugs_in(tmp_path, OF_LATENTS)
    hides_none = OF_LATENTS.replace("~seen[:, None]", "~seen[:, None] & ~seen[:, :1, None]")
    assert bugs_in(tmp_path, hides_none)


KEPT_BY_ZEROS = """if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None] == 0, float("-inf"))"""


def test_code_that_says_which_tokens_it_hides_is_only_suspicious_for_the_name_of_its_mask(tmp_path):
    source = self_attention(KEPT_BY_ZEROS).replace("self, x)", "self, x, key_padding_mask=None)")
    with written(tmp_path, source) as target:
        report = check(target)
    assert not report.bugs
    assert "mask-inverted" in {it.name for it in report.findings}
    assert "mask-inverted" in bugs_in(
        tmp_path, source.replace("[:, None, None] == 0", ".logical_not()[:, None, None]")
    )


OF_A_LAYER = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, max_len=64):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, 4, dim, batch_first=True)
        hidden = torch.triu(torch.ones(max_len, max_len), 1) FILLED
        self.register_buffer("hidden", hidden)

    def forward(self, x):
        T = x.shape[1]
        return self.layer(x, self.hidden[:T, :T])
"""


def test_a_mask_that_a_layer_is_given_is_inverted_where_it_is_made(tmp_path):
    assert "== 0" in bugs_in(tmp_path, OF_A_LAYER.replace("FILLED", "== 0"))["mask-inverted"]
    assert not bugs_in(tmp_path, OF_A_LAYER.replace("FILLED", "== 1"))


# --- weights ----------------------------------------------------------------------------------------

SUMMED_APART = """h = torch.einsum("bhqk,bhvd->bhqd", scores.softmax(-1), v)
        return self.out(h.transpose(1, 2).flatten(2))"""


def test_weights_and_values_that_are_summed_apart_are_named(tmp_path):
    bugs = bugs_in(tmp_path, self_attention(SUMMED_APART))
    assert "bhqk,bhvd->bhqd" in bugs["attention-ignored"]
    assert not bugs_in(tmp_path, self_attention(SUMMED_APART.replace("bhvd", "bhkd")))


CHECKPOINTED = """from torch.utils.checkpoint import checkpoint
        return self.out(checkpoint(self.weighed, scores, v, use_reentrant=False).transpose(1, 2).flatten(2))

    def weighed(self, scores, v):
        gates = torch.ones(v.shape)
        return gates * (scores.softmax(-1) @ v)"""


def test_a_checkpointed_part_runs_again_with_the_dtype_of_the_first_time(tmp_path):
    assert not bugs_in(tmp_path, self_attention(CHECKPOINTED))


GATED = """weights = self.gate(scores)
        return self.out((weights @ v).transpose(1, 2).flatten(2))"""


def test_a_layer_of_sigmoids_announces_weights_that_sum_to_no_one(tmp_path):
    assert not bugs_in(tmp_path, self_attention(GATED, "self.gate = nn.Sigmoid()"))
    unannounced = GATED.replace("self.gate(scores)", "torch.sigmoid(scores)")
    assert bugs_in(tmp_path, self_attention(unannounced))


ACTIVATED = """later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = F.relu(scores.masked_fill(later, float("-inf")))"""


def test_an_activation_of_hidden_scores_is_a_bug_and_one_of_all_scores_a_suspicion(tmp_path):
    assert "relu" in bugs_in(tmp_path, self_attention(ACTIVATED))["weights-wrong"]
    with written(tmp_path, self_attention("scores = F.relu(scores)")) as target:
        (found,) = (it for it in check(target).findings if it.name == "weights-wrong")
    assert found.level == "suspicious"


# --- positions --------------------------------------------------------------------------------------

ALIBI = """# ALiBi
        slopes = 2.0 ** (-8 / heads * torch.arange(1, heads + 1))
        places = torch.arange(64)
        distances = DISTANCES
        bias = slopes[:, None, None] * distances
        self.register_buffer("alibi", bias)"""
FUSED = """T = x.shape[1]
        bias = self.alibi[:, :T, :T].to(x.dtype).masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))"""


def test_a_bias_of_alibi_falls_with_the_distance_in_a_fused_attention(tmp_path):
    wrong = ALIBI.replace("DISTANCES", "places[:, None] - places")
    (line,) = bugs_in(tmp_path, self_attention(FUSED, wrong)).values()
    assert line.startswith("bias = slopes")
    right = ALIBI.replace("DISTANCES", "places - places[:, None]")
    assert not bugs_in(tmp_path, self_attention(FUSED, right))


ANNOUNCED = """self.distances = None
        self.distances = torch.randn(64, dim // heads)"""
DISTANCES = """T = x.shape[1]
        apart = (torch.arange(T)[:, None] - torch.arange(T)).abs()
        scores = scores + torch.einsum("bhid,ijd->bhij", q, self.distances.to(x)[apart])"""


def test_a_random_table_that_is_announced_as_none_is_lost_when_saved(tmp_path):
    bugs = bugs_in(tmp_path, self_attention(DISTANCES, ANNOUNCED))
    assert bugs == {"table-not-a-buffer": "self.distances = torch.randn(64, dim // heads)"}
    trained = ANNOUNCED.replace(
        "torch.randn(64, dim // heads)", "nn.Parameter(torch.randn(64, dim // heads))"
    )
    assert not bugs_in(
        tmp_path, self_attention(DISTANCES, trained.replace("self.distances = None\n        ", ""))
    )


AFTER_THE_PAST = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.by_distance = nn.Embedding(257, 1)

    def forward(self, Q, K, V, mask=None):
        q, k, v = self.to_q(Q), self.to_k(K), self.to_v(V)
        # The queries are the last tokens of the keys.
        places = torch.arange(k.shape[1])
        apart = places[-q.shape[1] :, None] - places
        scores = (q @ k.mT + self.by_distance(apart + 128).squeeze(-1)) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask * -1e9
        return scores.softmax(-1) @ v
"""


def test_queries_may_be_the_last_of_the_keys(tmp_path):
    with written(tmp_path, AFTER_THE_PAST) as target:
        report = check(target)
    assert not report.bugs
    assert {it.name: it.level for it in report.findings}.get("padding-leak") in (None, "suspicious")


SHIFTED = """padded = F.pad(q @ self.distances.to(x)[-x.shape[1] :].mT, (1, 0))
        B, H, rows, columns = padded.shape
        shifted = padded.reshape(B, H, columns, rows)[:, :, 1:]
        scores = (scores + shifted).masked_fill(torch.ones(rows, rows).triu(1).bool(), float("-inf"))"""


def test_a_shift_of_padded_scores_may_exchange_the_names_of_its_axes(tmp_path):
    made = "self.distances = nn.Parameter(torch.randn(64, dim // heads))"
    assert not bugs_in(tmp_path, self_attention(SHIFTED, made))


JOINED = """both = torch.cat((q, v), 0)
        B, H, T, D = both.shape
        mixed = both.reshape(B, T, H, D)
        scores = scores + 0 * mixed.sum()"""


def test_a_view_of_joined_tensors_keeps_the_order_of_their_axes(tmp_path):
    assert "heads-mixed-split" in bugs_in(tmp_path, self_attention(JOINED))
