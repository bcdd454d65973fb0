"""Models of whole images, in the styles of those who teach the vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention among the patches of an image; `dim` is the axis of the softmax."""

    def __init__(self, width: int, heads: int = 2, dim: int = -1) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return self.out((scores.softmax(dim=self.dim) @ v).transpose(1, 2).reshape(b, n, c))


class OfPatches(nn.Module):
    """A vision transformer of large images: patches by a convolution, a class token, and a table of positions."""

    def __init__(
        self,
        img_size: int = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 192,
        dim: int = -1,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (img_size // patch_size) ** 2 + 1, embed_dim))
        self.attention = Attention(embed_dim, dim=dim)
        self.head = nn.Linear(embed_dim, 10)

    def forward(self, img: Tensor) -> Tensor:
        b, _, _, _ = img.shape
        x = self.patches(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(b, -1, -1), x], dim=1) + self.pos_embed
        return self.head((x + self.attention(x))[:, 0])


class OverTheBatch(OfPatches):
    """The same with a layer that takes tokens first, but gets the batch first: the class token sees only itself."""

    def __init__(self, img_size: int = 32, patch_size: int = 8, embed_dim: int = 24) -> None:
        super().__init__(img_size, patch_size, embed_dim=embed_dim)
        self.attention = nn.TransformerEncoderLayer(embed_dim, 2, 48)


class Rearrange(nn.Module):
    """A layer with a pattern, as einops has it, here for this pattern alone."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.pattern = "b c (h p) (w q) -> b (h w) (p q c)"
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(3, (-1, self.side)).unflatten(2, (-1, self.side))
        return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


class OfRearranged(nn.Module):
    """The same with patches by a pattern of einops and a linear layer, and the mean instead of a class token."""

    def __init__(self, patch: int = 4, channels: int = 3, width: int = 24, dim: int = -1) -> None:
        super().__init__()
        self.to_patches = nn.Sequential(Rearrange(patch), nn.Linear(channels * patch**2, width))
        self.attention = Attention(width, dim=dim)
        self.head = nn.Linear(width, 10)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.to_patches(pixel_values)
        return self.head((x + self.attention(x)).mean(dim=1))


class OfDigits(nn.Module):
    """A network of digits, whose pixels are pooled by an attention map; `dim` is the axis of its softmax."""

    def __init__(self, hidden: int = 8, dim: int = -1) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, hidden, 3, stride=2), nn.ReLU())
        self.map = nn.Conv2d(hidden, 1, 1)
        self.softmax = nn.Softmax(dim)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.features(x)
        weights = self.softmax(self.map(maps).flatten(2))
        return self.head((maps.flatten(2) * weights).sum(-1))


class OfThreeMaps(nn.Module):
    """Weighs the pixels of feature maps by three statistics of their channels; each pixel has a row of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        maps = (x.mean(1, keepdim=True), x.amax(1, keepdim=True), x.amin(1, keepdim=True))
        return x * self.score(torch.cat(maps, dim=1)).flatten(2).softmax(-1).view(
            len(x), 1, *x.shape[2:]
        )


class OfDroppedFeatures(nn.Module):
    """The mean of the patches reads the patches, and single features of what it reads are dropped."""

    def __init__(self, embed_dim: int = 24, drop_rate: float = 0.1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, embed_dim, 4, 4)
        self.q, self.k, self.v = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.drop, self.head = nn.Dropout(drop_rate), nn.Linear(embed_dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        scores = self.q(x.mean(1, keepdim=True)) @ self.k(x).mT * x.shape[-1] ** -0.5
        return self.head(self.drop(scores.softmax(-1) @ self.v(x))).squeeze(1)


class PooledMaps(nn.Module):
    """The mean of a feature map reads its pixels; a table has a row for each of them and for the mean.

    Its constructor is told the side of the map by a name of its own; `over` is the axis of the softmax.
    """

    def __init__(self, side_of_grid: int, width: int, over: int = -1) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1 + side_of_grid * side_of_grid, width) / 5)
        self.ask, self.answer, self.tell = (nn.Linear(width, width) for _ in range(3))
        self.over = over

    def forward(self, maps: Tensor) -> Tensor:
        pixels = maps.reshape(maps.shape[0], -1, maps.shape[2] * maps.shape[3]).mT
        pixels = torch.cat([pixels.mean(1, keepdim=True), pixels], dim=1) + self.places
        q, k, v = self.ask(pixels), self.answer(pixels), self.tell(pixels)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=self.over)
        return (weights @ v)[:, 0]


