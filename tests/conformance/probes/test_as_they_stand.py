"""Designs and bugs of attention classes that were checked as strangers had written them, in our own words."""

from attentions_with_caches import written

from heedful import check

SELF_ATTENTION = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        MADE

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        EDIT
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def self_attention(edit, made="pass"):
    return SELF_ATTENTION.replace("EDIT", edit).replace("MADE", made)


def bugs_in(folder, source):
    """Return the text of the line of each finding of level bug."""
    with written(folder, source) as target:
        return {it.name: it.place.source for it in check(target).bugs}


# --- masks -------------------------------------------------------------------------------------------

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
    assert "crashes" in bugs_in(tmp_path, BY_BLOCKS.replace("EXPAND", "pass"))


def test_the_last_token_may_be_alone_in_its_block(tmp_path):
    assert not bugs_in(tmp_path, BY_BLOCKS.replace("EXPAND", EXPAND))


LINKS = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.project = nn.Linear(in_features, out_features, bias=False)
        self.score = nn.Linear(2 * out_features, 1, bias=False)

    def forward(self, nodes, adjacency):
        nodes = self.project(nodes)
        N = len(nodes)
        pairs = torch.cat((nodes[:, None].expand(-1, N, -1), nodes.expand(N, -1, -1)), -1)
        scores = F.leaky_relu(self.score(pairs).squeeze(-1))
        no_link = torch.full_like(scores, FILL)
        weights = F.softmax(torch.where(adjacency > 0, scores, no_link), dim=1)
        return weights @ nodes
"""


def test_a_fill_like_scores_is_named_before_any_softmax(tmp_path):
    bugs = bugs_in(tmp_path, LINKS.replace("FILL", "9e-15"))
    assert "no_link" in bugs["mask-fill-too-small"]
    assert not bugs_in(tmp_path, LINKS.replace("FILL", "-9e15"))


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


# --- positions ---------------------------------------------------------------------------------------

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


# --- calls -------------------------------------------------------------------------------------------

OTHER_VALUES = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, embed_time=16):
        super().__init__()
        self.to_q, self.to_k = (nn.Linear(embed_time, embed_time) for _ in range(2))
        self.out = nn.Linear(dim, dim)

    def forward(self, query, key, value, mask=None):
        scores = self.to_q(query) @ self.to_k(key).mT * query.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.out(scores.softmax(-1) @ value)
"""


def test_values_may_be_of_another_width_than_queries_and_keys(tmp_path):
    with written(tmp_path, OTHER_VALUES) as target:
        report = check(target)
    assert not report.bugs
    assert any(fact.name == "scale" for fact in report.facts)


OF_VOXELS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.heads = num_heads
        S, H, W = window_size
        self.biases = nn.Parameter(torch.randn((2 * S - 1) * (2 * H - 1) * (2 * W - 1), num_heads))
        places = torch.cartesian_prod(torch.arange(S), torch.arange(H), torch.arange(W))
        apart = places[:, None] - places + torch.tensor([S - 1, H - 1, W - 1])
        apart[..., 0] *= FACTOR
        apart[..., 1] *= 2 * W - 1
        self.register_buffer("rows", apart.sum(-1))
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, skip, upper, mask=None):
        k, v = self.to_kv(skip).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = upper.unflatten(-1, (self.heads, -1)).transpose(1, 2) * k.shape[-1] ** -0.5
        scores = q @ k.mT + self.biases[self.rows].permute(2, 0, 1)
        if mask is not None:
            scores = scores + mask[:, None]
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_a_square_table_tells_how_many_tokens_a_window_has(tmp_path):
    wrong = bugs_in(tmp_path, OF_VOXELS.replace("FACTOR", "3 * W - 1"))
    assert wrong == {"weights-wrong": "apart[..., 0] *= 3 * W - 1"}
    with written(tmp_path, OF_VOXELS.replace("FACTOR", "(2 * H - 1) * (2 * W - 1)")) as target:
        assert not check(target).findings


