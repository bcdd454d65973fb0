"""Attention along the edges of a graph, and masks that the data makes: weights, overflow and empty neighborhoods."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check
from heedful.conformance import Example

pytestmark = pytest.mark.slow

EDGES = """import torch
from torch import nn


def sum_at(nodes, where, what):
    return torch.zeros(nodes, *what.shape[1:], dtype=what.dtype).index_add(0, where, what)


class Attention(nn.Module):
    '''Each atom gathers messages along the bonds that end in it.'''

    def __init__(self, width=12):
        super().__init__()
        self.ask, self.key, self.tell = (nn.Linear(width, width) for _ in range(3))

    def forward(self, atoms, bonds):
        start, end = bonds
        energy = (self.ask(atoms)[end] * self.key(atoms)[start]).sum(-1) / atoms.shape[-1] ** 0.5
        energy = energy - energy.detach().max()
        energy = energy.exp()
        share = energy / sum_at(len(atoms), end, energy)[end]
        message = share[:, None] * self.tell(atoms)[start]
        return sum_at(len(atoms), end, message)
"""
BONDS = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
SHIFT = "        energy = energy - energy.detach().max()\n"
GATHER = "share[:, None] * self.tell"

CHOIRS = """import torch
from torch import nn


class Attention(nn.Module):
    '''The sound of each choir: its singers, by how much each is heard in it.'''

    def __init__(self, width=12):
        super().__init__()
        self.loud = nn.Linear(width, 1)
        self.voice = nn.Linear(width, width)

    def forward(self, singers, choir):
        loudness = self.loud(singers).squeeze(-1)
        heard = (loudness[:, None] + (choir[:, None] != choir) * -1e9).mT.softmax(-1).diagonal()
        sound = torch.zeros(int(choir.max()) + 1, singers.shape[1], dtype=singers.dtype)
        return sound.index_add(0, choir, heard[:, None] * self.voice(singers))
"""
HEARD = "(loudness[:, None] + (choir[:, None] != choir) * -1e9).mT.softmax(-1).diagonal()"

MARKS = """import torch
from torch import nn


class Attention(nn.Module):
    '''Visitors look at the exhibits of their room; a row of zeros is no exhibit.'''

    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(5, width), nn.Linear(5, width)

    def forward(self, visitors, exhibits):
        none = (exhibits == 0).all(-1)
        none = none & ~none.all(-1, keepdim=True)
        scores = self.q(visitors) @ self.k(exhibits).mT / visitors.shape[-1] ** 0.5
        scores = scores.masked_fill(none[:, None], -torch.inf)
        return scores.softmax(-1) @ self.v(exhibits)
"""
KEPT = "        none = none & ~none.all(-1, keepdim=True)\n"


def found_in(folder, source, example, level="bug"):
    with written(folder, source) as attention:
        findings = check(attention, example=example).findings
    return {it.name: it.place.source if it.place else "" for it in findings if it.level == level}


@pytest.mark.parametrize(
    ("old", "new", "name", "level", "line"),
    [
        (
            GATHER,
            "(share / 12**0.5)[:, None] * self.tell",
            "rows-not-normalised",
            "bug",
            "share / 12",
        ),
        (SHIFT, "", "output-not-finite", "suspicious", "energy.exp()"),
        (
            SHIFT,
            "        energy = energy.max().expand(len(energy))\n",
            "attention-ignored",
            "bug",
            "energy.max()",
        ),
    ],
)
def test_wrong_weights_of_edges_are_named(tmp_path, old, new, name, level, line):
    assert EDGES.count(old) == 1
    example = Example(torch.randn(5, 12), BONDS)
    assert line in found_in(tmp_path, EDGES.replace(old, new), example, level)[name]


def test_right_weights_of_edges_are_left_alone(tmp_path):
    assert found_in(tmp_path, EDGES, Example(torch.randn(5, 12), BONDS)) == {}


def test_one_softmax_over_all_graphs_is_named(tmp_path):
    example = Example(torch.randn(6, 12), torch.tensor([0, 0, 1, 1, 1, 1]))
    assert found_in(tmp_path, CHOIRS, example) == {}
    bugs = found_in(tmp_path, CHOIRS.replace(HEARD, "loudness.softmax(0)"), example)
    assert "loudness.softmax(0)" in bugs["softmax-wrong-dim"]


LOOPING = CHOIRS.replace(
    "        return sound.index_add(0, choir, heard[:, None] * self.voice(singers))\n",
    "        for i in range(len(sound)):\n"
    "            sound[i] = (heard[:, None] * self.voice(singers))[choir == i].sum(0)\n"
    "        return sound\n",
).replace("choir", "batch")


def test_one_softmax_over_all_graphs_is_named_if_a_loop_sums_each_graph(tmp_path):
    example = Example(torch.randn(6, 12), torch.tensor([0, 0, 1, 1, 1, 1]))
    assert found_in(tmp_path, LOOPING, example) == {}
    wrong = LOOPING.replace(HEARD.replace("choir", "batch"), "loudness.softmax(0)")
    assert "loudness.softmax(0)" in found_in(tmp_path, wrong, example)["batch-mixed"]


ROOMS = """import torch
from torch import nn


class Attention(nn.Module):
    '''Guests of one room hear each other.'''

    def __init__(self, width=16):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, guests, batch):
        apart = batch[:, None] != batch
        return self.encoder(guests, mask=apart)
"""


def test_tokens_that_see_only_other_sequences_are_named(tmp_path):
    example = Example(torch.randn(11, 16), torch.tensor([0] * 6 + [1] * 5))
    assert found_in(tmp_path, ROOMS, example) == {}
    assert "mask-inverted" in found_in(tmp_path, ROOMS.replace("!= batch", "== batch"), example)
    assert "batch-mixed" in found_in(tmp_path, ROOMS.replace("mask=apart", "mask=None"), example)


STORIES = """import torch
from torch import nn


class Attention(nn.Module):
    '''Words of packed stories. `doc_ids` (batch, words) is the story of each word.'''

    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, words, doc_ids=None):
        scores = self.q(words) @ self.k(words).mT / words.shape[-1] ** 0.5
        if doc_ids is not None:
            scores = scores.masked_fill(doc_ids[:, :, None] != doc_ids[:, None], -1e30)
        return scores.softmax(-1) @ self.v(words)
"""


def test_packed_sequences_that_see_each_other_are_named(tmp_path):
    example = Example(torch.randn(2, 8, 16), torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]]).repeat(2, 1))
    assert found_in(tmp_path, STORIES, example) == {}
    mixed = STORIES.replace("if doc_ids is not None", "if doc_ids is None")
    assert "batch-mixed" in found_in(tmp_path, mixed, example)


def exhibits():
    rooms = torch.randn(2, 4, 5)
    rooms[0, 2:] = rooms[1] = 0.0
    return Example(torch.randn(2, 6, 16), rooms)


def test_a_sequence_of_the_example_that_hides_all_its_keys_is_named(tmp_path):
    assert found_in(tmp_path, MARKS, exhibits()) == {}
    bugs = found_in(tmp_path, MARKS.replace(KEPT, ""), exhibits())
    assert "masked_fill" in bugs["nan-on-masked-rows"]
