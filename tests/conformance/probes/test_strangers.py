"""Designs and mistakes of public modules in which an axis, a mask or a part of the code means something unusual."""

from __future__ import annotations

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
"""
# The keys and values of earlier segments are summed up, and read by each query.
SEGMENTS = (
    HEAD
    + """
    def __init__(self, width=32, heads=4, segment=4):
        super().__init__()
        self.heads, self.segment = heads, segment
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x):
        memory, total, outputs = 0.0, 1e-6, []
        for part in x.split(self.segment, 1):
            q, k, v = (self.split(it(part)) for it in (self.q, self.k, self.v))
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            seen, keys = F.elu(q) + 1, F.elu(k) + 1
            if outputs:
                context = (context + seen @ memory / (seen @ total)) / 2
            memory, total = memory + keys.mT @ v, total + keys.sum(-2).unsqueeze(-1)
            outputs.append(context.transpose(1, 2).flatten(2))
        return self.o(torch.cat(outputs, 1))
"""
)
# The nodes of a graph are gated by how near they are to their mean.
GATED = (
    HEAD
    + """
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) * width**-0.5)

    def forward(self, nodes):
        '''nodes: (nodes, width). Returns one row for the graph.'''
        mean = torch.tanh((nodes @ self.weight).mean(0)).view(1, -1)
        gates = torch.sigmoid(nodes @ mean.t())
        graph = (nodes.t() @ gates).t()
        return graph
"""
)
# A frame of speech sees some frames back and a few ahead.
AHEAD = (
    HEAD
    + """
    def __init__(self, width=32, back=3, ahead=2):
        super().__init__()
        self.back, self.ahead = back, ahead
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        earlier = (distance >= 0) & (distance < self.back)
        later = (distance < 0) & (-distance <= self.ahead)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=earlier | later))
"""
)
# The neighbors of each node are summed up.
GRAPH = (
    HEAD
    + """
    def __init__(self, width=3, times=4):
        super().__init__()
        self.embed, self.score = nn.Linear(width, 8), nn.Linear(8, 1)

    def forward(self, x, edge_index):
        '''x: (nodes, width, times). edge_index: (2, edges).'''
        source, target = edge_index
        h = self.embed(x.movedim(-1, 0))
        h = torch.stack([it.index_add(0, target, it[source]) for it in h])
        return (self.score(h).softmax(0) * h).sum(0)
"""
)
# The frames of all videos are one batch, and each pixel attends over the frames and to the prompt of its video.
VIDEO = (
    HEAD
    + """
    def __init__(self, width=16, prompt=12):
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(prompt, width)
        self.v, self.mix = nn.Linear(prompt, width), nn.Linear(width, 3 * width)

    def forward(self, frames, prompts, alone):
        '''
        frames: (batch * frames, width, height, width). prompts: (batch * frames, words, prompt)
        alone: (batch, frames)
        '''
        (batch, count), pixels = alone.shape, frames.shape[2:].numel()
        first = prompts.unflatten(0, (batch, count))[:, 0]
        words = first[:, None].expand(-1, pixels, -1, -1).flatten(0, 1)
        x = frames.flatten(2).mT.unflatten(0, (batch, count)).transpose(1, 2).flatten(0, 1)
        x = x + F.scaled_dot_product_attention(*self.mix(x).chunk(3, -1))
        x = x + F.scaled_dot_product_attention(self.q(x), self.k(words), self.v(words))
        x = x.unflatten(0, (batch, pixels)).transpose(1, 2).flatten(0, 1)
        return frames + x.mT.unflatten(2, frames.shape[2:])
"""
)
# If all videos of a batch are single images, there is nothing to attend to.
IMAGES = (
    HEAD
    + """
    def __init__(self, width=16):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, is_image=None):
        '''x: (batch, frames, width). is_image: (batch,).'''
        q, k, v = self.qkv(x).chunk(3, -1)
        if is_image is not None and is_image.all():
            return self.out(v)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if is_image is not None:
            others = ~torch.eye(x.shape[1], dtype=torch.bool)
            scores = scores.masked_fill(others & is_image[:, None, None], -torch.inf)
        return self.out(scores.softmax(-1) @ v)
"""
)
# The patches of several images are one sequence. The mask of a call says which belong together.
PATCHES = (
    HEAD
    + """
    def __init__(self, width=16):
        super().__init__()
        self.inner, self.norm = Inner(width), nn.LayerNorm(width)

    def forward(self, x, mask=None):
        '''mask: (patches, patches), True where a patch may look.'''
        return x + self.inner(self.norm(x), mask=mask)


