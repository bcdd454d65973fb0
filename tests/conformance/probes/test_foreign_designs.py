"""Sound attentions of published packages, written anew, each of which was taken for a bug once."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heedful import check
from heedful.conformance import Example
from heedful.conformance.probes.head_split import _is_one_token

pytestmark = pytest.mark.slow


class Heads(nn.Module):
    """Attention with 4 heads, (B, H, T, D), whose steps the designs replace."""

    def __init__(self, dim: int = 24):
        super().__init__()
        self.num_heads = 4
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)

    def split(self, x):
        return (
            it(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for it in (self.to_q, self.to_k, self.to_v)
        )

    def scores(self, query, key):
        return query @ key.mT * query.shape[-1] ** -0.5

    def forward(self, x):
        query, key, value = self.split(x)
        context = self.scores(query, key).softmax(-1) @ value
        return self.to_out(context.transpose(1, 2).flatten(2))


class InHalves(Heads):
    """Takes the softmax of one half of the batch after the other, in place, which saves memory."""

    def forward(self, x):
        query, key, value = self.split(x)
        scores = self.scores(query, key)
        half = len(x) // 2
        scores[half:] = scores[half:].softmax(-1)
        scores[:half] = scores[:half].softmax(-1)
        return self.to_out((scores @ value).transpose(1, 2).flatten(2))


class Steep(Heads):
    """Begins with large weights, so that some keys have tiny weights although nothing hides them."""

    def __init__(self):
        super().__init__()
        for layer in (self.to_q, self.to_k):
            nn.init.normal_(layer.weight, std=0.7)


class Slots(Heads):
    """Slot attention: the slots, which are the queries, compete for each key."""

    def forward(self, x):
        query, key, value = self.split(x)
        weights = self.scores(query, key).softmax(-2)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


class Windows(nn.Module):
    """Attends within windows of a feature map, (B, C, Y, X), with as many channels as pixels."""

    def __init__(self, dim: int = 32, window: int = 8):
        super().__init__()
        self.window, self.num_heads = window, 2
        self.to_qkv = nn.Conv2d(dim, 3 * 64, 1, bias=False)
        self.to_out = nn.Conv2d(64, dim, 1)

    def forward(self, x):
        B, _, Y, X = x.shape
        size, H = self.window, self.num_heads
        parts = self.to_qkv(x).reshape(B, 3, H, -1, Y // size, size, X // size, size)
        query, key, value = parts.permute(1, 0, 4, 6, 2, 5, 7, 3).flatten(5, 6)
        context = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        context = context.unflatten(-2, (size, size)).permute(0, 3, 6, 1, 4, 2, 5)
        return self.to_out(context.reshape(B, -1, Y, X))


class Pooled(Heads):
    """Convolves the queries over time, height and width, with a first token for the class."""

    def __init__(self):
        super().__init__()
        self.pool = nn.Conv3d(6, 6, 3, padding=1, groups=6)

    def forward(self, x, grid):
        query, key, value = self.split(x)
        first, rest = torch.tensor_split(query, (1,), dim=2)
        maps = rest.transpose(2, 3)
        maps = maps.reshape(-1, query.shape[-1], *grid).contiguous()
        maps = self.pool(maps)
        rest = maps.reshape(*query.shape[:2], query.shape[-1], -1).transpose(2, 3)
        query = torch.cat([first, rest], dim=2)
        context = self.scores(query, key).softmax(-1) @ value
        return self.to_out(context.transpose(1, 2).flatten(2))


class Step(nn.Module):
    """Attends from one query of each sequence, (B, C), to the memory, (T, B, C), which has one entry at first."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, query, key, value):
        q = self.to_q(query).unflatten(-1, (4, 6))
        k, v = self.to_k(key).unflatten(-1, (4, 6)), self.to_v(value).unflatten(-1, (4, 6))
        weights = torch.einsum("bhd,jbhd->jbh", q * 6**-0.5, k).softmax(0)
        return torch.einsum("jbh,jbhd->bhd", weights, v).flatten(1)


