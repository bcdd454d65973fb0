"""A shift of relative scores keeps the rows of queries, and takes each distance from one column."""

import pytest
import torch
from torch import nn

from heedful import check


class Relative(nn.Module):
    """Attention with relative positions, those of later keys among them unless it is causal."""

    causal = False

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.d = n_heads, d_model // n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.pos = nn.Linear(d_model, d_model, bias=False)
        self.u, self.w = (nn.Parameter(torch.randn(n_heads, self.d)) for _ in range(2))

    def distances(self, T):
        return torch.arange(T - 1, -1 if self.causal else -T, -1)

    def positions(self, T, C, dtype):
        angles = self.distances(T).to(dtype)[:, None] * 1e4 ** (
            -torch.arange(0, C, 2).to(dtype) / C
        )
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def rel_shift(self, x):
        B, H, T, R = x.shape
        x = torch.cat([x.new_zeros(B, H, T, 1), x], dim=-1)
        x = x.view(B, H, R + 1, T)
        return x[:, :, 1:].view(B, H, T, R)[..., :T]

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (it.view(B, T, self.h, self.d) for it in self.qkv(x).chunk(3, dim=-1))
        r = self.pos(self.positions(T, C, x.dtype)).view(-1, self.h, self.d)
        by_content = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        by_distance = self.rel_shift(torch.einsum("bihd,rhd->bhir", q + self.w, r))
        scores = (by_content + by_distance) * self.d**-0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        context = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.out(context.reshape(B, T, C))


class CausalRelative(Relative):
    causal = True


class TooFew(Relative):
    """Takes scores of the distances to earlier keys alone, although queries see later keys."""

    def distances(self, T):
        return torch.arange(T - 1, -1, -1)


class Unshifted(Relative):
    def rel_shift(self, x):
        B, H, T, R = x.shape
        x = torch.cat([x.new_zeros(B, H, T, 1), x], dim=-1)
        x = x.view(B, H, T, R + 1)
        return x[..., 1:][..., :T]


class PaddedOnTheRight(Relative):
    def rel_shift(self, x):
        B, H, T, R = x.shape
        x = torch.cat([x, x.new_zeros(B, H, T, 1)], dim=-1)
        x = x.view(B, H, R + 1, T)
        return x[:, :, 1:].view(B, H, T, R)[..., :T]


class Skewed(Relative):
    """Shifts the scores of distances in one flat row, in a function of another name."""

    def rel_shift(self, x):
        return self.move_left_shift(x)

    def move_left_shift(self, scores):
        batch, heads, length, distances = scores.shape
        zeros = scores.new_zeros(batch, heads, length, 1)
        flat = torch.cat([zeros, scores], -1).reshape(batch, heads, -1)[..., length:]
        return flat.reshape(batch, heads, length, distances)[..., :length]


class SkewedTooFew(Skewed):
    def distances(self, T):
        steps = torch.arange(T)
        return steps.flip(0)


class SkewedWrongly(Skewed):
    def move_left_shift(self, scores):
        batch, heads, length, distances = scores.shape
        zeros = scores.new_zeros(batch, heads, length, 1)
        flat = torch.cat([zeros, scores], -1).reshape(batch, heads, -1)[..., :-length]
        return flat.reshape(batch, heads, length, distances)[..., :length]


class Clipped(Relative):
    """Treats all keys that are two tokens away or more alike."""

    def distances(self, T):
        return torch.arange(T - 1, -T, -1).clamp(-2, 2)


class Symmetric(Relative):
    """Loses which of two keys at the same distance comes first, as angles without their signs do."""

    def positions(self, T, C, dtype):
        positions = super().positions(T, C, dtype)
        earlier = positions[:T]
        return torch.cat([earlier, earlier[:-1].flip(0)])


class HiddenByCaller(TooFew):
    """Leaves the later keys, for which it has no scores, to a mask of its caller."""

    def skew(self, scores):
        B, H, T, R = scores.shape
        padded = torch.nn.functional.pad(scores, [1, 0]).reshape(B, H, R + 1, T)
        return padded[:, :, 1:].reshape(B, H, T, R)

    def forward(self, x, mask=None):
        scores, v = self.scores_with(x, self.skew)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e30)
        return self.joined(scores, v)

    def scores_with(self, x, shift):
        B, T, C = x.shape
        q, k, v = (it.view(B, T, self.h, self.d) for it in self.qkv(x).chunk(3, dim=-1))
        r = self.pos(self.positions(T, C, x.dtype)).view(-1, self.h, self.d)
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        return (scores + shift(torch.einsum("bihd,rhd->bhir", q, r))) * self.d**-0.5, v

    def joined(self, scores, v):
        return self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))


class HiddenPairs(HiddenByCaller):
    """The same with a function of another name, and a mask of queries and keys, as in Transformer-XL."""

    def rel_shift(self, x):
        B, H, T, R = x.shape
        x = torch.cat([x.new_zeros(B, H, T, 1), x], dim=-1).view(B, H, R + 1, T)
        return x[:, :, 1:].view(B, H, T, R)

    def forward(self, x, attn_mask=None):
        scores, v = self.scores_with(x, self.rel_shift)
        if attn_mask is not None and attn_mask.dim() == 2:
            scores = scores.masked_fill(attn_mask[None, None], -torch.inf)
        elif attn_mask is not None:
            scores = scores.masked_fill(attn_mask.permute(2, 0, 1).unsqueeze(1), -torch.inf)
        return self.joined(scores, v)


def test_a_mask_of_queries_and_keys_is_the_callers():
    report = check(HiddenPairs)
    assert not report.bugs
    assert "relative-shift-wrong" in {it.name for it in report.findings}


def test_scores_of_earlier_keys_alone_need_a_mask_by_the_caller():
    report = check(HiddenByCaller)
    assert not report.bugs
    assert "relative-shift-wrong" in {it.name for it in report.findings}
    names = {it.name for it in check(HiddenByCaller, causal=True).findings}
    assert "relative-shift-wrong" not in names


@pytest.mark.parametrize("target", [Relative, CausalRelative, Skewed, Clipped])
def test_a_right_shift_is_no_bug(target):
    assert not check(target).bugs


@pytest.mark.parametrize(
    ("target", "proof", "line"),
    [
        (TooFew, "none of the scores of this query", "torch.arange(T - 1"),
        (SkewedTooFew, "none of the scores of this query", "torch.arange(T)"),
        (SkewedWrongly, "none of the scores of this query", "reshape(batch, heads, -1)"),
        (Symmetric, "have the same score", "earlier[:-1].flip(0)"),
        (Unshifted, "from columns 0 and 1", "x.view(B, H, "),
        (PaddedOnTheRight, "none of the scores of this query", "x.view(B, H, "),
    ],
)
def test_a_wrong_shift_is_found_where_rows_get_another_length(target, proof, line):
    (bug,) = check(target).bugs
    assert bug.name == "relative-shift-wrong"
    assert proof in bug.proof
    assert bug.place is not None
    assert line in bug.place.source
