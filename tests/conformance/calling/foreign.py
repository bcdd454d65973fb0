"""Small attentions in the many styles of public code, whose arguments no convention names."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from conformance.calling.attentions import Projected, attend


class Kept(Projected):
    """Takes a mask of real tokens under a name of its own, 0 at padding."""

    def forward(self, x, not_empty):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Attend over a batch.

        :param not_empty: (batch, length), 0 where a token is empty
        """
        q, k, v = self.split(x)
        return attend(q, k, v, (not_empty == 0)[:, None])


class Dropped(Projected):
    """Takes an optional mask of hidden keys under a name of its own."""

    def forward(self, x, blank=None):
        q, k, v = self.split(x)
        return attend(q, k, v, None if blank is None else blank[:, None])


class Latents(nn.Module):
    """Attends from latents to inputs of another width."""

    def __init__(self, q_dim=10, kv_dim=14):
        super().__init__()
        self.q, self.kv = nn.Linear(q_dim, 24), nn.Linear(kv_dim, 48)

    def forward(self, latents, data):
        return attend(self.q(latents), *self.kv(data).chunk(2, dim=-1))


class RealRotary(Projected):
    """Takes cosines and sines as pairs of real numbers, (T, D / 2, 2)."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.head_dim = d_model

    def forward(self, x, rotation):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        pairs = torch.view_as_complex(rotation.contiguous())
        q, k = (
            torch.view_as_real(torch.view_as_complex(it.unflatten(-1, (-1, 2))) * pairs).flatten(-2)
            for it in (q, k)
        )
        return attend(q, k, v)


class Insisting(Projected):
    """Takes optional positions and a condition, and then asks for both."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.places = nn.Embedding(64, d_model)

    def forward(self, x, position_ids=None, cond=None):
        if position_ids is None:
            raise ValueError("positions must be given")
        assert cond is not None, "this block is conditional"
        q, k, v = self.split(x + self.places(position_ids))
        return cond * attend(q, k, v)