IN_A_PART = """import torch
from torch import nn


class Biases(nn.Module):
    def __init__(self, width, *, count):
        super().__init__()
        self.mix = nn.Linear(width, count)

    def forward(self, apart):
        return self.mix(apart[..., None].expand(*apart.shape, self.mix.in_features)).permute(2, 0, 1)


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int = None):
        super().__init__()
        self.heads = num_heads or 1
        self.biases = Biases(2, count=num_heads)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1], dtype=x.dtype)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.biases((places[:, None] - places).abs())
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_an_argument_that_a_part_needs_gets_a_value_though_it_is_none_by_default(tmp_path):
    with written(tmp_path, IN_A_PART) as target:
        report = check(target)
    assert not report.bugs
    assert any(fact.name == "heads" and fact.value == "4" for fact in report.facts)


def test_a_small_fill_in_front_of_the_softmax_may_be_chosen_by_the_scores(tmp_path):
    edit = "scores = scores.masked_fill(scores.isnan(), 0.0)"
    assert not bugs_in(tmp_path, self_attention(edit))


# --- a second look -----------------------------------------------------------------------------------

SUMMED_APART = """h = torch.einsum("bhqk,bhvd->bhqd", scores.softmax(-1), v)
        return self.out(h.transpose(1, 2).flatten(2))"""


def test_weights_and_values_that_are_summed_apart_are_named(tmp_path):
    bugs = bugs_in(tmp_path, self_attention(SUMMED_APART))
    assert "bhqk,bhvd->bhqd" in bugs["attention-ignored"]
    assert not bugs_in(tmp_path, self_attention(SUMMED_APART.replace("bhvd", "bhkd")))


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


SHIFTED = """padded = F.pad(q @ self.distances.to(x)[-x.shape[1] :].mT, (1, 0))
        B, H, rows, columns = padded.shape
        shifted = padded.reshape(B, H, columns, rows)[:, :, 1:]
        scores = (scores + shifted).masked_fill(torch.ones(rows, rows).triu(1).bool(), float("-inf"))"""


def test_a_shift_of_padded_scores_may_exchange_the_names_of_its_axes(tmp_path):
    made = "self.distances = nn.Parameter(torch.randn(64, dim // heads))"
    assert not bugs_in(tmp_path, self_attention(SHIFTED, made))


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


ONE_HEAD_EACH = """import torch
from torch import nn

width = 32


class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, head_size) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT * SCALE
        return scores.softmax(-1) @ self.value(x)


class Attention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList(Head(head_size) for _ in range(num_heads))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], -1))
"""


def test_heads_share_the_width_that_the_layer_behind_them_expects(tmp_path):
    assert "scale-wrong" in bugs_in(tmp_path, ONE_HEAD_EACH.replace("SCALE", "x.shape[-1] ** -0.5"))
    right = ONE_HEAD_EACH.replace("SCALE", "self.key.out_features ** -0.5")
    assert not bugs_in(tmp_path, right)


OF_PRODUCTS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, n_in, n_emb, n_head):
        super().__init__()
        self.sizes = n_head, n_emb
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(n_in, n_in) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (it(x).view(B, T, *self.sizes).transpose(1, 2) for it in (self.to_q, self.to_k, VALUE))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
"""


def test_a_width_is_as_many_features_as_a_view_needs(tmp_path):
    assert "projection-unused" in bugs_in(tmp_path, OF_PRODUCTS.replace("VALUE", "self.to_k"))
    assert not bugs_in(tmp_path, OF_PRODUCTS.replace("VALUE", "self.to_v"))


OF_DISTANCES = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, max_len):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.distances = nn.Parameter(torch.randn(2 * max_len - 1, dim))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        rows = F.pad(q @ self.distances.mT, (0, 1)).flatten(1)
        shifted = F.pad(rows, (0, T - 1)).view(B, T + 1, 2 * T - 1)[:, :T, T - 1 :]
        return ((q @ k.mT + shifted) * C**-0.5).softmax(-1) @ v
"""


def test_a_table_with_a_row_for_each_distance_tells_how_many_tokens_there_are(tmp_path):
    assert not bugs_in(tmp_path, OF_DISTANCES)


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


KEPT_TOGETHER = """import torch
from torch import nn


class InnerAttention(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT * SCALE).softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, attention: nn.Module, d_model: int, heads: int):
        super().__init__()
        self.attention, self.heads = attention, heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.attention(q, k, v).transpose(1, 2).flatten(2)
"""


def test_a_part_may_be_kept_in_one_line_with_other_attributes(tmp_path):
    assert "scale-wrong" in bugs_in(tmp_path, KEPT_TOGETHER.replace("SCALE", "q.shape[-1] ** 0.5"))
    assert not bugs_in(tmp_path, KEPT_TOGETHER.replace("SCALE", "q.shape[-1] ** -0.5"))


DEMANDING = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        if dim % heads OPERATOR 0:
            raise ValueError("dim must be divisible by heads")
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
"""


def test_a_constructor_that_refuses_what_it_demands_is_named(tmp_path):
    assert "raise ValueError" in bugs_in(tmp_path, DEMANDING.replace("OPERATOR", "=="))["crashes"]
    assert not bugs_in(tmp_path, DEMANDING.replace("OPERATOR", "!="))


def test_a_comma_in_an_annotation_makes_an_argument_that_nothing_reads(tmp_path):
    source = self_attention("pass").replace("self, x)", "self, x: torch, tensor)")
    assert "def forward" in bugs_in(tmp_path, source)["crashes"]
    assert not bugs_in(tmp_path, source.replace("torch, tensor", "torch.Tensor"))


ACTIVATED = """later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = F.relu(scores.masked_fill(later, float("-inf")))"""


def test_an_activation_of_hidden_scores_is_a_bug_and_one_of_all_scores_a_suspicion(tmp_path):
    assert "relu" in bugs_in(tmp_path, self_attention(ACTIVATED))["weights-wrong"]
    with written(tmp_path, self_attention("scores = F.relu(scores)")) as target:
        (found,) = (it for it in check(target).findings if it.name == "weights-wrong")
    assert found.level == "suspicious"