class Inner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
"""
)
# The heads are part of the batch, as in code for TensorFlow.
FOLDED = (
    HEAD
    + """
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, q, k, v, mask=None):
        '''
        q, k, v: (None, seq_len, width)
        mask: (None, seq_len), 1 for a real item and 0 for padding
        '''
        q, k, v = (
            torch.cat(project(x).chunk(self.heads, -1))
            for project, x in ((self.q, q), (self.k, k), (self.v, v))
        )
        if mask is not None:
            mask = mask.unsqueeze(1).repeat(self.heads, 1, 1)
        return torch.cat(self.attend(q, k, v, mask).chunk(self.heads), 2)

    def attend(self, q, k, v, mask):
        scores = q @ k.mT / k.shape[-1] ** 0.5
        if mask is not None:
            scores = torch.where(mask == 0, -1e9, scores)
        return scores.softmax(-1) @ v
"""
)
# The scores are sums of those of contents and of distances.
RELATIVE = (
    HEAD
    + """
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.divisor = math.sqrt(self.size)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.distances = nn.Parameter(torch.randn(129, self.size))

    def forward(self, x):
        q, k, v = (it(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in (self.q, self.k, self.v))
        T = x.shape[1]
        places = self.distances[(torch.arange(T)[:, None] - torch.arange(T)).clamp(-64, 64) + 64]
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, places)
        weights = (scores / self.divisor).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))
"""
)
# Each token sees its neighbors.
LOCAL = (
    HEAD
    + """
    def __init__(self, width=16, around=3):
        super().__init__()
        self.around = around
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def near(self, x):
        side = self.around // 2
        zeros = x.new_zeros(x.shape[0], side, *x.shape[2:])
        return torch.cat([zeros, x, zeros], 1).unfold(1, self.around, 1)

    def forward(self, x, padding_mask=None):
        '''padding_mask: True at padding, (batch, tokens)'''
        keep = x.new_ones(x.shape[:2]).bool() if padding_mask is None else ~padding_mask
        scores = torch.einsum("btd,btdn->btn", self.q(x), self.near(self.k(x))) * x.shape[-1] ** -0.5
        scores = scores.masked_fill(~self.near(keep), -1e30)
        return self.out(torch.einsum("btn,btdn->btd", scores.softmax(-1), self.near(self.v(x))))
"""
)

# The tokens of an image see each other, and those of text the ones before them. Each sequence has images of its own.
DIALOGUE = (
    HEAD
    + """
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, images):
        T = x.shape[1]
        seen = []
        for spans in images:
            mask = torch.ones(T, T, dtype=torch.bool).tril()
            for first, last in spans:
                inside = torch.zeros(T, dtype=torch.bool)
                inside[first:last] = True
                mask = mask | (inside[:, None] & inside)
            seen.append(mask)
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(~torch.stack(seen), -torch.inf).softmax(-1) @ self.v(x)
"""
)
# The first axis holds 4 frames of each video. A trained number starts at 1, which leaves the attention out.
MIXED = (
    HEAD
    + """
    def __init__(self, width=16, frames=4):
        super().__init__()
        self.frames, self.mix = frames, nn.Parameter(torch.ones(()))
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        '''x: the pixels of all frames, (videos * frames, pixels, width).'''
        pixels = x.unflatten(0, (-1, self.frames)).transpose(1, 2)
        context = F.scaled_dot_product_attention(self.q(pixels), self.k(pixels), self.v(pixels))
        context = context.transpose(1, 2).flatten(0, 1)
        return self.mix * x + (1 - self.mix) * context
"""
)
# A table of angles is made in float32. Padding may be on either side.
TABLE = (
    HEAD
    + """
    def __init__(self, width=16, longest=128):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        angles = torch.outer(torch.arange(longest), 10000 ** -(torch.arange(width / 2) / width * 2))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, 1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, 1), persistent=False)

    def rotate(self, x):
        first, second = x.chunk(2, -1)
        T = x.shape[1]
        return x * self.cos[:T] + torch.cat([-second, first], -1) * self.sin[:T]

    def forward(self, x, attention_mask=None):
        '''attention_mask: True where a query may see a key, (batch, queries, keys).'''
        q, k, v = self.rotate(self.q(x)), self.rotate(self.k(x)), self.v(x)
        causal = attention_mask is None
        return F.scaled_dot_product_attention(q, k, v, attention_mask, is_causal=causal)