class Kinked(Heads):
    """Adds a bias from an MLP of distances, whose ReLU has a kink near every distance, in float32."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(1, 64), nn.Linear(64, 4)
        nn.init.normal_(self.inner.weight, std=2e-3)
        nn.init.normal_(self.inner.bias, std=2e-3)
        nn.init.normal_(self.outer.weight, std=20.0)

    def scores(self, query, key):
        places = torch.arange(query.shape[-2])
        distances = (places[:, None] - places)[..., None].float()
        bias = self.outer(F.relu(self.inner(distances))).movedim(-1, 0)
        return super().scores(query, key) + bias


class Additive(Heads):
    """Adds a mask to the scores, and turns a Boolean one, True at hidden keys, into such a mask."""

    def forward(self, x, attention_mask=None):
        query, key, value = self.split(x)
        scores = self.scores(query, key)
        if attention_mask is not None:
            if attention_mask.dtype == torch.bool:
                zeros = torch.zeros_like(attention_mask, dtype=scores.dtype)
                attention_mask = zeros.masked_fill(attention_mask, -torch.inf)
            scores = scores + attention_mask
        return self.to_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Relative(Heads):
    """Adds the scores of queries and distances as Transformer-XL does, from a table of 2 T - 1 distances."""

    def __init__(self):
        super().__init__()
        self.to_r = nn.Linear(24, 24, bias=False)

    def forward(self, x, distances, attention_mask=None):
        query, key, value = self.split(x)
        table = self.to_r(distances).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        shifted = F.pad(query @ table.mT, (1, 0))
        shifted = shifted.reshape(*shifted.shape[:2], shifted.shape[3], -1)[:, :, 1:]
        shifted = shifted.reshape(*query.shape[:3], -1)[..., : key.shape[2]]
        scores = (query @ key.mT + shifted) * query.shape[-1] ** -0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        return self.to_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class OfOnes(Heads):
    """Takes 1 at visible keys and 0 at hidden ones, as numbers in a floating dtype, (B, T, T)."""

    def forward(self, x, attention_mask):
        query, key, value = self.split(x)
        hidden = (1.0 - attention_mask[:, None]) * torch.finfo(x.dtype).min
        weights = (self.scores(query, key) + hidden).softmax(-1)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


class Shared(Heads):
    """Shares queries and keys (Kitaev et al. 2020), of which some heads may be split off.

    A token should not attend to itself, which would be the best key by far.
    """

    local_heads = 0

    def __init__(self):
        super().__init__()
        del self.to_k

    def forward(self, x):
        shared, value = (
            it(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for it in (self.to_q, self.to_v)
        )
        near, shared = shared[:, : self.local_heads], shared[:, self.local_heads :]
        scores = self.scores(shared, F.normalize(shared, dim=-1))
        diagonal = range(x.shape[1])
        scores[..., diagonal, diagonal] = -5e4
        context = torch.cat([near, scores.softmax(-1) @ value], dim=1)
        return self.to_out(context.transpose(1, 2).flatten(2))


class Kernels(Heads):
    """Linear attention by positive random features of a softmax kernel (Choromanski et al. 2020)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(10, 6))

    def features(self, data, over):
        frequencies = self.frequencies.expand(*data.shape[:2], 10, 6).type_as(data)
        logits = torch.einsum("bhtd,bhmd->bhtm", data * data.shape[-1] ** -0.25, frequencies)
        return (logits - logits.amax(over, keepdim=True).detach()).exp() + 1e-2

    def forward(self, x):
        query, key, value = self.split(x)
        query, key = self.features(query, -1), self.features(key, (-1, -2))
        sums = torch.einsum("bhtm,bhm->bht", query, key.sum(2))
        context = torch.einsum("bhme,bhtm,bht->bhte", key.mT @ value, query, 1 / sums)
        return self.to_out(context.transpose(1, 2).flatten(2))


class Rearranged(Heads):
    """Projects scaled tokens to keys by rearranged weights."""

    def forward(self, x):
        x = F.normalize(x, dim=-1) * x.shape[-1] ** 0.5
        query, _, value = self.split(x)
        weights = self.to_k.weight.unflatten(0, (self.num_heads, -1))
        key = torch.einsum("hdc,btc->bhtd", weights, x)
        context = self.scores(query, key).softmax(-1) @ value
        return self.to_out(context.transpose(1, 2).flatten(2))


