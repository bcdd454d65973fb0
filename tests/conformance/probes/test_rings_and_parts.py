"""Caches that go around, masks that parts are given, and layers of decoders and of sets, as strangers build them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heedful import check


class Cache:
    """The keys and values of the last tokens; a single token takes the place of the oldest one."""

    def __init__(self, size):
        self.size, self.end, self.kept = size, 0, None

    def append(self, *new):
        if self.kept is None:
            self.kept = [it.clone() for it in new]
        elif new[0].shape[1] > 1:
            older = [torch.cat([it[:, self.end :], it[:, : self.end]], 1) for it in self.kept]
            pairs = zip(self.older(older), new, strict=True)
            self.kept = [torch.cat(pair, 1) for pair in pairs]
        else:
            self.put(new)
            return self.kept
        self.end = 0 if self.kept[0].shape[1] >= self.size else self.kept[0].shape[1]
        seen, self.kept = self.kept, [it[:, -self.size :] for it in self.kept]
        return seen

    def older(self, kept):
        return kept

    def put(self, new):
        if self.kept[0].shape[1] < self.size:
            self.kept = [torch.cat(pair, 1) for pair in zip(self.kept, new, strict=True)]
            self.end = self.kept[0].shape[1] % self.size
            return
        self.kept = [it.clone() for it in self.kept]
        for held, it in zip(self.kept, new, strict=True):
            held[:, self.end] = it[:, 0]
        self.end = (self.end + 1) % self.size


class Forgetful(Cache):
    def older(self, kept):
        return [it[:, -self.end :] for it in kept] if self.end else kept


class Ring(nn.Module):
    made = Cache

    def __init__(self, dim, window=5):
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim)

    def make_cache(self):
        return self.made(self.window)

    def forward(self, x, cache=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            k, v = cache.append(k, v)
        if x.shape[1] == 1:
            return F.scaled_dot_product_attention(q, k, v)
        rows = torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        columns = torch.arange(k.shape[1])
        visible = (columns <= rows) & (columns > rows - self.window)
        return F.scaled_dot_product_attention(q, k, v, visible)


class OfForgetful(Ring):
    made = Forgetful


def test_a_cache_that_goes_around_is_made_by_the_modules_own_method():
    report = check(Ring)
    assert not report.bugs
    assert any(fact.name == "cache" for fact in report.facts)


def test_tokens_that_several_new_ones_lose_after_single_ones_went_around_are_missed():
    (bug,) = check(OfForgetful).bugs
    assert bug.name == "cache-mismatch"


class Pool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x, mask=None):
        scores = self.score(x).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return (scores.softmax(1).unsqueeze(-1) * x).sum(1)


class PoolOfAll(Pool):
    def forward(self, x, mask=None):
        weights = self.score(x).squeeze(-1).softmax(1)
        return (weights.unsqueeze(-1) * x).sum(1)


class PoolOfAllByIntent(PoolOfAll):
    def forward(self, x, mask=None):
        """mask is unused: the padding has a share, too."""
        weights = self.score(x).squeeze(-1).softmax(1)
        return (weights.unsqueeze(-1) * x).sum(1)


class Classifier(nn.Module):
    """Pools the words of documents, whose padding has the id 0."""

    def __init__(self, pool=Pool, words=50, dim=24):
        super().__init__()
        self.embed = nn.Embedding(words, dim, padding_idx=0)
        self.pool, self.out = pool(dim), nn.Linear(dim, 2)

    def forward(self, ids):
        return self.out(self.pool(self.embed(ids), mask=ids.ne(0)))


@pytest.mark.parametrize("pool", [Pool, PoolOfAllByIntent])
def test_a_part_may_read_its_mask_or_say_that_it_does_not(pool):
    bugs = check(Classifier, arguments={"pool": pool}).bugs
    assert "mask-unused" not in {bug.name for bug in bugs}


def test_a_part_that_never_reads_its_mask_is_named():
    (bug,) = check(Classifier, arguments={"pool": PoolOfAll}).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert "softmax(1)" in bug.place.source


class Positions(nn.Module):
    def __init__(self, dim=24, length=64):
        super().__init__()
        self.pos_embedding, self.qkv = nn.Embedding(length, dim), nn.Linear(dim, 3 * dim)

    def forward(self, x):
        pos = self.pos_embedding(torch.arange(x.shape[1])).unsqueeze(0)
        return F.scaled_dot_product_attention(*self.qkv(self.placed(x, pos)).chunk(3, -1))

    def placed(self, x, pos):
        return x + pos


class WithoutPositions(Positions):
    def forward(self, x):
        pos = self.pos_embedding(torch.arange(x.shape[1])).unsqueeze(0)  # noqa: F841 - the bug
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))


def test_positions_that_are_looked_up_and_not_added_are_named():
    assert not check(Positions).bugs
    (bug,) = check(WithoutPositions).bugs
    assert bug.name == "projection-unused"
    assert "'pos'" in bug.proof


class Decoder(nn.Module):
    """Two cells make the query of each step, and the features between them are dropped, as in stacked cells."""

    def __init__(self, vocab=30, dim=24, dropout=0.25):
        super().__init__()
        self.embed, self.drop = nn.Embedding(vocab, dim), nn.Dropout(dropout)
        self.first, self.second = nn.LSTMCell(dim, dim), nn.LSTMCell(dim, dim)
        self.out = nn.Linear(2 * dim, vocab)

    def forward(self, targets, encoder_outputs):
        """targets: (B, T) ids; encoder_outputs: (B, S, dim)"""
        zeros = encoder_outputs.new_zeros(len(targets), self.first.hidden_size)
        states = [(zeros, zeros)] * 2
        steps = []
        for word in self.embed(targets).unbind(1):
            states[0] = self.first(word, states[0])
            states[1] = self.second(self.drop(states[0][0]), states[1])
            state = states[1][0]
            scores = torch.bmm(encoder_outputs, state.unsqueeze(2)).squeeze(2)
            context = torch.bmm(scores.softmax(1).unsqueeze(1), encoder_outputs).squeeze(1)
            steps.append(self.out(torch.cat([context, state], 1)))
        return torch.stack(steps, 1)


def test_dropout_between_cells_is_not_that_of_queries():
    assert "dropout-misplaced" not in {it.name for it in check(Decoder).findings}


class Newest(nn.Module):
    """The newest frame of each pixel attends to all of its frames; the weights are returned, too."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        """x: (B, P, T, C) -> ((B, P, C), (B, P, heads, T))"""
        b, p, t, c = x.shape
        q = self.q(x[:, :, -1]).view(b, p, self.heads, c // self.heads)
        k, v = (it(x).view(b, p, t, self.heads, -1) for it in (self.k, self.v))
        scores = torch.einsum("bphd,bpkhd->bphk", q, k) * q.shape[-1] ** -0.5
        weights = scores.softmax(-1)
        return torch.einsum("bphk,bpkhd->bphd", weights, v).flatten(2), weights


def test_results_that_fit_no_map_are_no_bug_of_its_sides():
    assert not check(Newest).bugs


class Interests(nn.Module):
    """Shares of clusters times shares of items weight the items; the vectors of clusters are compared at length 1."""

    def __init__(self, dim=24, clusters=4):
        super().__init__()
        self.clusters = nn.Parameter(torch.randn(clusters, dim))
        self.project, self.score = nn.Linear(dim, dim), nn.Linear(dim, clusters)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        clusters = self.norm(self.clusters * x.mean(1, keepdim=True).sigmoid())
        of_clusters = torch.bmm(F.normalize(self.project(x), dim=-1), clusters.mT).softmax(2)
        of_items = self.score(x).softmax(1)
        return (of_clusters.mT * of_items.mT) @ x


def test_a_softmax_that_multiplies_another_one_need_not_be_over_the_items():
    assert not check(Interests).bugs


class Neighbors(nn.Module):
    """Each node takes from its neighbors; the shares of what it receives sum to 1 with its own."""

    def __init__(self, n_atom_basis):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1, 2 * n_atom_basis))

    def importance(self, own, other):
        return F.leaky_relu((torch.cat((own, other), 1) * self.weight).sum(-1)).exp()

    def forward(self, r, e, a):
        """
        Args:
            r (torch.Tensor): atom features, (n_atoms, n_atom_basis)
            e (torch.Tensor): edge features, unused here
            a (torch.LongTensor): neighbor list, (n_edges, 2)
        """
        of_edges = self.importance(r[a[:, 0]], r[a[:, 1]])
        own = self.importance(r, r)
        total = r.new_zeros(len(r)).index_add(0, a[:, 0], of_edges) + own
        messages = r[a[:, 1]] * (of_edges / total[a[:, 0]])[:, None]
        return r.new_zeros(r.shape).index_add(0, a[:, 0], messages) + r * (own / total)[:, None]


def test_a_graph_of_one_edge_many_times_tells_nothing_about_its_weights():
    assert not check(Neighbors).bugs


class OfLengthOne(nn.Module):
    """Compares queries of length 1 with keys of any length."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        scores = F.normalize(self.q(x), dim=-1) @ self.k(x).mT
        return scores.softmax(-1) @ self.v(x)


def test_a_product_with_vectors_of_length_1_needs_no_scale():
    assert not check(OfLengthOne).bugs
