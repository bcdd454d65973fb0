"""Small attentions whose constructors and flags are those of public code: sizes, devices and designs to choose."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Switched(nn.Module):
    """Attends with one head, and leaves out all that it is not told to use."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        use_scale: bool = False,
        masked: bool = False,
        device: str = "cuda",
    ) -> None:
        super().__init__()
        self.num_heads, self.masked, self.device = num_heads, masked, device
        self.scale = (dim // num_heads) ** -0.5 if use_scale else None
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.register_buffer("past", torch.ones(16, 16).tril())

    def split(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        return x.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor, scale: float | None) -> Tensor:
        return q @ k.mT * scale if scale else q @ k.mT

    def forward(self, x: Tensor, mask: str | None = None) -> Tensor:
        """Attend; the mask is "subsequent", or None."""
        B, T, C = x.shape
        x = x.to(self.device)
        q, k, v = (self.split(it(x)) for it in (self.q, self.k, self.v))
        scores = self.scores(q, k, self.scale)
        if self.masked:
            scores = scores.masked_fill(self.past[:T, :T] == 0, float("-inf"))
        if mask == "subsequent":
            scores = scores.masked_fill(torch.ones(T, T).triu(1) == 1, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)


class SplitByView(Switched):
    """The same, but for heads that are cut out of the tokens one after another, which one head does not show."""

    def split(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        return x.view(B, self.num_heads, T, C // self.num_heads)


class OfUnknownWidth(nn.Module):
    """Has eight heads, and a width under a name of its own."""

    def __init__(self, amount: int, head: int = 8) -> None:
        super().__init__()
        self.head = head
        self.qkv = nn.Linear(amount, 3 * amount)

    def forward(self, x: Tensor) -> Tensor:
        b, n, f = x.size()
        q, k, v = self.qkv(x).view(b, n, 3, self.head, f // self.head).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, f)


class OfChannels(nn.Module):
    """Takes channels before tokens, though its layers are linear."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(in_channels, 3 * in_channels)

    def forward(self, input: Tensor) -> Tensor:
        q, k, v = self.qkv(input.permute(0, 2, 1)).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).permute(0, 2, 1)


class OfVolume(nn.Module):
    """The frames of a video attend to each other, in groups of channels."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, in_channels)
        self.q, self.k, self.v = (nn.Conv3d(in_channels, in_channels, 1) for _ in range(3))

    def frames(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 4, 2, 1).flatten(0, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, c, t, h, w = x.shape
        y = self.norm(x)
        q, k, v = (self.frames(it(y)) for it in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v)
        return x + y.view(b, h, w, t, c).permute(0, 4, 3, 1, 2)


class OfMixedFrames(OfVolume):
    """The same, but for frames that a reshape is to bring next to the batch."""

    def frames(self, x: Tensor) -> Tensor:
        b, c, t, h, w = x.shape
        return x.reshape(b * h * w, c, t).transpose(1, 2)


class OfLists(nn.Module):
    """Takes the sides of its image as one argument, and the widths of its network as another."""

    def __init__(self, dim: int, input_resolution: tuple[int, int], mlp_dims: list[int]) -> None:
        super().__init__()
        self.side = min(input_resolution)
        sizes = [dim] + mlp_dims  # noqa: RUF005 - only a list can be added
        self.mlp = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
        self.qkv = nn.Linear(mlp_dims[-1], 3 * mlp_dims[-1])

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*self.qkv(self.mlp(x)).chunk(3, -1))


class OfOneSize(nn.Module):
    """Adds what it reads to what it has, which are of one size."""

    def __init__(self, feat_size: int, hidden_size: int) -> None:
        super().__init__()
        self.of_state, self.of_feats = nn.Linear(hidden_size, 8), nn.Linear(feat_size, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, feats: Tensor, key: Tensor) -> Tensor:
        """
        :param feats: (batch_size, feat_num, feat_size)
        :param key: (batch_size, hidden_size)
        """
        scores = self.score(torch.tanh(self.of_feats(feats) + self.of_state(key)[:, None]))
        return (scores.squeeze(-1).softmax(-1)[:, None] @ feats).squeeze(1) + key


class Transposing(nn.Module):
    """Takes sequences first, and transposes them for a layer that takes tokens first."""

    def __init__(self, embedding_dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(embedding_dim, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = [it.transpose(1, 0) for it in (x, x, x)]
        return x + self.attention(q, k, v, need_weights=False)[0].transpose(1, 0)


class Angles(nn.Module):
    """Keeps the cosines and sines of angles for later calls, and nothing else."""

    def __init__(self, dim: int = 16, max_len: int = 16) -> None:
        super().__init__()
        self.qkv, self.dim = nn.Linear(dim, 3 * dim), dim
        self.make(max_len, torch.float32)

    def make(self, length: int, dtype: torch.dtype) -> None:
        steps = 10000.0 ** (-torch.arange(0, self.dim, 2, dtype=dtype) / self.dim)
        angles = torch.outer(torch.arange(length, dtype=dtype), steps)
        self.register_buffer("cos_cached", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin_cached", torch.cat([angles.sin()] * 2, -1))

    def forward(self, x: Tensor, use_kv_cache: bool = False) -> Tensor:
        length = x.shape[1]
        if length > self.cos_cached.shape[0]:
            self.make(length, x.dtype)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (self.rotated(it, length) for it in (q, k))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def rotated(self, x: Tensor, length: int) -> Tensor:
        a, b = x.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
        return x * self.cos_cached[:length] + turned * self.sin_cached[:length]


class Forgiven(nn.Module):
    """Weighs what an encoder has read for one state; masked weights are 0 before the softmax, and behind it."""

    def __init__(self, dim: int, fill: bool = True) -> None:
        super().__init__()
        self.fill, self.dim = fill, dim
        self.of_words, self.of_state = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, hidden: Tensor, words: Tensor, sequence_mask: Tensor) -> Tensor:
        """
        hidden: (batch, dim). words: (batch, length, dim). sequence_mask: (batch, length), 0 where there is no word.
        """
        keys = self.of_words(words)
        scores = torch.bmm(keys, self.of_state(hidden).unsqueeze(-1)).squeeze(-1) / self.dim**0.5
        if self.fill:
            scores = scores.masked_fill(sequence_mask == 0, float("-inf"))
        weights = scores.softmax(dim=1) * sequence_mask
        return torch.bmm(weights.unsqueeze(1), keys).squeeze(1)


class OfAssertedKind(nn.Module):
    """Takes one of two kinds of positions, whose parameter is named like a width."""

    def __init__(self, dim: int, positional_embedding: str) -> None:
        super().__init__()
        assert positional_embedding in ("learned", "none")
        self.kind = positional_embedding
        self.qkv, self.places = nn.Linear(dim, 3 * dim), nn.Embedding(16, dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "learned":
            x = x + self.places.weight[: x.shape[1]]
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))


class Unconstructed(nn.Module):
    """Names the constructor that it inherits, and does not call it."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__  # noqa: B018 - the mistake
        self.scale = dim**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * self.scale).softmax(-1) @ value


class Decoding(nn.Module):
    """Attends as a decoder does, or as an encoder does: only one of them hides later tokens."""

    def __init__(self, dim: int, is_decoder: bool = True) -> None:
        super().__init__()
        self.is_decoder = is_decoder
        self.qkv, self.distances = nn.Linear(dim, 3 * dim), nn.Embedding(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(x.shape[1])
        distance = places - places[:, None]
        bucket = -distance.clamp(max=0)
        if not self.is_decoder:
            bucket = 16 * (distance > 0).long() + distance.abs()
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.distances(bucket).squeeze(-1)
        if self.is_decoder:
            scores = scores.masked_fill(distance > 0, float("-inf"))
        return scores.softmax(-1) @ v


class OfSquares(nn.Module):
    """Takes the height and the width of its tokens, which are too few for its pooling if they are a row."""

    def __init__(self, dim: int, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        B, N, C = x.shape
        fewer = F.avg_pool2d(x.transpose(1, 2).reshape(B, C, H, W), 2).flatten(2).transpose(1, 2)
        q, k, v = self.split(self.q(x)), self.split(self.k(fewer)), self.split(self.v(fewer))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)


class SplitSquares(OfSquares):
    """The same, but for heads that are cut out of the tokens one after another."""

    def split(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        return x.reshape(B, self.num_heads, N, C // self.num_heads)


class Weighing(nn.Module):
    """Weighs values by scores; it has no parameters, and is made anew in each call."""

    def forward(self, scores: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        return nn.Softmax(dim=-1)(scores) @ values


class OfPretrained(nn.Module):
    """Reads words by trained embeddings that it is given."""

    def __init__(self, embeddings: Tensor, pad_idx: int) -> None:
        super().__init__()
        self.pad_idx = pad_idx
        self.words = nn.Embedding.from_pretrained(embeddings, padding_idx=pad_idx)
        self.q, self.k = (nn.Linear(embeddings.shape[1], embeddings.shape[1]) for _ in range(2))

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        return Weighing()(scores, (text == self.pad_idx).unsqueeze(1), x)


class OfFixedBatch(nn.Module):
    """Takes as many sequences at once as its training did."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(6, -1, 4, 3 * x.shape[-1] // 4).transpose(1, 2).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class OfOneKey(nn.Module):
    """The tokens read one summary of themselves, so that each weight is 1, and are averaged."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        summary = x.mean(dim=1, keepdim=True)
        scores = self.q(x) @ self.k(summary).mT * x.shape[-1] ** -0.5
        return (x + scores.softmax(dim=-1) @ self.v(summary)).mean(dim=1)


class OfRelativePositions(nn.Module):
    """Takes a vector for each distance of two tokens."""

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        """
        x: [B, T, C]
        pos: [B, S=2T-1, C]
        """
        return x + pos[:, -1:]