class Buckets(Heads):
    """Sees the tokens of its bucket, and those of the bucket before as one."""

    bucket_size: int

    def __init__(self):
        super().__init__()
        self.bucket_size = 8

    def forward(self, x):
        T, size = x.shape[1], self.bucket_size
        query, key, value = self.split(x)
        if T % size == 0:
            mixed = torch.arange(T).unflatten(0, (-1, size)).roll(1, 0).flatten()
            key, value = key + key[:, :, mixed], value + value[:, :, mixed]
        context = self.scores(query, key).softmax(-1) @ value
        return self.to_out(context.transpose(1, 2).flatten(2))


class Tiny(Heads):
    """Begins with tiny embeddings, and normalizes queries and keys unless they are shorter than an ε."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 24)
        nn.init.normal_(self.embedding.weight, std=1e-5)
        self.to_q, self.to_k = (nn.Linear(24, 24, bias=False) for _ in range(2))

    def forward(self, ids):
        query, key, value = self.split(self.embedding(ids))
        query, key = (it / it.norm(dim=-1, keepdim=True).clamp(min=1e-3) for it in (query, key))
        context = (query @ key.mT * 8).softmax(-1) @ value
        return self.to_out(context.transpose(1, 2).flatten(2))


class Noisy(Heads):
    """Adds noise to its queries, which is drawn in every call, as slot attention does to its first slots."""

    def forward(self, x):
        query, key, value = self.split(x)
        query = query + torch.randn_like(query)
        context = self.scores(query, key).softmax(-1) @ value
        return self.to_out(context.transpose(1, 2).flatten(2))


class Tempered(Heads):
    """Learns a temperature for each head, of which it computes the exponential in float32, whatever the tokens are.

    The float32 step is not on the way from the tokens, so the check stays in float64.
    """

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.full((4, 1, 1), 0.3))

    def forward(self, x):
        query, key, value = self.split(x)
        factor = self.temperature.float().exp().type_as(query)
        weights = (self.scores(query, key) * factor).softmax(-1)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


class MaskedCausal(Heads):
    """Attends with a prefix whose tokens see each other (El-Nouby et al. 2024)."""

    def forward(self, x, mask=None):
        query, key, value = self.split(x)
        hidden = torch.zeros(1, dtype=torch.bool)
        if mask is not None:
            T = x.shape[1]
            hidden = mask[:, None, None] & torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = self.scores(query, key).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


class Frequencies(Heads):
    """Compares and mixes the frequencies of a series (Zhou et al. 2022)."""

    def forward(self, x):
        query, key, value = (torch.fft.rfft(it, dim=2) for it in self.split(x))
        scores = query @ key.mT
        context = torch.complex(scores.real.tanh(), scores.imag.tanh()) @ value
        context = torch.fft.irfft(context, n=x.shape[1], dim=2)
        return self.to_out(context.transpose(1, 2).flatten(2))


class Guided(nn.Module):
    """Lets questions and regions attend to each other by scores that tanh bounds (Lu et al. 2016)."""

    def __init__(self, width=24):
        super().__init__()
        self.of_question, self.of_region = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, q, v):
        v_proj = self.of_region(v)
        affinity = torch.tanh(self.of_question(q).bmm(v_proj.transpose(1, 2)))
        return affinity.softmax(dim=2).bmm(v), affinity.transpose(1, 2).softmax(dim=2).bmm(q)


class Switched(Heads):
    """Scales its scores only if it is told to (Song et al. 2019)."""

    def __init__(self, scaling: bool = False):
        super().__init__()
        self.scaling = scaling

    def scores(self, query, key):
        scores = query @ key.mT
        if self.scaling:
            scores = scores / query.shape[-1] ** 0.5
        return scores


class Strided(Heads):
    """Takes keys and values of four tokens at a time, of which there must be so many."""

    def __init__(self):
        super().__init__()
        self.shorten = nn.Conv1d(24, 24, 4, stride=2)

    def split(self, x):
        shorter = self.shorten(x.mT).mT
        for layer, tokens in ((self.to_q, x), (self.to_k, shorter), (self.to_v, shorter)):
            yield layer(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class Nearest(Heads):
    """Lets each query see the three keys of its largest scores."""

    def scores(self, query, key):
        scores = super().scores(query, key)
        return scores.masked_fill(scores < scores.topk(3)[0][..., -1:], -torch.inf)


class Signed(Heads):
    """Adds a learned number for what comes before a query, and its negative for what comes after it."""

    def __init__(self):
        super().__init__()
        self.lean = nn.Parameter(torch.tensor(0.3))

    def scores(self, query, key):
        places = torch.arange(query.shape[-2])
        return super().scores(query, key) + self.lean * (places - places[:, None]).sign()


class Related(Heads):
    """Asks by what a token and its neighbors have in common (Altabaa and Lafferty 2024)."""

    def split(self, x):
        query, key, value = super().split(x)
        places = torch.arange(x.shape[1])
        near = (places[:, None] + torch.arange(-2, 3)).clamp(0, x.shape[1] - 1)
        yield torch.einsum("bhid,bhijd->bhij", query, key[:, :, near]).repeat(1, 1, 1, 2)[..., :6]
        yield key
        yield value


class Blocks(Heads):
    """Has keys of pairs of tokens, and one for each whole block of eight (Yuan et al. 2025); there may be none."""

    def split(self, x):
        query, key, value = super().split(x)
        whole = x.shape[1] // 8 * 8
        yield query
        for tokens in (key, value):
            blocks = tokens[:, :, :whole].unflatten(2, (-1, 8)).flatten(3)
            pairs = tokens[:, :, :-1] + tokens[:, :, 1:]
            yield torch.cat([pairs, blocks.unflatten(3, (8, -1)).mean(3)], 2)


class Silent(Heads):
    """Has two heads whose keys are all zero, as where positions are sampled outside of an image."""

    def split(self, x):
        query, key, value = super().split(x)
        return query, key * torch.tensor([0.0, 1.0, 0.0, 1.0])[:, None, None], value


class Graph(Heads):
    """Weights the neighbors in a graph by a bounded function of their scores, which may be negative."""

    def forward(self, x, adj):
        query, key, value = self.split(x)
        weights = torch.tanh(adj.unsqueeze(1) * (query @ key.mT))
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


class Turned(Heads):
    """Turns pairs of features by complex numbers, and gates the context by numbers of the same dtype in place."""

    def forward(self, x, freqs_cis):
        query, key, value = self.split(x)
        query, key = (self.turned(it, freqs_cis) for it in (query, key))
        weights = self.scores(query, key).softmax(-1)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))

    def turned(self, x, turns):
        assert turns.shape == (x.shape[2], x.shape[3] // 2)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turns).flatten(-2)


class Integers(Heads):
    """Multiplies a mask of integers by the lowest number of the scores' dtype."""

    def forward(self, x, attention_mask=None):
        """attention_mask: (B, T), 1 at real tokens and 0 at padding."""
        query, key, value = self.split(x)
        scores = self.scores(query, key)
        if attention_mask is not None:
            hidden = 1 - attention_mask[:, None, None].long()
            scores = scores + hidden * torch.finfo(scores.dtype).min
        return self.to_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Aligned(nn.Module):
    """Aligns two texts by the products of their words after one projection (Chen et al. 2017)."""

    def __init__(self, hidden_size: int = 24) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, query, context):
        one, other = F.relu(self.linear(query)), F.relu(self.linear(context))
        return (one @ other.mT).softmax(-1) @ context


