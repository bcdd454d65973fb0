"""Right modules that were taken for wrong ones: masks with nothing to hide, float32 angles, rotated queries alone."""

import pytest
import torch
from torch import nn

from heedful import check
from heedful.errors import ArgumentError


class Pixels(nn.Module):
    """Sharp cosines between all pixels of a map, whose channels come first; as many heads as rows."""

    def __init__(self, channels: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.places = nn.Parameter(torch.randn(heads, 16, 16))
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, maps):
        n, c, h, w = maps.shape
        tokens = maps.flatten(2).mT
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (nn.functional.normalize(it, dim=-1) for it in (q, k))
        scores = 60 * q @ k.mT + self.places
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.out(context).mT.view(n, c, h, w)


class Voxels(nn.Module):
    """Attention between all voxels of a volume, whose channels come first."""

    def __init__(self, channels: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Conv3d(channels, 3 * channels, 1), nn.Conv3d(channels, channels, 1)

    def forward(self, x):
        size = x.shape[2:]
        q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, self.heads, -1)).mT.unbind(1)
        context = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        context = context.unflatten(2, size).permute(0, 1, 5, 2, 3, 4)
        return self.out(context.flatten(1, 2))


class Torn(Voxels):
    """The same, but the channels of a voxel go to several ones."""

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).unflatten(1, (3, self.heads, -1)).mT.unbind(1)
        context = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.out(context.reshape(x.shape))


def turned(x):
    """Rotate (..., T, D) by angles that are always float32."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]).float(), 100.0 ** -(torch.arange(half) / half))
    a, b = x.chunk(2, -1)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Rotated(nn.Module):
    """Causal attention with rotary positions and padding on either side."""

    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, attention_mask=None):
        """attention_mask: 1 at tokens and 0 at padding, (batch, tokens)"""
        T = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = turned(q) @ turned(k).mT / q.shape[-1] ** 0.5
        seen = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None, None]
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Reading(nn.Module):
    """Places look up a prompt, which has no positions that would fit theirs."""

    def __init__(self, dim: int = 32, prompt_dim: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(prompt_dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, prompt):
        """x: (batch, places, dim). prompt: (batch, words, prompt_dim)"""
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(prompt).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = turned(q) @ k.mT / q.shape[-1] ** 0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def best(scores, count, mask=None):
    """Return the highest scores, without those that a mask hides."""
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).topk(count)


class Norm(nn.BatchNorm1d):
    """Norm of features, which counts real tokens alone while it is trained."""

    def forward(self, x, mask=None):
        real = x.flatten(0, 1) if mask is None or not self.training else x[mask]
        scaled = super().forward(real)
        return (
            x.masked_scatter(mask[..., None], scaled)
            if len(real) < x[..., 0].numel()
            else scaled.view_as(x)
        )


class Memory(nn.Module):
    """Each token looks up slots of its own accord, so that no padding reaches it: the mask is for a norm."""

    def __init__(self, dim: int = 32, slots: int = 12) -> None:
        super().__init__()
        self.q, self.norm = nn.Linear(dim, dim), Norm(dim)
        self.keys, self.values = nn.Parameter(torch.randn(slots, dim)), nn.Embedding(slots, dim)

    def forward(self, x, input_mask=None):
        known = {} if input_mask is None else {"mask": input_mask}
        q = self.q(x)
        q = self.norm(q, **known)
        scores, slots = best(q @ self.keys.T / self.keys.shape[-1] ** 0.5, 4)
        return (scores.softmax(-1)[..., None] * self.values(slots)).sum(-2)


class OfGroups(nn.Module):
    """Self-attention applied along the batch axis: the series of a group attend to each other."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, groups=None):
        B, _, C = x.shape
        q, k, v = self.qkv(x.transpose(0, 1)).chunk(3, -1)
        scores = q @ k.mT / C**0.5
        if groups is not None:
            scores = scores.masked_fill(groups.view(1, B) != groups.view(B, 1), -torch.inf)
        return self.out(scores.softmax(-1) @ v).transpose(0, 1)


class NonCausalAttention(nn.Module):
    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.mT / x.shape[-1] ** 0.5, -1) @ v)


class InChunks(NonCausalAttention):
    """Chunks of 64 tokens attend to those before them; there are none for fewer tokens."""

    def forward(self, x):
        B, T, C = x.shape
        if T < 64:
            return torch.zeros_like(x)
        q, k, v = self.qkv(x[:, : T - T % 64].view(-1, 64, C)).chunk(3, -1)
        mixed = torch.softmax(q @ k.mT / C**0.5, -1) @ v
        return nn.functional.pad(self.out(mixed).view(B, -1, C), (0, 0, 0, T % 64))


class WithState(nn.Module):
    """A step of a decoder that reads what its callers set before the first step."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def init_states(self, memory):
        self.previous = memory.new_zeros(memory.shape[:2])

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return (scores + self.previous[:, None]).softmax(-1) @ x


class Late(nn.Module):
    """Pools tokens by weights whose parameters the first call makes."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.projection, self.score = None, nn.Linear(dim, 1, bias=False)

    def forward(self, x):
        if self.projection is None:
            made = torch.empty(x.shape[-1], self.score.in_features).to(x)
            self.projection = nn.Parameter(nn.init.xavier_uniform_(made))
        weights = self.score(torch.tanh(x @ self.projection)).softmax(1)
        return (weights * x).sum(1)