class Windowed(Projected):
    """Takes windows of 3 x 3 tokens only, because its table of biases has one for each pair of them."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.table = nn.Parameter(torch.randn(9, 9))

    def forward(self, x):
        B, N, C = x.shape  # noqa: RUF059 - declares the axes
        q, k, v = self.split(x)
        scores = q @ k.transpose(-2, -1) * C**-0.5
        return (scores + self.table).softmax(-1) @ v


class Sizes(Projected):
    def __init__(self, hid_chans: int, head_num: int, fancy: bool, flavour_rate: float):
        super().__init__(hid_chans * head_num)


@dataclass
class Settings:
    width_of_model: int
    n_head_total: int
    use_fancy: bool


class OfSettings(Projected):
    def __init__(self, settings):
        super().__init__(settings.width_of_model)
        self.count = settings.n_head_total
        self.fancy = settings.use_fancy


class Divided(Projected):
    """Rejects widths that its default head size does not divide."""

    def __init__(self, dim, dim_per_head=32):
        assert dim % dim_per_head == 0, "dim must be divisible by dim_per_head"
        super().__init__(dim)


class ImageAttention(nn.Module):
    """Attends over the pixels of a feature map, (B, C, H, W)."""

    def __init__(self, channels):
        super().__init__()
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        return attend(q, k, v).transpose(1, 2).reshape(b, c, h, w)


class Frequencies(nn.Module):
    """Weighs the rows of a spectrogram, (B, C, F, T), of which it takes a fixed number."""

    def __init__(self, channels, rows=40):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(channels, channels, 1), nn.Linear(rows, rows)

    def forward(self, x):
        b, c, f, t = x.size()
        rows = self.conv(x).view(b, c, f, t).mean((1, 3))
        return x * self.fc(rows).softmax(-1).view(b, 1, f, 1)


class OfLargeImages(nn.Module):
    """Attends over the patches of a feature map, (B, C, H, W), whose sides are 70 pixels."""

    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(channels, channels, 1)
        self.patches = nn.Conv2d(channels, 3 * channels, 70, stride=70, padding=20)

    def forward(self, x):
        b, c, _, _ = x.shape
        q, k, v = self.patches(self.stem(x)).flatten(2).view(b, 3, c, -1).mT.unbind(1)
        return attend(q, k, v).mT


class ChannelsLast(Projected):
    """Attends over the pixels of a feature map, (B, H, W, C)."""

    def forward(self, x):
        B, H, W, C = x.shape
        q, k, v = (it.reshape(B, H * W, C) for it in self.split(x))
        return attend(q, k, v).view(B, H, W, C)


class Matrix(Projected):
    """Needs a matrix that nobody can guess."""

    def forward(self, x, connection):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        return attend(q @ connection.reshape(24, 6, 4).flatten(1), k, v)


class WrongView(Projected):
    """Views a transposed tensor, which fails whatever the inputs are."""

    def forward(self, x):
        B, T, C = x.shape  # noqa: RUF059 - declares the axes
        q, k, v = self.split(x)
        return attend(q, k, v).transpose(1, 2).view(B, -1)


class Strict(Projected):
    """Accepts an even number of tokens only, and says so."""

    def forward(self, x):
        B, T, C = x.shape  # noqa: RUF059 - declares the axes
        q, k, v = self.split(x)
        assert T == 1000, "made for 1000 tokens"
        return attend(q, k, v)


class FiveAxes(Projected):
    def forward(self, x):
        B, H, X, Y, C = x.shape  # noqa: RUF059 - declares the axes
        q, k, v = self.split(x)
        return attend(q, k, v)


class Asserted(Projected):
    """Requires a mask, (T, T, B), although it has a default."""

    def forward(self, x, mask=None):
        assert mask is not None
        assert mask.dim() == 3
        assert mask.shape[0] == mask.shape[1]
        q, k, v = self.split(x)
        return attend(q, k, v, ~mask.permute(2, 0, 1))


class Uncut(Projected):
    """Never cuts its causal mask to the tokens."""

    def __init__(self, d_model, limit=11):
        super().__init__(d_model)
        self.register_buffer("ahead", torch.ones(limit, limit).triu(1).bool())

    def forward(self, x):
        q, k, v = self.split(x)
        return attend(q, k, v, self.ahead)


class Unannotated(Projected):
    def __init__(self, dim, proj_kernel, h_s):
        super().__init__(dim)
        assert h_s == 1
        self.kernel = torch.ones(proj_kernel)


class Outdated(Projected):
    """Calls a function that its library has removed."""

    def forward(self, x):
        weights = math.softmax_of(x @ x.mT)  # pyright: ignore[reportAttributeAccessIssue]
        return weights @ self.split(x)[2]


class Slow(nn.Module):
    """Takes long to reject each of many calls."""

    calls = 0

    def __init__(self, dim):
        super().__init__()
        self.to_q = nn.Linear(dim, dim)

    def forward(self, thing, other, third):
        Slow.calls += 1
        time.sleep(0.2)
        raise ValueError("none of these")


class EncodedText(nn.Module):
    """Takes the tokens of a text and those of its translation, which are of one width."""

    def __init__(self, d_model=32, nhead=4):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(d_model, nhead, 16, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(d_model, nhead, 16, batch_first=True)

    def forward(self, src, tgt):
        later = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        return self.decoder(tgt, self.encoder(src), tgt_mask=later)


class Denoiser(nn.Module):
    """Takes the time of the diffusion of each sequence."""

    def __init__(self, dim=32):
        super().__init__()
        self.time, self.attention = (
            nn.Linear(1, dim),
            nn.MultiheadAttention(dim, 4, batch_first=True),
        )

    def forward(self, hidden_states, timestep):
        x = hidden_states + self.time(timestep[:, None])[:, None]
        return self.attention(x, x, x)[0]


class Hopeless(nn.Module):
    """Rejects every call, whatever its width is."""

    built = 0

    def __init__(self, dim):
        super().__init__()
        Hopeless.built += 1
        self.to_q = nn.Linear(dim, dim)

    def forward(self, thing, other, third):
        raise ValueError("none of these")


class Folded(Projected):
    """Folds its heads into the batch, but not the mask."""

    def __init__(self, d_model, parts=3):
        super().__init__(d_model)
        self.parts = parts

    def folded(self, mask):
        return mask

    def forward(self, x, real=None):
        """
        x: (batch, length, width)
        real: (batch, length), true where a token is real
        """
        q, k, v = (it.unflatten(-1, (self.parts, -1)) for it in self.split(x))
        q, k, v = (it.transpose(1, 2).flatten(0, 1) for it in (q, k, v))
        hidden = None
        if real is not None:
            hidden = self.folded(~real.bool()).unsqueeze(1)
            hidden = hidden | torch.zeros(len(q), 1, x.shape[1], dtype=torch.bool)
        out = attend(q, k, v, hidden)
        return out.unflatten(0, (-1, self.parts)).transpose(1, 2).flatten(2)


class FoldedWhole(Folded):
    """Folds its mask, too."""

    def folded(self, mask):
        return mask.repeat_interleave(self.parts, 0)


class OneQuery(nn.Module):
    """Sums annotations by the scores that the state of a decoder gives them (Bahdanau et al. 2015)."""

    def __init__(self, d_model):
        super().__init__()
        self.of_state, self.of_notes = nn.Linear(d_model, 10), nn.Linear(d_model, 10)
        self.score = nn.Linear(10, 1)

    def hide(self, scores, hidden):
        return scores.masked_fill(hidden, -torch.inf)

    def forward(self, state, notes, blank_mask=None):
        scores = self.score((self.of_state(state)[:, None] + self.of_notes(notes)).tanh())[..., 0]
        if blank_mask is not None:
            scores = self.hide(scores, blank_mask)
        return (scores.softmax(-1)[..., None] * notes).sum(1)


class OneQueryUnmasked(OneQuery):
    """Drops the result of its masking step."""

    def hide(self, scores, hidden):
        scores.masked_fill(hidden, -torch.inf)
        return scores


class Star(Projected):
    """Passes on whatever it is given."""

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)

    def inner(self, x):
        return super().forward(x)


class PixelWeights(nn.Module):
    """Returns the weights of pixels, for each point and head."""

    merged = 3

    def __init__(self, width, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.of_points, self.of_pixels = nn.Linear(width, width), nn.Conv2d(width, width, 1)

    def forward(self, points, picture):
        """
        Args:
            points: (batch, number, width). picture: (batch, width, height, width of the picture).
        """
        q = self.of_points(points).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.of_pixels(picture).unflatten(1, (self.num_heads, -1))
        scores = torch.einsum("bhnd,bhdyx->bnhyx", q * q.shape[-1] ** -0.5, k)
        return scores.flatten(self.merged).softmax(-1).view(scores.shape)


class PixelWeightsOfAllHeads(PixelWeights):
    merged = 2


class MaskedPixels(PixelWeights):
    """Hides the pixels at which a mask says so."""

    def forward(self, points, picture, hidden_mask=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        """
        Args:
            points: (batch, number, width). picture: (batch, width, height, width of the picture).
            hidden_mask: (batch, height, width of the picture), of the pixels that nothing is to look at.
        """
        q = self.of_points(points).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k = self.of_pixels(picture).unflatten(1, (self.num_heads, -1))
        scores = torch.einsum("bhnd,bhdyx->bnhyx", q * q.shape[-1] ** -0.5, k)
        if hidden_mask is not None:
            scores = scores.masked_fill(hidden_mask[:, None, None], float("-inf"))
        return scores.flatten(3).softmax(-1).view(scores.shape)


class OfGrid(Projected):
    """Takes the pixels of a grid as tokens, and the sizes of the grid."""

    def forward(self, x, H: int, W: int):  # pyright: ignore[reportIncompatibleMethodOverride]
        B, N, C = x.shape
        assert N == H * W
        grid = x.transpose(1, 2).reshape(B, C, H, W)
        q, k, v = self.split(grid.flatten(2).transpose(1, 2))
        return attend(q, k, v)


class OfShape(Projected):
    def forward(self, x, spatial_shape):  # pyright: ignore[reportIncompatibleMethodOverride]
        height, width = spatial_shape
        q, k, v = self.split(x.unflatten(1, (height, width)).flatten(1, 2))
        return attend(q, k, v)


class OfEdges(Projected):
    """Attends along the edges of a graph."""

    def forward(self, nodes, edge_index):  # pyright: ignore[reportIncompatibleMethodOverride]
        source, goal = edge_index
        q, k, v = self.split(nodes)
        weights = (q[goal] * k[source]).sum(-1).mul(q.shape[-1] ** -0.5).exp()[:, None]
        sums = torch.zeros_like(q[:, :1]).index_add(0, goal, weights)
        return torch.zeros_like(v).index_add(0, goal, weights / sums[goal] * v[source])


class OfPacked(Projected):
    """Attends within each of several sequences that follow one another."""

    def forward(self, x, cu_seqlens, max_seqlen):  # pyright: ignore[reportIncompatibleMethodOverride]
        assert int(cu_seqlens.diff().max()) <= max_seqlen
        bounds = cu_seqlens.tolist()
        parts = (x[a:b] for a, b in pairwise(bounds))
        return torch.cat([attend(*self.split(part)) for part in parts])


class HeadsLast(nn.Module):
    """Attends with the axis of tokens before that of heads, and says so."""

    def __init__(self, use_dropout=False, dropout=0.1):
        super().__init__()
        self.use_dropout, self.dropout = use_dropout, nn.Dropout(dropout)

    def forward(self, queries, keys, values, q_mask=None, kv_mask=None):
        """
        Args:
            queries: [N, L, H, D]
            keys: [N, S, H, D]
            values: [N, S, H, D]
        """
        scores = torch.einsum("nqhd,nkhd->nqkh", queries, keys) * queries.shape[-1] ** -0.5
        if q_mask is not None and kv_mask is not None:
            hidden = ~(q_mask[:, :, None] & kv_mask[:, None])
            scores = scores.masked_fill(hidden[..., None], -torch.inf)
        weights = scores.softmax(2)
        if self.use_dropout:
            weights = self.dropout(weights)
        return torch.einsum("nqkh,nkhd->nqhd", weights, values)


def heads_last(q, k, v):
    weights = torch.einsum("iqhd,ikhd->ihqk", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("ihqk,ikhd->iqhd", weights, v)


def heads_commented(q, k, v):
    # q, k, v all have 4 dimensions: [batch_size, n_steps, n_heads, head_size]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return attend(q, k, v).transpose(1, 2)


class PartsOfPatches(Projected):
    """Attends over the third of four axes."""

    def forward(self, x):
        b, p, n, hd = x.shape
        return attend(*self.split(x)).reshape(b, p, n, hd)


class Rows(Projected):
    """Attends along the first of four axes, before columns and the batch."""

    heads = 4

    def forward(self, x):
        num_rows, num_cols, batch_size, width = x.shape
        q, k, v = (it.unflatten(-1, (self.heads, -1)) for it in self.split(x))
        scores = torch.einsum("icnhd,jcnhd->hcnij", q * q.shape[-1] ** -0.5, k)
        context = torch.einsum("hcnij,jcnhd->icnhd", scores.softmax(-1), v)
        return context.reshape(num_rows, num_cols, batch_size, width)


class HandedOn(Projected):
    """Hands what its constructor takes to the one that it inherits."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)