class Located(nn.Module):
    """Location-sensitive attention: a convolution of the weights of the step before takes part in the scores."""

    def __init__(self, query_dim: int = 24, memory_dim: int = 24):
        super().__init__()
        self.query, self.memory = nn.Linear(query_dim, 16), nn.Linear(memory_dim, 16)
        self.before = nn.Conv1d(2, 16, kernel_size=5, padding=2, bias=False)
        self.energy = nn.Linear(16, 1)

    def forward(self, query, memory, attention_weights, mask=None):
        """Return the context and the weights.

        Args:
            query: (batch, query_dim)
            memory: (batch, length, memory_dim)
            attention_weights: (batch, 2, length), of the step before and of all steps
            mask: (batch, length), True at real tokens
        """
        before = self.before(attention_weights).transpose(1, 2)
        both = self.query(query.unsqueeze(1)) + self.memory(memory) + before
        scores = self.energy(torch.tanh(both)).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        weights = scores.softmax(dim=1)
        return (weights.unsqueeze(1) @ memory).squeeze(1), weights


class Variances(Heads):
    """Carries means and variances: independent values are summed with the squares of the weights."""

    def forward(self, x):
        query, key, value = self.split(x)
        weights = self.scores(query, key).softmax(-1)
        contexts = weights @ value, weights**2 @ value.square()
        mean, variance = (it.transpose(1, 2).flatten(2) for it in contexts)
        return self.to_out(mean), variance