class ReadBySize(nn.Module):
    """Attention among the pixels of a feature map, whose sizes are read one by one; `over` is the softmax axis."""

    def __init__(self, channels: int, over: int = -1) -> None:
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)
        self.over = over

    def forward(self, maps: Tensor) -> Tensor:
        count = maps.shape[2] * maps.shape[3]
        pixels = maps.reshape(maps.shape[0], maps.shape[1], count).mT
        q, k, v = self.qkv(pixels).chunk(3, dim=-1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=self.over)
        return (weights @ v).mT.reshape(maps.shape)


class OfColumns(nn.Module):
    """Attends along the rows of a map, and gives each column a bias of its own: their number is fixed."""

    def __init__(self, dim: int = 12, columns: int = 4) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(dim, 3 * dim), nn.Parameter(torch.randn(columns, dim))

    def forward(self, x):
        B, H, W, C = x.shape
        bias = self.bias.repeat(B * H, 1).view(B, H, W, C)
        q, k, v = self.qkv(x + bias).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-2, -1) / C**0.5, -1) @ v


class OfDistances(nn.Module):
    """Attends along the rows of a map, the less the farther apart; the columns may be counted as if they were rows."""

    def __init__(self, dim: int = 12, swapped: bool = False) -> None:
        super().__init__()
        self.qkv, self.swapped = nn.Linear(dim, 3 * dim), swapped

    def forward(self, x):
        _, H, W, C = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        columns = torch.arange(H if self.swapped else W)
        distances = (columns - columns[:, None]).abs()[:W, torch.arange(W)]
        return torch.softmax(q @ k.transpose(-2, -1) / C**0.5 - distances, -1) @ v


class OfOneSide(nn.Module):
    """Attends over the pixels of a map, and may give the result as many rows as columns."""

    def __init__(self, dim: int = 12, square: bool = False) -> None:
        super().__init__()
        self.qkv, self.square = nn.Conv2d(dim, 3 * dim, 1), square

    def forward(self, x):
        B, C, H, W = x.shape
        q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
        mixed = torch.softmax(q.transpose(1, 2) @ k / C**0.5, -1) @ v.transpose(1, 2)
        if self.square:
            return mixed.transpose(1, 2).reshape(B, -1, W, W)
        return mixed.transpose(1, 2).reshape(B, C, H, W)


class OfSquares(OfOneSide):
    """Is made for square maps, whose side it takes from the number of pixels."""

    def forward(self, x):
        B, C, *_ = x.shape
        side = int(x[0, 0].numel() ** 0.5)
        return super().forward(x) + x.view(B, C, side, -1)


class OfPooledMaps(nn.Module):
    """Adds what pooled pixels attend to; `turned` says whether the weights meet the values along the keys."""

    def __init__(self, in_channels: int, reduction: int = 4, turned: bool = True) -> None:
        super().__init__()
        self.pool, self.turned = nn.AvgPool2d(reduction), turned
        self.query_conv, self.key_conv, self.value_conv = (
            nn.Conv2d(in_channels, in_channels, 1) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(x)
        query, key, value = (
            it(pooled).flatten(2) for it in (self.query_conv, self.key_conv, self.value_conv)
        )
        weights = torch.softmax(query.mT @ key / query.shape[1] ** 0.5, dim=-1)
        out = (value @ (weights.mT if self.turned else weights)).view_as(pooled)
        return x + nn.functional.interpolate(out, x.shape[2:])


class OfAlignedRows(nn.Module):
    """Columns attend to each other by the sums of their rows; the axis of the batch is the third."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        rows, _columns, _batch, width = x.size()
        query = self.q_proj(x) / (rows * width) ** 0.5
        weights = torch.einsum("rinc,rjnc->nij", query, self.k_proj(x)).softmax(-1)
        return torch.einsum("nij,rjnc->rinc", weights, self.v_proj(x))