class OfDistances(Projected):
    """Adds scores of queries and of embeddings of distances."""

    def forward(self, query, key, value, pos_enc, mask=None):
        """
        Args:
            query: (#batch, time1, size).
            key: (#batch, time2, size).
            value: (#batch, time2, size).
            pos_enc: Embeddings of distances
                (#batch, 2*time1-1, size).
            mask: (#batch, time2), True at padding.
        """
        q, k, v = (self.split(it)[n] for n, it in enumerate((query, key, value)))
        T = query.shape[1]
        of_distances = q @ pos_enc.mT
        shift = torch.arange(T)[None] - torch.arange(T)[:, None] + T - 1
        scores = q @ k.mT + of_distances.gather(-1, shift.expand(len(q), T, T))
        if mask is not None:
            scores = scores.masked_fill(mask[:, None], -torch.inf)
        return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


class Unset(Projected):
    """Has a property that subclasses are to set."""

    @property
    def hidden_size(self):
        raise NotImplementedError("not set")


class AfterContext(Projected):
    """Attends to a context and to earlier tokens; the mask hides the padding of the context alone."""

    def forward(self, x, context, context_mask=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = (
            torch.cat(both, dim=1) for both in zip(self.split(context), self.split(x), strict=True)
        )
        later = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool)
        hidden = later.triu(k.shape[1] - x.shape[1] + 1)
        if context_mask is not None:
            rest = k.shape[1] - context_mask.shape[1]
            kept = nn.functional.pad(context_mask, (0, rest), value=True)
            hidden = hidden | ~kept[:, None]
        return attend(q[:, context.shape[1] :], k, v, hidden)


class Continued(Projected):
    """Keeps its keys, and needs to know where a call begins although it has a default."""

    def __init__(self, d_model=24):
        super().__init__(d_model)
        self.keys, self.values = torch.zeros(4, 80, d_model), torch.zeros(4, 80, d_model)

    def forward(self, x, start_pos=None):
        B, T, _ = x.shape
        q, k, v = self.split(x)
        keys, values = (kept[:B].clone().to(x.dtype) for kept in (self.keys, self.values))
        keys[:, start_pos : start_pos + T] = k
        values[:, start_pos : start_pos + T] = v
        return attend(q, keys[:, : start_pos + T], values[:, : start_pos + T])