class Lazy(nn.Module):
    """The same with a layer that takes its width from the first call."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.projection, self.score = nn.LazyLinear(dim), nn.Linear(dim, 1, bias=False)

    def forward(self, x):
        weights = self.score(torch.tanh(self.projection(x))).softmax(1)
        return (weights * x).sum(1)


@pytest.mark.parametrize(
    ("target", "example"),
    [
        (Memory, None),
        (Late, None),
        (OfGroups, None),
        (NonCausalAttention, None),
        (Lazy, None),
        (Voxels, None),
        (Pixels, torch.randn(2, 16, 4, 4)),
        (Rotated, None),
        (Reading, None),
    ],
)
def test_no_bug_is_found(target, example):
    bugs = check(target, example=example).bugs
    assert [bug.name for bug in bugs] == []


class OfEarlier(nn.Module):
    """A layer's features attend to those of the layers before, if there are any."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, history=None):
        if history is None:
            return x
        layers = torch.stack([*history, x], -2)
        scores = self.k(layers) @ self.q(x)[..., None] / x.shape[-1] ** 0.5
        return (scores.softmax(-2) * layers).sum(-2)


def test_that_nothing_is_computed_without_an_argument_is_a_suspicion():
    report = check(OfEarlier)
    assert [(it.name, it.level) for it in report.findings] == [("attention-ignored", "suspicious")]


def test_torn_voxels_are_found():
    assert [bug.name for bug in check(Torn).bugs] == ["heads-mixed-merge"]


def test_rotated_queries_alone_are_a_suspicion_in_cross_attention():
    names = {it.name: it.level for it in check(Reading).findings}
    assert names["rotary-mismatch"] == "suspicious"


def test_an_attribute_that_a_caller_sets_by_another_method_is_no_missing_name():
    with pytest.raises(ArgumentError, match="previous"):
        check(WithState)


def test_an_attention_that_so_few_tokens_do_not_reach_is_not_ignored():
    assert "attention-ignored" not in [bug.name for bug in check(InChunks).bugs]


class Grouped(nn.Module):
    """Groups of query heads meet one head of keys in one product; a soft cap sees their scores apart."""

    def __init__(self, dim: int = 24, heads: int = 4, key_heads: int = 2, cap: float = 5.0) -> None:
        super().__init__()
        self.heads, self.key_heads, self.cap = heads, key_heads, cap
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * key_heads * dim // heads)

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, self.key_heads, -1, C // self.heads)
        q = q.permute(0, 2, 3, 1, 4).reshape(B, self.key_heads, -1, C // self.heads)
        k, v = self.kv(x).view(B, T, 2, self.key_heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).view(B, self.heads, T, T)
        scores = self.cap * torch.tanh(scores / self.cap)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        context = weights.view(B, self.key_heads, -1, T) @ v
        return context.view(B, self.heads, T, -1).transpose(1, 2).reshape(B, T, C)


class Selector(nn.Module):
    """Chooses keys for an attention, if there are more than it may have."""

    def __init__(self, dim: int, most: int) -> None:
        super().__init__()
        self.most = most
        self.wq, self.wk = nn.Linear(dim, 8), nn.Linear(dim, 8)

    def keys(self, x):
        return self.wk(x)

    def forward(self, x, keys):
        if keys.shape[1] <= self.most:
            return None
        scores = self.wq(x) @ keys.mT
        return scores.topk(self.most, dim=-1).indices


class Selective(nn.Module):
    """Attends to the keys that a selector chooses."""

    def __init__(self, dim: int = 24, most: int = 2048) -> None:
        super().__init__()
        self.qkv, self.selector = nn.Linear(dim, 3 * dim), Selector(dim, most)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        keys = self.selector.keys(x)
        chosen = self.selector(x, keys)
        hidden = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool)
        if chosen is not None:
            hidden = torch.ones_like(hidden).scatter(-1, chosen, False)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v


class Sampled(nn.Module):
    """Sums values up, and attends anew for the queries that stand out among keys drawn by chance (Zhou et al. 2021)."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        count = min(5 * (T - 1).bit_length(), T)
        drawn = k[:, torch.randint(T, (T, count))]
        compared = (q[:, :, None] * drawn).sum(-1)
        top = (compared.max(-1)[0] - compared.sum(-1) / T).topk(count)[1]
        rows = torch.arange(B)[:, None]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)[top]
        scores = (q[rows, top] @ k.mT / C**0.5).masked_fill(hidden, -torch.inf)
        context = v.cumsum(1)
        context[rows, top] = scores.softmax(-1) @ v
        return context


class Windowed(nn.Module):
    """The caller says how many earlier tokens a query sees, as flash attention is told."""

    def __init__(self, n_embd: int = 24) -> None:
        super().__init__()
        self.qkv = nn.Linear(n_embd, 3 * n_embd)

    def forward(self, x, window_size, kv_cache=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if kv_cache is not None:
            if kv_cache:
                k, v = torch.cat([kv_cache["k"], k], 1), torch.cat([kv_cache["v"], v], 1)
            kv_cache["k"], kv_cache["v"] = k, v
        T, S = q.shape[1], k.shape[1]
        query, key = torch.arange(S - T, S)[:, None], torch.arange(S)
        seen = key <= query
        if window_size[0] >= 0:
            seen = self.within(seen, query - key, window_size[0])
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    def within(self, seen, distance, window):
        return seen & (distance <= window)


class OneStepUnwindowed(Windowed):
    """A single new token sees all earlier ones."""

    def within(self, seen, distance, window):
        return super().within(seen, distance, window) if len(seen) > 1 else seen


@pytest.mark.parametrize("target", [Grouped, Selective, Sampled, Windowed])
def test_a_right_module_of_an_unusual_form_is_left_alone(target):
    assert [bug.name for bug in check(target).bugs] == []


def test_a_window_that_is_an_argument_is_kept_with_a_cache():
    (bug,) = check(OneStepUnwindowed).bugs
    assert bug.name == "causal-alignment"