class Sources(nn.Module):
    """Normalizes over the source nodes of each target, which its second axis counts."""

    def __init__(self, num_in_features: int = 24, num_of_heads: int = 4):
        super().__init__()
        self.proj = nn.Parameter(torch.randn(num_of_heads, num_in_features, 6) / 5)
        self.of_sources, self.of_targets = (
            nn.Parameter(torch.randn(num_of_heads, 6, 1)) for _ in range(2)
        )

    def forward(self, nodes, connectivity):
        """
        nodes: (N, FIN)
        connectivity: (N, N), 0 at [source, target] where there is an edge, -inf elsewhere
        """
        features = nodes.unsqueeze(0) @ self.proj
        scores = features @ self.of_sources + (features @ self.of_targets).transpose(1, 2)
        weights = (F.leaky_relu(scores, 0.2) + connectivity).softmax(dim=1)
        return torch.bmm(weights.transpose(1, 2), features).transpose(0, 1).flatten(1)


class Switchable(Heads):
    """Has layers that see all keys in place of causal ones, for which it makes a mask as well."""

    is_bidirectional = True

    def forward(self, x):
        query, key, value = self.split(x)
        everything = query.new_zeros(x.shape[1], x.shape[1])
        earlier = torch.full_like(everything, -torch.inf).triu(1)
        mask = everything if self.is_bidirectional else earlier
        weights = (self.scores(query, key) + mask).softmax(-1)
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "design",
    [
        Switchable,
        Sources,
        Variances,
        Graph,
        Turned,
        Located,
        InHalves,
        Steep,
        Slots,
        Kinked,
        Additive,
        Shared,
        Kernels,
        Rearranged,
        Buckets,
        Tiny,
        Noisy,
        Tempered,
        MaskedCausal,
        Guided,
        Switched,
        Strided,
        Nearest,
        Signed,
        Silent,
        Related,
        Integers,
        Aligned,
    ],
)
def test_a_design_raises_no_alarm(design):
    torch.manual_seed(0)
    assert [bug.proof for bug in check(design()).bugs] == []


