"""Weights that cannot change the output, and weights that are normalized along another axis than they sum up."""

import pytest
import torch
from attentions_with_caches import written
from test_lines_of_causes import HEADER

from heedful import check

pytestmark = pytest.mark.slow


def found(tmp_path, source, example=None, **options):
    with written(tmp_path, HEADER + source) as target:
        report = check(target, example=example, **options)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


PAIR = """class Attention(nn.Module):
    '''Attention to the words and, beside it, to the hints; both are of size (batch, tokens, width).'''

    def __init__(self, width=16):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key_words, self.value_words = nn.Linear(width, width), nn.Linear(width, width)
        self.key_hints, self.value_hints = nn.Linear(width, width), nn.Linear(width, width)

    @staticmethod
    def look(q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v

    def forward(self, x):
        q = self.query(x)
        k, v = self.key_words(x), self.value_words(x)
        hint_k, hint_v = self.key_hints(x), self.value_hints(x)

        return self.look(q, k, v) + self.look(q, hint_k, hint_v)
"""


def test_a_projection_that_is_computed_for_nothing(tmp_path):
    assert found(tmp_path, PAIR) == []
    wrong = PAIR.replace("self.look(q, hint_k, hint_v)", "self.look(q, k, v)")
    assert [name for name, _ in found(tmp_path, wrong)] == ["projection-unused"]


PIXELS = """class Mix(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels) / channels**0.5)

    def forward(self, x):
        return torch.einsum('nchw,dc->ndhw', x, self.weight)


class Attention(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.q, self.k, self.v = Mix(channels), Mix(channels), Mix(channels)

    def forward(self, x):
        n, c, h, w = x.shape
        q, k = self.q(x), self.k(x)
        v = self.v(x)
        scores = torch.einsum('ncyx,ncij->nyxij', q, k) * c**-0.5

        weights = scores.flatten(3).softmax(-1).view_as(scores)
        return x + torch.einsum('nyxij,ncij->ncyx', weights, v)
"""


def test_products_over_pixels_are_read(tmp_path):
    example = (torch.randn(2, 16, 4, 4),)
    assert found(tmp_path, PIXELS, example) == []
    wrong = PIXELS.replace("c**-0.5", "1.0")
    assert [name for name, _ in found(tmp_path, wrong, example)] == ["scale-missing"]
    wrong = PIXELS.replace("weights, v)", "weights, k)")
    assert found(tmp_path, wrong, example) == [
        ("projection-unused", "return x + torch.einsum('nyxij,ncij->ncyx', weights, k)")
    ]


PAIRWISE = """class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        k = torch.einsum('ef,btf->bte', self.mix, k)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
"""


def test_an_einsum_that_takes_the_diagonal_alone(tmp_path):
    assert found(tmp_path, PAIRWISE) == []
    wrong = PAIRWISE.replace("'ef,btf->bte'", "'ee,bte->bte'")
    assert found(tmp_path, wrong) == [
        ("projection-unused", "k = torch.einsum('ee,bte->bte', self.mix, k)")
    ]


PARTS = """class Attention(nn.Module):
    '''Two heads, of which the second looks at what its keys were one step ago.'''

    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, 2, C // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        first = k[:, 0]

        second = k[:, 1].roll(1, 1)
        k = torch.stack([first, second], 1)
        y = (q @ k.mT / (C // 2) ** 0.5).softmax(-1) @ v
        return y.transpose(1, 2).reshape(B, T, C)
"""


def test_a_part_that_is_taken_twice(tmp_path):
    wrong = PARTS.replace("k[:, 1].roll", "k[:, 0].roll")
    assert ("projection-unused", "second = k[:, 0].roll(1, 1)") in found(tmp_path, wrong)
    assert "projection-unused" not in [name for name, _ in found(tmp_path, PARTS)]


VECTOR = """class Attention(nn.Module):
    '''A weight for each channel of each pair of points.'''

    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        logits = self.mlp(self.q(x).unsqueeze(2) - self.k(x).unsqueeze(1))
        weights = F.softmax(logits, dim=2)
        return (weights * self.v(x).unsqueeze(1)).sum(dim=2)
"""