class OfPairs(Projected):
    """Adds a score for each pair of tokens, from a vector that its caller makes."""

    def __init__(self, d_model=24):
        super().__init__(d_model)
        self.of_pair = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, position_embeddings):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        by_pair = torch.einsum("bic,ijc->bij", q, self.of_pair(position_embeddings))
        return ((q @ k.mT + by_pair) * q.shape[-1] ** -0.5).softmax(-1) @ v


class ManyArguments(Projected):
    """Takes more vectors of each token than are tried in all ways."""

    def forward(self, items, times_K, times_V, places_K, places_V):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(items)
        return attend(q, k + times_K + places_K, v + times_V + places_V)


class OverChannels(nn.Module):
    """Compares the channels of a feature map: the pixels are the features of what is weighted."""

    def __init__(self, dim, num_heads, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Conv2d(dim, 3 * dim, 1, bias=bias)
        self.out = nn.Conv2d(dim, dim, 1, bias=bias)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).reshape(b, 3, self.num_heads, -1, h * w).unbind(1)
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        weights = (q @ k.mT * self.temperature).softmax(-1)
        return self.out((weights @ v).reshape(b, c, h, w))


class OneOfTwo(Projected):
    """Is built for one of two uses, which has to be chosen."""

    def __init__(self, d_model, in_encoder=False, in_decoder=False):
        super().__init__(d_model)
        assert in_encoder ^ in_decoder

    def forward(self, x):
        return attend(*self.split(x))


class OfSides(Projected):
    """Attends within a window of so many rows and columns, with a bias for each pair."""

    def __init__(self, d_model, window_size):
        super().__init__(d_model)
        pixels = window_size[0] * window_size[1]
        self.bias = nn.Parameter(torch.randn(pixels, pixels))

    def forward(self, x):
        q, k, v = self.split(x)
        return (q @ k.mT * q.shape[-1] ** -0.5 + self.bias).softmax(-1) @ v


class OfPlaces(Projected):
    """Adds what the offset of two places says to their score."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.offset = nn.Linear(3, 1)

    def forward(self, points, pos):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(points)
        offsets = pos[:, :, None, :] - pos[:, None, :, :]
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.offset(offsets).squeeze(-1)
        return scores.softmax(-1) @ v


class OfEdgeFeatures(Projected):
    """Adds a vector for each edge to the key."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.of_edge = nn.Linear(d_model, d_model)

    def forward(self, nodes, edges):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(nodes)
        keys = k[:, None] + self.of_edge(edges)
        return (torch.einsum("bic,bijc->bij", q, keys) * q.shape[-1] ** -0.5).softmax(-1) @ v


class InBlocks(nn.Module):
    """Attends within the squares of a feature map, whose sides they divide."""

    def __init__(self, dim, window_size):
        super().__init__()
        self.side = window_size
        self.qkv, self.out = nn.Conv2d(dim, 3 * dim, 1), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, height, width, side = *x.shape, self.side
        parts = self.qkv(x).view(b, 3, c, height // side, side, width // side, side)
        q, k, v = parts.permute(1, 0, 3, 5, 4, 6, 2).flatten(4, 5)
        context = attend(q, k, v).unflatten(3, (side, side)).permute(0, 5, 1, 3, 2, 4)
        return self.out(context.reshape(b, c, height, width))


class OfChannels(Projected):
    """Is built for a number of channels, under a name that others use for a configuration."""

    def __init__(self, c: int):
        super().__init__(c)

    def forward(self, x):
        return attend(*self.split(x))


class Axial(Projected):
    """Attends along the axis that its constructor is given."""

    def __init__(self, d_model, axis):
        super().__init__(d_model)
        self.axis = axis

    def forward(self, x):
        rows = x.transpose(self.axis, -2)
        return attend(*self.split(rows)).transpose(self.axis, -2)


class OfPixels(nn.Module):
    """Attends between the pixels of maps with as many axes as its constructor is given."""

    def __init__(self, spatial_dims, in_planes, out_planes):
        super().__init__()
        convolution = {2: nn.Conv2d, 3: nn.Conv3d}[spatial_dims]
        self.qkv = convolution(in_planes, 3 * out_planes, 1)
        self.out = convolution(out_planes, in_planes, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        context = attend(q, k, v).transpose(1, 2)
        return self.out(context.unflatten(2, x.shape[2:]))


class Molecule(Projected):
    """Adds the weights of bonds, and of distances where the mask is 1, to those of the attention."""

    def forward(self, x, adj_matrix, distances_matrix, mask=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        visible = mask.unsqueeze(1).repeat(1, mask.shape[-1], 1) == 1
        near = distances_matrix.neg().masked_fill(~visible, -torch.inf).softmax(-1)
        bonds = adj_matrix / (adj_matrix.sum(-1, keepdim=True) + 1e-6)
        return attend(q, k, v, ~visible) + (near + bonds) @ v


class OfAngles(Projected):
    """Keeps its keys and values, and takes the complex angles of the new tokens under a name of its own."""

    def __init__(self, d_model, max_batch_size, max_seq_len):
        super().__init__(d_model)
        self.head_dim = d_model
        for name in ("cache_k", "cache_v"):
            self.register_buffer(name, torch.zeros(max_batch_size, max_seq_len, d_model))

    def forward(self, x, freqs_complex, start_pos: int):  # pyright: ignore[reportIncompatibleMethodOverride]
        B, T, _ = x.shape
        q, k, v = self.split(x)
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(it.unflatten(-1, (-1, 2))) * freqs_complex
            ).flatten(-2)
            for it in (q, k)
        )
        stop = start_pos + T
        self.cache_k[:B, start_pos:stop] = k
        self.cache_v[:B, start_pos:stop] = v
        hidden = torch.ones(T, stop, dtype=torch.bool).triu(start_pos + 1)
        return attend(q, self.cache_k[:B, :stop], self.cache_v[:B, :stop], hidden)


class Captions(nn.Module):
    """Attends to the regions of an image by the two states of a decoder's cell."""

    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.of_regions, self.of_hidden, self.of_cell = (
            nn.Linear(width, attention_dim) for width in (encoder_dim, decoder_dim, decoder_dim)
        )
        self.score = nn.Linear(attention_dim, 1)

    def forward(self, img_features, h, c):
        query = (
            torch.cat([self.of_hidden(h), self.of_cell(c)], 1).unflatten(1, (2, -1)).sum(1, True)
        )
        weights = self.score((self.of_regions(img_features) + query).tanh()).squeeze(2).softmax(1)
        return (img_features * weights.unsqueeze(2)).sum(1), weights


class NextItem(nn.Module):
    """Scores every item as the next one of each sequence of items, whose number is no width."""

    def __init__(self, num_items, hidden_dim=32):
        super().__init__()
        self.items = nn.Embedding(num_items + 1, hidden_dim, padding_idx=0)
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)
        self.output = nn.Linear(hidden_dim, num_items + 1)

    def forward(self, x):
        return self.output(attend(*self.qkv(self.items(x)).chunk(3, -1))[:, -1])