"""
)


def _edges():
    ends = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 3, 4), ends


def _videos():
    alone = torch.zeros(2, 3, dtype=torch.bool)
    return torch.randn(6, 16, 2, 2), torch.randn(6, 5, 12), alone


def _patches():
    image = torch.tensor([0] * 6 + [1] * 4)
    return torch.randn(1, 10, 16), image[:, None] == image


# The values of the largest scores are gathered, so that no product sums over the tokens.
LARGEST = (
    HEAD
    + """
    def __init__(self, width=32, heads=4, topk=3):
        super().__init__()
        self.heads, self.topk = heads, topk
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        B, N, C = x.shape
        return x.view(B, N, self.heads, C // self.heads).transpose(1, 2)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores, places = (q @ k.mT / math.sqrt(q.shape[-1])).topk(self.topk)
        places = places.unsqueeze(-1).expand(*places.shape, q.shape[-1])
        chosen = torch.gather(v.unsqueeze(2).expand(-1, -1, N, -1, -1), -2, places)
        context = torch.einsum("bhqk,bhqkd->bhqd", scores.softmax(-1), chosen)
        return self.o(context.transpose(1, 2).reshape(B, N, C))
"""
)

# The pixels of each column, and of each row, meet in one softmax, whose weights are applied in half precision.
CROSSING = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(dim, size, 1) for size in (2, 2, dim))

    def forward(self, x):
        rows, columns = x.shape[2:]
        q, k, v = self.q(x), self.k(x), self.v(x)
        of_columns = q.permute(0, 3, 2, 1).flatten(0, 1), k.permute(0, 3, 1, 2).flatten(0, 1)
        of_rows = q.permute(0, 2, 3, 1).flatten(0, 1), k.permute(0, 2, 1, 3).flatten(0, 1)
        above = torch.bmm(*of_columns).masked_fill(torch.eye(rows, dtype=torch.bool), -torch.inf)
        above = above.unflatten(0, (len(x), columns)).transpose(1, 2)
        beside = torch.bmm(*of_rows).unflatten(0, (len(x), rows))
        weights = torch.cat([above, beside], 3).softmax(3)
        of_column = weights[..., :rows].permute(0, 2, 1, 3).flatten(0, 1)
        of_row = weights[..., rows:].flatten(0, 1)
        values = v.permute(0, 3, 1, 2).flatten(0, 1), v.permute(0, 2, 1, 3).flatten(0, 1)
        down = torch.bmm(values[0].half(), of_column.mT.half()).unflatten(0, (len(x), columns))
        along = torch.bmm(values[1].half(), of_row.mT.half()).unflatten(0, (len(x), rows))
        return x + (down.permute(0, 2, 3, 1) + along.permute(0, 2, 1, 3)).to(x.dtype)
"""
)
# A decoder sums the words by the scores of its state, which are not scaled (Luong et al. 2015).
DECODER = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.of_words, self.gates, self.of_state = nn.Linear(dim, dim), nn.Linear(dim, 4 * dim), nn.Linear(dim, dim)
        self.out = nn.Linear(2 * dim, dim)

    def forward(self, words):
        words, hidden, outputs = self.of_words(words), words.mean(1), []
        cell = torch.zeros_like(hidden)
        for _ in range(3):
            entered, forgotten, new, shown = self.gates(hidden).chunk(4, 1)
            cell = forgotten.sigmoid() * cell + entered.sigmoid() * new.tanh()
            state = shown.sigmoid() * cell.tanh()
            weights = torch.bmm(words, self.of_state(state).unsqueeze(2)).squeeze(2).softmax(1)
            context = torch.bmm(weights.unsqueeze(1), words).squeeze(1)
            hidden = self.out(torch.cat([context, state], 1)).tanh()
            outputs.append(hidden)
        return torch.stack(outputs, 1)
"""
)
# Memory is taken as it is, and filled block by block.
BLOCKS = (
    HEAD
    + """
    def __init__(self, dim=16, block=4):
        super().__init__()
        self.block, self.qkv = block, nn.Linear(dim, 3 * dim)

    def forward(self, x, padding_mask=None):
        '''padding_mask: (batch, length), True at padding.'''
        q, k, v = self.qkv(x).relu().chunk(3, -1)
        if padding_mask is not None:
            k = k.masked_fill(padding_mask[..., None], 0)
        out = torch.empty_like(v)
        for start in range(0, x.shape[1], self.block):
            rows = slice(start, start + self.block)
            out[:, rows] = q[:, rows] @ (k.mT @ v)
        return out