def test_weights_for_each_channel_sum_to_1_over_the_points(tmp_path):
    assert found(tmp_path, VECTOR) == []
    wrong = VECTOR.replace("logits, dim=2", "logits, dim=-1")
    assert found(tmp_path, wrong) == [("softmax-wrong-dim", "weights = F.softmax(logits, dim=-1)")]


PACKED = """class Attention(nn.Module):
    '''x: all sequences, one after the other, (tokens, width). bounds: where each begins and ends.'''

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x, bounds):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        owner = torch.bucketize(torch.arange(len(x)), bounds[1:-1], right=True)
        own = owner[:, None] == owner[None, :]
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=own)[0]
        return y.transpose(0, 1).flatten(1)
"""


def test_packed_sequences_do_not_see_each_other(tmp_path):
    example = torch.randn(9, 16), torch.tensor([0, 4, 9])
    assert found(tmp_path, PACKED, example) == []
    wrong = PACKED.replace(", attn_mask=own", "")
    assert [name for name, _ in found(tmp_path, wrong, example)] == ["batch-mixed"]


SCALES = """class Attention(nn.Module):
    '''Content and place each have scores and a scale.'''

    def __init__(self, width=16):
        super().__init__()
        self.content_scale = (2 * width) ** -0.5
        self.place_scale = (2 * 4) ** -0.5
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.a, self.b = nn.Linear(width, 4), nn.Linear(width, 4)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        content = torch.bmm(q, k.mT) * self.content_scale

        place = -(self.a(x)[:, :, None] - self.b(x)[:, None]).square().sum(-1) * self.place_scale
        return (content + place).softmax(-1) @ v
"""


def test_a_scale_that_is_made_beside_another_is_used(tmp_path):
    assert "scale-missing" not in [name for name, _ in found(tmp_path, SCALES)]
    wrong = SCALES.replace(".sum(-1) * self.place_scale", ".sum(-1)")
    name, line = next(it for it in found(tmp_path, wrong) if it[0] == "scale-missing")
    assert (name, line[:8]) == ("scale-missing", "place = ")


STATE = """class Memory:
    def __init__(self, keys, values):
        self.keys, self.values = keys, values


class Attention(nn.Module):
    '''Causal attention. state: what the call on the tokens before returned'''

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, x, state=None):
        '''
        state: what the call on the tokens before returned, or None
        '''
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if state is not None:
            k = torch.cat([state.keys, k], dim=2)
            v = torch.cat([state.values, v], dim=2)
        T, S = q.shape[2], k.shape[2]
        seen = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return y.transpose(1, 2).flatten(2), Memory(k, v)
"""


def test_a_state_that_calls_return_is_a_cache_by_its_words(tmp_path):
    assert found(tmp_path, STATE) == []
    wrong = STATE.replace(".tril(S - T)", ".tril()")
    assert [name for name, _ in found(tmp_path, wrong)] == ["causal-alignment"]
    wrong = STATE.replace("Memory(k, v)", "Memory(k[:, :, -T:], v[:, :, -T:])")
    name, line = found(tmp_path, wrong)[0]
    assert (name, "Memory(k[:, :, -T:]" in line) == ("cache-mismatch", True)


START = """class Attention(nn.Module):
    '''A decoder of letters whose first token stands for a number.'''

    def __init__(self, letters=20, width=16):
        super().__init__()
        self.embed, self.number = nn.Embedding(letters, width), nn.Linear(1, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, ids, number):
        x = torch.cat([self.number(number[:, None])[:, None], self.embed(ids)], 1)
        later = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()

        return self.out(self.layer(x, src_mask=later))
"""


def test_other_vectors_beside_ids_keep_their_kind_and_a_row_before_them_is_left_out(tmp_path):
    example = torch.randint(0, 20, (2, 5)), torch.rand(2)
    assert found(tmp_path, START, example, causal=True) == []
    wrong = START.replace(".triu(1).bool()", ".triu(1)")
    assert found(tmp_path, wrong, example, causal=True) == [
        ("mask-fill-positive", "later = torch.ones(x.shape[1], x.shape[1]).triu(1)")
    ]
