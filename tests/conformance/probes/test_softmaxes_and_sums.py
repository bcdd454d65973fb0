"""Softmaxes that differ, sums that lose an attention's result, names that libraries lack, as strangers write them."""

from dataclasses import dataclass

import torch
import torch.functional as wrong  # has einsum, for example, but no softmax
from torch import nn
from torch.nn import functional as F

from heedful import check


def names(report):
    return [it.name for it in report.bugs]


class TwoSigns(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return self.combined(scores.softmax(-1), (-scores).softmax(-1), scores) @ v

    def combined(self, one, other, scores):
        return one - 0.5 * other


class Twice(TwoSigns):
    def combined(self, one, other, scores):
        return one.softmax(-1)


def test_the_difference_of_two_softmaxes_is_a_design_and_a_second_softmax_is_not():
    report = check(TwoSigns)
    assert not report.bugs
    assert any("difference of two softmaxes" in str(it) for it in report.facts)
    assert names(check(Twice)) == ["softmax-twice"]


class WithOne(TwoSigns):
    """Attention to nothing is possible: exp(x) / (1 + sum(exp(x)))."""

    def combined(self, one, other, scores):
        largest = scores.max(-1, keepdim=True).values
        exponentials = torch.exp(scores - largest)
        return exponentials / (self.one(largest) + exponentials.sum(-1, keepdim=True))

    def one(self, largest):
        return torch.exp(-largest)


class WithUnshiftedOne(WithOne):
    def one(self, largest):
        return 1


def test_a_one_in_the_denominator_is_shifted_with_the_scores():
    assert not check(WithOne).bugs
    report = check(WithUnshiftedOne)
    assert names(report) == ["rows-not-normalised"]
    assert "exp(-largest)" in report.bugs[0].remedy


class OfEdges(nn.Module):
    def __init__(self, in_features, out_features, edge_features, heads):
        super().__init__()
        self.heads, self.edge_features, self.out_features = heads, edge_features, out_features
        self.project = nn.Parameter(torch.randn(in_features, heads * out_features) / 5)
        self.score = nn.Parameter(torch.randn(heads, 2 * out_features + edge_features) / 5)

    def forward(self, h, edge_index, edge_attr):
        nodes = torch.mm(h, self.project).view(-1, self.heads, self.out_features)
        target, source = edge_index
        edges = edge_attr.unsqueeze(1).expand(-1, self.heads, -1)
        both = torch.cat([nodes[target], nodes[source], edges], -1)
        weights = self.weights(torch.einsum("ehd,hd->eh", both, self.score), target, len(h))
        sums = torch.zeros_like(nodes)
        sums = sums.index_add(0, target, weights[..., None] * nodes[source])
        return sums.flatten(1)

    def weights(self, scores, target, count):
        exponentials = scores.exp()
        sums = torch.zeros(count, self.heads, dtype=scores.dtype)
        return exponentials / sums.index_add(0, target, exponentials)[target]


class OverHeads(OfEdges):
    def weights(self, scores, target, count):
        return scores.softmax(1)


def test_a_softmax_over_the_heads_of_edges_is_found_and_edges_may_have_features():
    assert not check(OfEdges).bugs
    assert names(check(OverHeads)) == ["softmax-wrong-dim"]


class Block(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x):
        y = self.norm1(x + self.attention(x, x, x)[0])
        return self.norm2(self.added(x, y) + self.mlp(y))

    def added(self, x, y):
        return y


class PassingOver(Block):
    def added(self, x, y):
        return x


class Outer(nn.Module):
    """The input is added to the result of a whole block once more."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.block, self.project = Block(dim, num_heads), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.project(self.block(x))


def test_a_residual_connection_adds_what_its_sublayer_is_given():
    assert not check(Block).bugs
    assert not check(Outer).bugs
    report = check(PassingOver)
    assert names(report) == ["context-wrong"]
    assert "self.norm2(" in report.bugs[0].place.source


class OfAnotherLibrary(nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.score = nn.Linear(dim + width, 1)

    def forward(self, encoded, state):
        state = state.squeeze(1).repeat(
            1, len(encoded), 1
        )  # fits no batch but that of one sequence
        scores = self.score(torch.cat([encoded.transpose(0, 1), state], -1))
        return wrong.softmax(scores.squeeze(-1))


class Prepared(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if hasattr(torch, "attention_of_later_versions"):
            return torch.attention_of_later_versions(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)


def test_a_name_that_a_library_lacks_is_found_even_if_no_call_works():
    report = check(OfAnotherLibrary)
    assert names(report) == ["undefined-or-global-name"]
    assert "torch.functional has no 'softmax'" in report.bugs[0].proof
    assert not check(Prepared).bugs


class WindowCache:
    """Keeps the last keys and values, of which a single token pushes out the oldest one."""

    def __init__(self, size):
        self.size, self.kept = size, None

    def update(self, *new):
        # prefill: attend to all of them, and keep the last ones
        if new[0].shape[1] > 1:
            self.kept = [it[:, -self.size :] for it in new]
            return new
        kept = [it[:, :0] for it in new] if self.kept is None else self.kept
        joined = [torch.cat(pair, 1) for pair in zip(kept, new, strict=True)]
        self.kept = [it[:, -self.left() :] for it in joined]
        return self.kept

    def left(self):
        return self.size


class ShortWindowCache(WindowCache):
    def left(self):
        return self.size - 1


class WithWindow(nn.Module):
    made = WindowCache

    def __init__(self, dim, window=5):
        super().__init__()
        self.window, self.qkv = window, nn.Linear(dim, 3 * dim)

    def make_cache(self):
        return self.made(self.window)

    def forward(self, x, cache=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            k, v = cache.update(k, v)
        if x.shape[1] == 1:
            return F.scaled_dot_product_attention(q, k, v)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        return F.scaled_dot_product_attention(q, k, v, (distance >= 0) & (distance < self.window))


class WithShortWindow(WithWindow):
    made = ShortWindowCache


def test_a_cache_that_takes_several_tokens_for_a_prefill_is_given_one_at_a_time():
    report = check(WithWindow)
    assert not report.bugs
    assert any(it.name == "cache" for it in report.facts)
    assert names(check(WithShortWindow)) == ["cache-mismatch"]


class Pair(nn.Module):
    def __init__(self, n_vocab, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(n_vocab, hidden_size)
        self.head = nn.Linear(2 * hidden_size, 3)

    def forward(self, premise, hypothesis, premise_mask, hypothesis_mask):
        """
        :param premise, hypothesis: word ids, (batch_size, seq_length)
        :param premise_mask: actual length of premise sentence, (batch_size,)
        :param hypothesis_mask: actual length of hypothesis sentence, (batch_size,)
        """
        if min(premise_mask.min(), hypothesis_mask.min()) < 1:
            raise ValueError("every sentence needs a word")
        a, b = self.embedding(premise), self.embedding(hypothesis)
        a_real = torch.arange(a.shape[1]) < premise_mask[:, None]
        b_real = torch.arange(b.shape[1]) < hypothesis_mask[:, None]
        scores = (a @ b.mT).masked_fill(~b_real[:, None], -torch.inf)
        back = (b @ a.mT).masked_fill(~a_real[:, None], -torch.inf)
        one = (self.shares(scores) @ b * a_real[..., None]).sum(1)
        other = (self.shares(back) @ a * b_real[..., None]).sum(1)
        return self.head(torch.cat([one, other], -1))

    def shares(self, scores):
        return scores.softmax(-1)


class OverBatch(Pair):
    def shares(self, scores):
        return scores.permute(2, 1, 0).softmax(-1).permute(2, 1, 0)


def test_two_sequences_of_ids_with_lengths_are_called_as_their_docstring_says():
    report = check(Pair)
    assert not report.bugs
    assert any("premise_mask (B,)" in str(it) for it in report.facts)
    assert "softmax-wrong-dim" in names(check(OverBatch))


class Trilinear(nn.Module):
    def __init__(self, model_dim):
        super().__init__()
        self.of_context = nn.Parameter(torch.randn(model_dim, 1) / 5)
        self.of_both = nn.Parameter(torch.randn(1, 1, model_dim) / 5)

    def forward(self, C, Q, c_mask, q_mask):
        C, Q = C.transpose(1, 2), Q.transpose(1, 2)
        scores = C @ self.of_context + (C * self.of_both) @ Q.transpose(1, 2)
        c_mask = c_mask.view(len(C), -1, 1).float()
        q_mask = q_mask.view(len(Q), 1, -1).float()
        shares = (scores * q_mask - 1e30 * (1 - q_mask)).softmax(2)
        back = (scores * c_mask - 1e30 * (1 - c_mask)).softmax(1)
        context = torch.cat([C, shares @ Q, shares @ back.mT @ C], 2)
        return context.transpose(1, 2)


def test_two_sequences_may_have_their_channels_first():
    report = check(Trilinear)
    assert not report.bugs
    assert any("found by trying" in str(it) for it in report.facts)


class OfVolumes(nn.Module):
    def __init__(self, input_shape: tuple[int, int, int], dim: int, num_heads: int):
        super().__init__()
        self.pixels = torch.Size(map(int, input_shape)).numel()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        if x.shape[1] != self.pixels:
            raise ValueError(f"expected {self.pixels} tokens")
        return x + self.attention(x, x, x)[0]


def test_an_annotation_says_how_many_numbers_a_parameter_holds():
    assert not check(OfVolumes).bugs


class TimeFirst(nn.Module):
    def __init__(self, input_dim, num_heads):
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(input_dim, 3 * input_dim)

    def forward(self, x, masks=None):
        time_steps, batch_size, features = x.shape
        shape = (time_steps, batch_size, self.num_heads, features // self.num_heads)
        q, k, v = (self.of_heads(it.view(shape)) for it in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if masks is not None:
            scores = scores.masked_fill(masks.t()[:, None, None, :] == 0, -torch.inf)
        return self.merged(scores.softmax(-1) @ v).reshape(x.shape)

    def of_heads(self, x):
        return x.permute(1, 2, 0, 3)

    def merged(self, x):
        return x.permute(2, 0, 1, 3)


class AlongBatch(TimeFirst):
    def of_heads(self, x):
        return x.transpose(1, 2)

    def merged(self, x):
        return x.transpose(1, 2)


def test_names_of_axes_tell_that_time_comes_first():
    assert not check(TimeFirst).bugs
    assert names(check(AlongBatch)) == ["batch-mixed"]


@dataclass
class Config:
    d_model: int = 544
    n_heads: int = 4


class WithConstant(nn.Module):
    """The last 32 features are divided by what is known of them."""

    def __init__(self, config: Config):
        super().__init__()
        self.offset = config.d_model - 32
        self.register_buffer("deviation", torch.full((32,), 2.0))
        self.attention = nn.MultiheadAttention(config.d_model, config.n_heads, batch_first=True)

    def forward(self, x):
        x = x.clone()
        x[:, :, self.offset :] /= self.deviation
        return self.attention(x, x, x)[0]


def test_a_configuration_may_need_a_larger_width():
    assert not check(WithConstant).bugs