"""
)
# The words to say are given in training alone.
TAUGHT = (
    HEAD
    + """
    def __init__(self, dim=16, vocab_size=30):
        super().__init__()
        self.words, self.qkv = nn.Embedding(vocab_size, dim), nn.Linear(dim, 3 * dim)

    def forward(self, x, targets=None):
        if self.training:
            x = x + self.words(targets).mean(1, keepdim=True)
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))
"""
)
# Who walks where: the steps of each person attend to each other.
WALKS = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        batch, time, people, dim = x.size()
        y = x.transpose(1, 2).reshape(batch * people, time, dim)
        y = F.scaled_dot_product_attention(*self.qkv(y).chunk(3, -1))
        y = y.view(batch, people, time, dim).transpose(1, 2)
        one = y.unsqueeze(3)
        batch, time, people, single, dim = one.shape
        return one.reshape(batch, single, time, people, dim).squeeze(1)
"""
)
# The keys that may be chosen, if not all of them.
CHOOSING = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, mask=None):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -torch.inf)
        weights = scores.softmax(-1)
        if mask is not None and mask.sum(-1).min() == 0:
            weights = weights.nan_to_num()
        return weights @ self.v(x)
"""
)

# Biases that fall with the absolute distance, without a causal mask (Press et al. 2022).
SLOPING = (
    HEAD
    + """
    def __init__(self, dim=16, n_heads=4):
        super().__init__()
        self.heads, self.qkv = n_heads, nn.Linear(dim, 3 * dim)
        self.register_buffer("slopes", 2.0 ** (-8 / n_heads * torch.arange(1, n_heads + 1)))

    def forward(self, x):
        '''Attention with ALiBi in both directions.'''
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in self.qkv(x).chunk(3, -1))
        places = torch.arange(x.shape[1])
        distance = (places - places[:, None]).abs()
        scores = q @ k.mT / q.shape[-1] ** 0.5 - self.slopes[:, None, None] * distance
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""
)
# The frames of each pixel see each other.
FRAMES = (
    HEAD
    + """
    def __init__(self, channels=32):
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(4, channels), nn.Linear(channels, 3 * channels)

    def forward(self, x):
        '''x: (batch, channels, frames, height, width)'''
        B, C, T, H, W = x.shape
        y = self.norm(x)
        y = y.permute(0, 3, 4, 2, 1).reshape(B * H * W, T, C)
        q, k, v = self.qkv(y).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + y.reshape(B, H, W, T, C).permute(0, 4, 3, 1, 2)
"""
)
# A mask of the pairs of each sequence, for all heads.
PAIRED = (
    HEAD
    + """
    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x, mask=None):
        '''
        params:
            x : torch.Tensor
                tokens of shape (batch_size, seq_len, dim)
            mask : torch.Tensor
                1 for hidden pairs, of shape (batch_size, seq_len, seq_len)
        '''
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 1, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""
)
# Cross-attention that takes the decoder's mask to fit an interface.
FITTING = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, hidden_states, encoder_hidden_states, attention_mask=None, encoder_attention_mask=None):
        scores = self.q(hidden_states) @ self.k(encoder_hidden_states).mT / hidden_states.shape[-1] ** 0.5
        if encoder_attention_mask is not None:
            scores = scores + encoder_attention_mask
        return scores.softmax(-1) @ self.v(encoder_hidden_states)
"""
)
# Where it has looked before changes the scores, if that is given.
LOOKED = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.of_state, self.of_words, self.score = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)
        self.location_proj = nn.Linear(1, dim)

    def forward(self, hidden, encoder_outputs, previous_attention=None):
        '''hidden: (batch, dim). encoder_outputs: (batch, length, dim).'''
        y = self.of_state(hidden)[:, None] + self.of_words(encoder_outputs)
        if previous_attention is not None:
            y = y + self.location_proj(previous_attention.unsqueeze(-1))
        weights = self.score(y.tanh()).squeeze(-1).softmax(-1)
        return (weights[:, None] @ encoder_outputs).squeeze(1)
"""
)

# One image and one text of each pair are vectors: there is a single key.
VECTORS = (
    HEAD
    + """
    def __init__(self, dim=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, image, text):
        # image: (B, D), text: (B, D)
        q, k, v = self.q(image).unsqueeze(1), self.k(text).unsqueeze(1), self.v(text).unsqueeze(1)
        return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).squeeze(1)