@pytest.mark.parametrize(
    ("design", "example"),
    [
        (Windows, Example(torch.randn(2, 32, 16, 16))),
        (Pooled, Example(torch.randn(2, 1 + 2 * 3 * 5, 24), (2, 3, 5))),
        (Step, Example(torch.randn(2, 24), *torch.randn(2, 1, 2, 24))),
        (OfOnes, Example(torch.randn(2, 9, 24), torch.ones(2, 9, 9))),
        (Relative, Example(torch.randn(2, 9, 24), torch.randn(1, 17, 24))),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_a_design_with_an_example_raises_no_alarm(design, example):
    torch.manual_seed(0)
    assert [bug.proof for bug in check(design(), example=example).bugs] == []


def test_three_axes_may_hold_the_tokens_beside_one_for_the_class():
    changed = torch.zeros(2, 6, 2, 3, 5, dtype=torch.bool)
    changed[0, :, 1, 2, 3] = True
    assert _is_one_token(changed, 2, 1 + 2 * 3 * 5, padded=False)
    changed[0, :, 1, 2, 4] = True
    assert not _is_one_token(changed, 2, 1 + 2 * 3 * 5, padded=False)


def test_a_boolean_mask_of_unusual_polarity_is_suspicious_if_masks_are_added():
    torch.manual_seed(0)
    found = check(Additive(), example=torch.randn(2, 5, 24)).findings
    (finding,) = (it for it in found if it.name == "mask-inverted")
    assert finding.level == "suspicious"


def test_every_probe_of_complex_numbers_runs():
    torch.manual_seed(0)
    assert check(Frequencies()).findings == ()


def test_every_probe_of_blocks_that_are_not_there_runs():
    torch.manual_seed(0)
    assert [it.proof for it in check(Blocks()).findings if it.level == "not-testable"] == []


class Missing(Heads):
    """Adds to the scores by how much of a sequence is missing, if it is told to learn by how much."""

    def __init__(self, learned: bool = False):
        super().__init__()
        self.learned_bias = nn.Parameter(torch.ones(1)) if learned else None

    def forward(self, x, mask=None):
        query, key, value = self.split(x)
        scores = self.scores(query, key)
        if mask is not None and self.learned_bias is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        return self.to_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Spectral(Heads):
    """Multiplies the spectra of queries and keys (Wu et al. 2021), and takes a mask for the interface's sake."""

    def forward(self, x, attention_mask=None):
        query, key, value = (torch.fft.rfft(it, dim=2) for it in self.split(x))
        context = torch.fft.irfft(query * key.conj() * value, n=x.shape[1], dim=2)
        return self.to_out(context.transpose(1, 2).flatten(2))


class Placed(Heads):
    """Adds a large trained bias for each distance (Graham et al. 2021), so that some weights are tiny by chance."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.places = nn.Parameter(12 * torch.randn(4, 64, 64, generator=generator))

    def scores(self, query, key):
        T = query.shape[-2]
        return super().scores(query, key) + self.places[:, :T, :T]


def test_a_trained_bias_is_no_fill_of_a_mask():
    torch.manual_seed(0)
    assert [it.name for it in check(Placed()).findings if it.name == "mask-fill-too-small"] == []


@pytest.mark.parametrize(
    ("design", "said"), [(Missing, "It acts only together with learned_bias."), (Spectral, "")]
)
def test_a_mask_that_cannot_act_is_a_suspicion(design, said):
    torch.manual_seed(0)
    (finding,) = (it for it in check(design()).findings if it.name == "mask-unused")
    assert finding.level == "suspicious"
    assert finding.proof.startswith(said)


class Weightless(Missing):
    """Adds nothing to the scores of hidden keys, as its attribute is not set."""

    def forward(self, x, mask=None):
        query, key, value = self.split(x)
        scores = self.scores(query, key)
        if mask is not None and self.learned_bias is None:
            scores = scores + 0.0 * mask[:, None, None]
        return self.to_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def test_an_attribute_that_lets_a_mask_act_is_no_excuse():
    torch.manual_seed(0)
    assert [bug.name for bug in check(Weightless()).bugs] == ["mask-unused"]


class Squared(Heads):
    """Squares the positive scores in place of a softmax (Hua et al. 2022), beside a bias for each distance."""

    def __init__(self):
        super().__init__()
        self.of_distance = nn.Parameter(torch.tensor([-9.0] + 63 * [9.0]))

    def forward(self, x):
        query, key, value = self.split(x)
        places = torch.arange(x.shape[1])
        distances = (places[:, None] - places).abs()
        weights = F.relu(self.scores(query, key) + self.of_distance[distances]) ** 2
        return self.to_out((weights @ value / x.shape[1]).transpose(1, 2).flatten(2))


def test_weights_that_are_cut_off_hide_no_own_key():
    torch.manual_seed(0)
    assert [bug.name for bug in check(Squared()).bugs] == []


class Compared(Heads):
    """Compares the weights of padding with 0 where it should set them to 0."""

    def forward(self, x, mask=None):
        query, key, value = self.split(x)
        weights = self.scores(query, key).softmax(-1)
        if mask is not None:
            weights[~mask[:, None, None].expand_as(weights)] == 0  # noqa: B015
        return self.to_out((weights @ value).transpose(1, 2).flatten(2))


def test_a_comparison_in_place_of_an_assignment_is_the_line_of_a_mask_without_effect():
    torch.manual_seed(0)
    (bug,) = check(Compared()).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert "== 0" in bug.place.source