class Omitted(Projected):
    """Requires an argument that has a default."""

    def forward(self, x, spacing=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        return attend(self.apart(q, spacing), k, v)

    def apart(self, q, spacing):
        return torch.einsum("bt,btc->btc", spacing, q)


class OfSquares(Projected):
    """Adds a bias of the places in a square image, whose side is rounded down, as an axis that broadcasts."""

    def forward(self, x):
        _, n, _ = x.shape
        side = int(n**0.5)
        rows, columns = torch.arange(n).remainder(side), torch.arange(side * side) // side
        bias = (rows[: side * side, None] - columns).abs().double()
        q, k, v = self.split(x)
        return (q @ k.mT / q.shape[-1] ** 0.5 - bias).softmax(-1) @ v


class Memory(nn.Module):
    """Attends with several heads from one query of each sequence, (B, C), to a memory, (B, T, C)."""

    fill = -1e9

    def __init__(self, h, d_model):
        super().__init__()
        self.h, self.size = h, d_model // h
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        q = self.linears[0](query).view(n, self.h, self.size)
        k, v = (
            layer(it).view(n, -1, self.h, self.size).transpose(1, 2)
            for layer, it in zip(self.linears[1:3], (key, value), strict=True)
        )
        scores = (k @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(self.size)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, self.fill)
        context = (scores.softmax(-1).unsqueeze(-1) * v).sum(2)
        return self.linears[3](context.reshape(n, -1))


class MemoryShown(Memory):
    """Fills the scores of padding with a tiny number in place of a low one."""

    fill = 1e-9


class OfBothSides(nn.Module):
    """Adds an embedding of the places of an image, whose height and width its constructor takes as a pair."""

    def __init__(self, dim, resolution, window_size, stage_idx, shift_size, scale=None):
        super().__init__()
        assert scale is None or isinstance(scale, float)
        self.resolution, self.window_size = resolution, window_size
        height, width = resolution
        assert height % window_size[0] == 0
        assert shift_size < window_size[1]
        self.name = ["first", "second"][stage_idx]
        self.places = nn.Parameter(torch.randn(height * width, dim))
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        height, width = self.resolution
        assert x.shape[1] == height * width, "no such image"
        return attend(*self.qkv(x + self.places).chunk(3, dim=-1))


class OfUnsetWidth(nn.Module):
    """Needs a width and a number of heads, although it declares None."""

    def __init__(self, embed_dim: Any = None, num_heads: Any = None):
        super().__init__()
        self.head_dim = embed_dim // num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)

    def forward(self, x):
        q, k, v = (it.unflatten(-1, (-1, self.head_dim)).mT for it in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (it.permute(0, 3, 1, 2) for it in (q, k, v))
        return attend(q, k, v).permute(0, 2, 3, 1).flatten(2)


class OfGroups(Projected):
    """Attends within groups of tokens, (batch, group, token, features), which only a permutation shows."""

    def forward(self, x):
        q, k, v = (it.permute(0, 1, 3, 2) for it in self.split(x))
        return attend(q.mT, k.mT, v.mT)


class AroundPixels(nn.Module):
    """Compares each pixel with all of them, without any weights."""

    def forward(self, image):
        B, H, W, D = image.shape
        pixels = image.reshape(B, H * W, D)
        return attend(pixels, pixels, pixels).reshape(B, H, W, D)


class OfVideo(nn.Module):
    """Attends over the pixels of all frames of a video."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Conv3d(dim, 3 * dim, 1)

    def forward(self, x):
        b, c, t, h, w = x.shape
        q, k, v = (it.flatten(2).mT for it in self.qkv(x).chunk(3, dim=1))
        return attend(q, k, v).mT.reshape(b, c, t, h, w)


class OfCountedDistances(Projected):
    """Adds scores of queries and of one vector for each distance, which the code alone counts."""

    def forward(self, x, pos_enc):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        T, width = x.shape[1:]
        vectors = pos_enc.view(2 * T - 1, width)
        shift = torch.arange(T)[None] - torch.arange(T)[:, None] + T - 1
        scores = q @ k.mT + (q @ vectors.mT).gather(-1, shift.expand(len(q), T, T))
        return (scores * width**-0.5).softmax(-1) @ v


class OfJoinedState(nn.Module):
    """Weights the notes of an encoder, (T, B, 2 C), by a layer of each one joined to a state of another width."""

    def __init__(self, note_size, state_size):
        super().__init__()
        self.joined = nn.Linear(2 * note_size + state_size, state_size)
        self.score = nn.Linear(state_size, 1)

    def forward(self, state, notes):
        every = state.unsqueeze(0).expand(notes.size(0), -1, -1)
        energy = torch.tanh(self.joined(torch.cat((every, notes), dim=2)))
        return self.score(energy).squeeze(2).t().softmax(1)


class OfStateWithAxis(nn.Module):
    """Attends from one state for each sequence, (B, 1, C), to notes, (B, T, C)."""

    def __init__(self, size):
        super().__init__()
        self.general = nn.Linear(size, size, bias=False)

    def forward(self, notes, state):
        asked = self.general(state.squeeze(1)).unsqueeze(-1)
        weights = torch.bmm(notes, asked).squeeze(-1).softmax(-1)
        return torch.bmm(weights.unsqueeze(1), notes)


class OfLinks(Projected):
    """Attends to the nodes of one graph, which a matrix of 0 and 1 links, given before them."""

    def forward(self, links, inputs):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = (torch.mm(inputs, part.T) for part in self.qkv.weight.chunk(3))
        scores = torch.mm(q, k.T) / k.shape[-1] ** 0.5
        return torch.mm((links * scores - (1 - links) * 1e12).softmax(1), v)


class InTiles(nn.Module):
    """Attends within tiles of 7 × 7 pixels, which must divide an image."""

    def __init__(self, dim, tile_window=7):
        super().__init__()
        self.tile_window = tile_window
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        side = self.tile_window
        assert h % side == 0, "the height cannot be cut into tiles"
        assert w % side == 0, "the width cannot be cut into tiles"
        rows, columns = h // side, w // side
        tiles = self.qkv(x).unflatten(3, (columns, side)).unflatten(2, (rows, side))
        pixels = tiles.permute(0, 2, 4, 3, 5, 1).reshape(b * rows * columns, side * side, 3 * c)
        attended = attend(*pixels.chunk(3, dim=-1)).reshape(b, rows, columns, side, side, c)
        return attended.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)


class OfOptionalKeys(Projected):
    """Attends to keys and values that may be left out only beside kept ones."""

    def forward(self, query, key=None, value=None, kept=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if kept is None and (key is None or value is None):
            raise ValueError("keys and values, or kept ones")
        q, _, _ = self.split(query)
        k, v = kept or (self.split(key)[1], self.split(value)[2])
        return attend(q, k, v)


class OfEncoderLayer(nn.TransformerEncoderLayer):
    """Attends in a layer of PyTorch whose tokens come first, which a transposed copy does not show."""

    def __init__(self, d_model, nhead, batch_first=False):
        super().__init__(d_model, nhead, batch_first=batch_first)
        self.nhead = nhead

    def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
        if not self.self_attn.batch_first:
            x = x.transpose(0, 1)
        batch, length, _ = x.shape
        rows = F.linear(x, self.self_attn.in_proj_weight, self.self_attn.in_proj_bias)
        q, k, v = (it.unflatten(-1, (self.nhead, -1)).transpose(1, 2) for it in rows.chunk(3, -1))
        masks = (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None])
        mask = sum((it for it in masks if it is not None), start=x.new_zeros(1, 1, length, length))
        context = F.scaled_dot_product_attention(q, k, v, mask, is_causal=False)
        rows = self.self_attn.out_proj(context.transpose(1, 2).reshape(batch, length, -1))
        return rows if self.self_attn.batch_first else rows.transpose(0, 1)


class Translator(nn.Module):
    """Takes the ids of a source, and those of its translation so far, which a mask of 0 and 1 keeps causal."""

    def __init__(self, src_vocab, tgt_vocab, dim=24, pad=0):
        super().__init__()
        self.pad = pad
        self.source, self.target = nn.Embedding(src_vocab, dim), nn.Embedding(tgt_vocab, dim)
        self.encoder, self.decoder, self.cross = (nn.Linear(dim, 3 * dim) for _ in range(3))
        self.out = nn.Linear(dim, tgt_vocab)

    def attend(self, layer, queries, keys, seen):
        q, k, v = (
            F.linear(it, *parts)
            for it, parts in zip(
                (queries, keys, keys),
                zip(layer.weight.chunk(3), layer.bias.chunk(3), strict=True),
                strict=True,
            )
        )
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(seen == 0, -1e9)
        return queries + scores.softmax(-1) @ v

    def future(self, T):
        return torch.tril(torch.ones(1, T, T, dtype=torch.int64))

    def forward(self, src, trg):
        in_source, in_target = (src != self.pad)[:, None].long(), (trg != self.pad)[:, None].long()
        memory = self.source(src)
        memory = self.attend(self.encoder, memory, memory, in_source)
        rows = self.target(trg)
        rows = self.attend(self.decoder, rows, rows, in_target & self.future(trg.shape[1]))
        return self.out(self.attend(self.cross, rows, memory, in_source))


class BackwardTranslator(Translator):
    """Keeps the mask of later tokens in place of its opposite."""

    def future(self, T):
        return torch.triu(torch.ones(1, T, T, dtype=torch.int64), 1)


class OfScaledVideo(nn.Module):
    """Attends over the pixels of all frames of a video, whose channels a gain of five axes scales."""

    def __init__(self, dim):
        super().__init__()
        self.gain = nn.Parameter(1 + torch.rand(1, dim, 1, 1, 1))
        self.qkv = nn.Conv1d(dim, 3 * dim, 1)

    def forward(self, x):
        q, k, v = (it.mT for it in self.qkv((x * self.gain).flatten(2)).chunk(3, dim=1))
        return attend(q, k, v).mT.view(x.shape)


class OfPiles(nn.Module):
    """Pools the tokens of each pixel, (B, C, Y, X, N), into one: (B, C, Y, X)."""

    def __init__(self, dim):
        super().__init__()
        self.query, self.kv = nn.Parameter(torch.randn(dim)), nn.Linear(dim, 2 * dim)

    def forward(self, piles):
        B, C, Y, X, N = piles.shape
        k, v = self.kv(piles.permute(0, 2, 3, 4, 1).reshape(B * Y * X, N, C)).chunk(2, dim=-1)
        return attend(self.query.expand(len(k), 1, C), k, v).view(B, Y, X, C).permute(0, 3, 1, 2)


class WeightsOfState(nn.Module):
    """Only the weights are returned, (B, 1, T), for a state outside (1, B, C) and keys (T, B, C)."""

    def forward(self, hidden, encoder_outputs):
        energies = torch.sum(hidden * encoder_outputs, dim=2).t()
        return torch.softmax(energies, dim=1).unsqueeze(1)


class WeightsOverBatch(nn.Module):
    """The same with weights over the sequences."""

    def forward(self, hidden, encoder_outputs):
        energies = torch.sum(hidden * encoder_outputs, dim=2).t()
        return torch.softmax(energies, dim=0).unsqueeze(1)


class OfTranslation(nn.Module):
    """The ids of a translation attend to one another and to an encoder's frames.

    frame_len: (batch,), the number of frames of each recording.
    """

    def __init__(self, vocab=40, d_model=24, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.own = nn.MultiheadAttention(d_model, heads, batch_first=True)
        self.cross = nn.MultiheadAttention(d_model, heads, batch_first=True)
        self.out = nn.Linear(d_model, vocab)

    def hidden(self, frames, frame_len):
        return torch.arange(frames.shape[1]) >= frame_len[:, None]

    def forward(self, tgt, frames, frame_len):
        T = tgt.shape[1]
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        x = self.embed(tgt)
        x = x + self.own(x, x, x, attn_mask=later, need_weights=False)[0]
        hidden = self.hidden(frames, frame_len)
        x = x + self.cross(x, frames, frames, key_padding_mask=hidden, need_weights=False)[0]
        return self.out(x)


class OfTranslationWithoutLengths(OfTranslation):
    """The same without the numbers of frames.

    frame_len: (batch,), the number of frames of each recording.
    """

    def forward(self, tgt, frames, frame_len):
        T = tgt.shape[1]
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        frames_mask = None
        x = self.embed(tgt)
        x = x + self.own(x, x, x, attn_mask=later, need_weights=False)[0]
        x = x + self.cross(x, frames, frames, key_padding_mask=frames_mask, need_weights=False)[0]
        return self.out(x)


class OfConvertedLengths(nn.Module):
    """Pools frames, and makes nothing of their number but a number of another dtype."""

    def __init__(self, dim=24):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x, length):
        length = length.float()
        weights = torch.softmax(self.score(x), dim=1)
        return (weights * x).sum(1)


class OfChannelsFirst(nn.Module):
    """Pools frames of shape [B, DE, T] into one row of shape [B, DE]."""

    def __init__(self, input_size=24):
        super().__init__()
        self.score = nn.Linear(input_size, input_size)

    def forward(self, encodings):
        weights = torch.softmax(self.score(encodings.transpose(1, 2)).transpose(1, 2), dim=2)
        return (weights * encodings).sum(2)


class Documented(nn.Module):
    """An attention that documents its mask.

    Args:
        attn_mask (Tensor): Boolean, (T, T).
            The same as in `torch.nn.MultiheadAttention`.
    """

    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def keeps(self, attn_mask):
        return ~attn_mask

    def forward(self, x, attn_mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~self.keeps(attn_mask), -torch.inf)
        return self.out(scores.softmax(-1) @ v)


class HandingOn(nn.Module):
    """A layer that hands its mask on as it is."""

    part = Documented

    def __init__(self, dim=24):
        super().__init__()
        self.attention = self.part(dim)

    def forward(self, x, attn_mask=None):
        return x + self.attention(x, attn_mask=attn_mask)


class Negating(Documented):
    """The same with the wrong convention.

    Args:
        attn_mask (Tensor): Boolean, (T, T).
            The same as in `torch.nn.MultiheadAttention`.
    """

    def keeps(self, attn_mask):
        return attn_mask


class HandingOnWrongly(HandingOn):
    """A layer around it."""

    part = Negating


class InLongBlocks(nn.Module):
    """Takes no fewer tokens than a block has, and unpacks a slice of the shape."""

    def __init__(self, dim=24, heads=4, block=128):
        super().__init__()
        self.heads, self.block = heads, block
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        _, n = x.shape[:2]
        q, k, v = (
            t.permute(0, 2, 1).unflatten(1, (self.heads, -1)).mT for t in self.qkv(x).chunk(3, -1)
        )
        levels = int(math.log2(n // self.block)) + 1
        scores = q @ k.mT / (levels * q.shape[-1] ** 0.5)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfWiderState(nn.Module):
    """Sums features by the scores that a wider state gives them, as a decoder of captions (Wang et al. 2018)."""

    def __init__(self, hidden_size, feat_size, bottleneck_size):
        super().__init__()
        self.of_hidden = nn.Linear(hidden_size, bottleneck_size)
        self.of_feats = nn.Linear(feat_size, bottleneck_size)
        self.score = nn.Linear(bottleneck_size, 1)

    def forward(self, hidden, feats):
        keys = self.of_feats(feats)
        scores = self.score((self.of_hidden(hidden).unsqueeze(1).expand_as(keys) + keys).tanh())
        return (feats * scores.softmax(1)).sum(1)


class OfLocation(nn.Module):
    """Sees where it has looked before, in the weights of the last step and the sums of all (Shen et al. 2018)."""

    def __init__(
        self, query_dim: int, memory_dim: int, attention_dim: int, n_filters: int, kernel_size: int
    ):
        super().__init__()
        self.of_query = nn.Linear(query_dim, attention_dim)
        self.of_memory = nn.Linear(memory_dim, attention_dim)
        self.seen = nn.Conv1d(2, n_filters, kernel_size, padding=(kernel_size - 1) // 2)
        self.of_seen, self.score = nn.Linear(n_filters, attention_dim), nn.Linear(attention_dim, 1)

    def forward(self, state, memory, attention_weights_cat):
        """
        state: Tensor
        - (batch_size, query_dim)
        memory: Tensor
        - (batch_size, n_ctx, memory_dim)
        attention_weights_cat: Tensor
        - (batch_size, 2, n_ctx)
        """
        seen = self.of_seen(self.seen(attention_weights_cat).mT)
        scores = self.score((self.of_query(state)[:, None] + self.of_memory(memory) + seen).tanh())
        weights = scores.squeeze(-1).softmax(-1)
        return (weights[:, None] @ memory).squeeze(1), weights


class OfProjectedDistances(nn.Module):
    """Adds scores of distances, which a call gives as vectors, 2 T - 1 of them (Dai et al. 2019)."""

    def __init__(self, n_heads, d_model):
        super().__init__()
        self.heads = n_heads
        self.qkv, self.of_distance = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, pos):
        split = (-1, (self.heads, x.shape[-1] // self.heads))
        q, k, v = (it.unflatten(*split).transpose(1, 2) for it in self.qkv(x).chunk(3, -1))
        distances = self.of_distance(pos).unflatten(*split).transpose(1, 2)
        T = (pos.size(1) + 1) // 2
        places = torch.arange(T)
        index = (places - places[:, None] + T - 1).expand(*q.shape[:2], T, T)
        scores = q @ k.mT + (q @ distances.mT).gather(-1, index)
        return ((scores / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfHops(nn.Module):
    """Returns several rows of weights for each sentence, and no sum of its words (Lin et al. 2017)."""

    def __init__(self, hidden_size, inner, hops):
        super().__init__()
        self.inner, self.score = nn.Linear(hidden_size, inner), nn.Linear(inner, hops)

    def forward(self, words, lengths):
        hidden = torch.arange(words.shape[1]) >= lengths[:, None]
        scores = self.score(self.inner(words).tanh()).masked_fill(hidden[..., None], -torch.inf)
        return scores.softmax(1).mT


class InsistingOnAxes(nn.Module):
    """Refuses tokens without rows and columns, and takes no shape apart."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, x):
        if x.dim() != 4:
            raise ValueError(f"received {x.dim()} axes")
        y = x.flatten(1, 2)
        return self.attention(y, y, y)[0].view_as(x)


class OfJoints(nn.Module):
    """Weighs joints, whose features come before them."""

    def __init__(self, channels):
        super().__init__()
        self.score = nn.Linear(channels, 1)

    def forward(self, x):
        B, C, V = x.shape
        weights = self.score(x.permute(0, 2, 1)).softmax(1).view(B, 1, V)
        return (x * weights).sum(2).view(B, C)


class OfLengthsInTwoAxes(nn.Module):
    """Takes lengths whose shape the docstring gives wrongly (Zhou et al. 2018)."""

    def __init__(self, hidden_units):
        super().__init__()
        self.score = nn.Linear(hidden_units * 4, 1)

    def forward(self, queries, keys, keys_length):
        """Return one vector for each sequence.

        queries: [B, H]
        keys: [B, T, H]
        keys_length: [B, len]
        """
        B, T, H = keys.shape
        q = queries.unsqueeze(1).repeat(1, T, 1)
        scores = self.score(torch.cat([q, keys, q - keys, q * keys], dim=-1)).mT
        seen = torch.arange(T).expand(B, T) < keys_length.unsqueeze(1)
        scores = torch.where(seen.unsqueeze(1), scores, -torch.inf)
        return (scores.softmax(-1) @ keys).view(B, H)


class OfGivenRotation(nn.Module):
    """Is given a function that rotates queries and keys."""

    def __init__(self, hidden_dim, num_heads):
        super().__init__()
        self.heads = num_heads
        self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(self, x, mask, rope):
        q, k, v = (
            it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in self.qkv(x).chunk(3, -1)
        )
        q, k = rope(q, k)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + mask
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfPackedTokens(nn.Module):
    """Takes queries, keys and values beside one another, for the tokens of a window."""

    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.heads = num_heads
        self.bias = nn.Parameter(torch.zeros(num_heads, window_size, window_size))
        self.out = nn.Linear(dim, dim)

    def forward(self, qkv):
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in qkv.chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Transposing(nn.Module):
    """Puts the tokens first itself, as its layer wants them."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.layer = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, x):
        seq_len = x.size(1)
        mask = torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1)
        x = x.transpose(0, 1)
        return self.layer(x, x, x, attn_mask=mask)[0].transpose(0, 1)


class AfterPast(nn.Module):
    """Is told how many tokens its cache holds."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x, kv_cache=None, past_length=0):
        q, k, v = (
            it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in self.qkv(x).chunk(3, -1)
        )
        if kv_cache is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(kv_cache, (k, v), strict=True))
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(past_length)
        context = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return context.transpose(1, 2).flatten(2), (k, v)


class Transposed(nn.Module):
    """Takes the pixels of an image column by column."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, image):
        b, c, h, w = image.shape
        q, k, v = self.qkv(image.transpose(1, 3).reshape(b, w * h, c)).chunk(3, -1)
        context = nn.functional.scaled_dot_product_attention(q, k, v)
        return context.reshape(b, w, h, c).transpose(1, 3)


class Refining(nn.Module):
    """Attends as often as it is told, which may be never."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, rounds: int):
        q, k, v = self.qkv(x).chunk(3, -1)
        for _ in range(rounds):
            x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return x


class NamedN(Projected):
    """Calls the number of sequences N, which often is that of tokens."""

    def forward(self, x):
        N = x.size(0)
        T = x.size(1)
        q, k, v = (it.view(N, T, 4, -1).transpose(1, 2) for it in self.split(x))
        return attend(q, k, v).transpose(1, 2).reshape(N, T, -1)


class HeldMask(Projected):
    """Takes a mask, True at hidden tokens, that an object holds, and hides all tokens if it is told to."""

    def forward(self, x, attn_mask):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(attn_mask.mask, -torch.inf).softmax(-1) @ v


class OfGroupsOfTokens(nn.Module):
    """Attends over the tokens of groups, which are no tensors: objects with tokens and a mask of padding."""

    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)

    def forward(self, prefix, groups, verbose: bool = False):
        horizon = groups[0].tokens.shape[1]
        assert all(group.tokens.shape[1] == horizon for group in groups)
        x = torch.cat([prefix, *(group.tokens.flatten(1, 2) for group in groups)], dim=1)
        return self.attention(x, x, x, need_weights=False)[0]