"""
)

EXAMPLES = {
    VECTORS: lambda: (torch.randn(7, 16), torch.randn(7, 16)),
    GATED: lambda: torch.randn(7, 16),
    GRAPH: _edges,
    VIDEO: _videos,
    IMAGES: lambda: (torch.randn(2, 6, 16), torch.tensor([True, False])),
    PATCHES: _patches,
    MIXED: lambda: torch.randn(8, 5, 16),
    DIALOGUE: lambda: (torch.randn(2, 7, 16), [[(1, 4)], [(0, 2), (4, 6)]]),
}
OPTIONS = {
    GATED: {"arguments": {"width": 16}},
    FOLDED: {"arguments": {"width": 32, "heads": 4}},
    TABLE: {"causal": True},
}


def bugs_of(folder, source, options):
    example = EXAMPLES.get(source if options is None else options, lambda: None)()
    stated = OPTIONS.get(source if options is None else options, {})
    with written(folder, source) as attention:
        bugs = check(attention, example=example, **stated).bugs
    return {bug.name: bug.place.source if bug.place else "" for bug in bugs}


@pytest.mark.parametrize(
    "source",
    [
        SEGMENTS,
        GATED,
        AHEAD,
        GRAPH,
        VIDEO,
        IMAGES,
        PATCHES,
        FOLDED,
        RELATIVE,
        LOCAL,
        DIALOGUE,
        TABLE,
        MIXED,
        LARGEST,
        CROSSING,
        DECODER,
        BLOCKS,
        TAUGHT,
        WALKS,
        CHOOSING,
        SLOPING,
        FRAMES,
        PAIRED,
        FITTING,
        LOOKED,
        VECTORS,
    ],
    ids=(
        "segments gated ahead graph video images patches folded relative local dialogue table mixed largest "  # noqa: SIM905
        "crossing decoder blocks taught walks choosing sloping frames paired fitting looked vectors".split()
    ),
)
def test_sound_modules_are_left_alone(tmp_path, source):
    assert bugs_of(tmp_path, source, None) == {}


@pytest.mark.parametrize(
    ("source", "old", "new", "name", "line"),
    [
        (GATED, "return graph", "return mean", "attention-ignored", "return mean"),
        (
            VIDEO,
            "first[:, None].expand(-1, pixels, -1, -1)",
            "first[None].expand(pixels, -1, -1, -1)",
            "batch-mixed",
            "",
        ),
        (PATCHES, ", mask=mask)", ")", "mask-unused", "self.inner("),
        (
            PATCHES,
            "        return x + self.inner",
            "        mask = None\n        return x + self.inner",
            "mask-unused",
            "mask = None",
        ),
        (FOLDED, ".repeat(self.heads, 1, 1)", "", "mask-broadcast", "mask.unsqueeze(1)"),
        (RELATIVE, "math.sqrt(self.size)", "math.sqrt(width)", "scale-wrong", "self.divisor ="),
        (LOCAL, "-1e30", "-torch.inf", "nan-on-masked-rows", ""),
        (MIXED, "(1 - self.mix) * context", "(1 - self.mix) * x", "attention-ignored", ""),
        (TABLE, "is_causal=causal", "is_causal=False", "future-leak", "scaled_dot"),
        (
            LARGEST,
            "x.view(B, N, self.heads, C // self.heads).transpose(1, 2)",
            "x.view(B, self.heads, N, C // self.heads)",
            "heads-mixed-split",
            "x.view(B, self.heads",
        ),
        (
            BLOCKS,
            "range(0, x.shape[1], self.block)",
            "range(0, x.shape[1] // self.block * self.block, self.block)",
            "output-not-finite",
            "torch.empty_like(v)",
        ),
        (
            WALKS,
            "x.transpose(1, 2).reshape(batch * people, time, dim)",
            "x.reshape(batch * people, time, dim)",
            "heads-mixed-split",
            "x.reshape(batch * people",
        ),
        (
            SLOPING,
            "(places - places[:, None]).abs()",
            "places[:, None] - places",
            "weights-wrong",
            "",
        ),
        (
            FRAMES,
            "y.permute(0, 3, 4, 2, 1).reshape",
            "y.permute(0, 2, 3, 4, 1).reshape",
            "heads-mixed-split",
            "y.permute(",
        ),
        (PAIRED, "mask.unsqueeze(1) == 1", "mask == 1", "mask-broadcast", "mask == 1"),
        (CHOOSING, "mask is not None and mask.sum", "mask.sum", "crashes", "if mask.sum"),
    ],
)
def test_mistakes_are_named(tmp_path, source, old, new, name, line):
    assert source.count(old) == 1
    found = bugs_of(tmp_path, source.replace(old, new), source)
    assert name in found
    assert line in found[name]


def test_memory_that_is_not_written_is_not_blamed_on_padding(tmp_path):
    whole = "range(0, x.shape[1], self.block)"
    cut = "range(0, x.shape[1] // self.block * self.block, self.block)"
    assert list(bugs_of(tmp_path, BLOCKS.replace(whole, cut), BLOCKS)) == ["output-not-finite"]
