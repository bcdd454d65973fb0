"""A mask of the target's own must leave every query a key."""

import pytest
from attentions_with_caches import written

from heedful import check

SECTIONS = """import torch
from torch import nn


def section(count, size):
    return torch.arange(count) // size


class Attention(nn.Module):
    '''Tokens see the summaries of pairs of tokens, each within its own section.'''

    def __init__(self, width=24, size=4):
        super().__init__()
        self.size = size
        self.ask, self.key, self.tell = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        pairs = nn.functional.pad(x, (0, 0, 0, T % 2)).reshape(B, -1, 2, C).mean(2)
        own = section(T, self.size)[:, None]
        theirs = section(pairs.shape[1], self.size // 2)[None]
        apart = (own != theirs).to(x) * -1e9
        scores = self.ask(x) @ self.key(pairs).mT / C**0.5 + apart
        return scores.softmax(-1) @ self.tell(pairs)
"""


def bugs_of(folder, source):
    with written(folder, source) as attention:
        bugs = check(attention).bugs
    return {bug.name: bug.place.source if bug.place else "" for bug in bugs}


def test_queries_that_see_no_key_are_found_on_the_line_that_numbers_the_keys(tmp_path):
    assert bugs_of(tmp_path, SECTIONS) == {}
    bugs = bugs_of(tmp_path, SECTIONS.replace("self.size // 2", "self.size"))
    assert "theirs =" in bugs["self-hidden"]


LARGEST = """import torch
from torch import nn


class Attention(nn.Module):
    '''Queries see the largest of their scores, which a comparison of the scores themselves finds.'''

    def __init__(self, width=8):
        super().__init__()
        self.ask, self.key, self.tell = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        scores = self.ask(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        low = scores < scores.topk(1, dim=-1).values - 1
        return scores.masked_fill(low, float("-inf")).softmax(-1) @ self.tell(x)
"""


def test_a_comparison_of_scores_is_no_step_that_hides_scores(tmp_path):
    with written(tmp_path, LARGEST) as attention:
        assert "could not run" not in str(check(attention))


BLOCKS = """import torch
from torch import nn


class Attention(nn.Module):
    '''Tokens see the means of whole blocks of earlier tokens, and 0 before the first block ends.'''

    def __init__(self, width=24, block_size=2):
        super().__init__()
        self.block_size = block_size
        self.ask, self.key, self.tell = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        count = T // self.block_size
        blocks = x[:, : count * self.block_size].unflatten(1, (count, self.block_size)).mean(2)
        ends = (torch.arange(count) + 1) * self.block_size - 1
        seen = ends <= torch.arange(T)[:, None]
        scores = self.ask(x) @ self.key(blocks).mT / C**0.5
        weights = scores.masked_fill(~seen, -1e9).softmax(-1) * seen.any(-1, keepdim=True)
        return x + weights @ self.tell(blocks)
"""


def blamed(folder, source):
    with written(folder, source) as attention:
        bugs = check(attention, causal=True).bugs
    return [(bug.name, bug.place.source if bug.place else "") for bug in bugs]


def test_queries_without_a_key_may_get_weights_of_0(tmp_path):
    assert blamed(tmp_path, BLOCKS) == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("seen = ends > torch.arange(T)[:, None]", "mask-inverted"),
        ("seen = ends - 1 <= torch.arange(T)[:, None]", "future-leak"),
    ],
)
def test_blocks_that_end_after_a_query_are_found_on_the_line_of_their_mask(tmp_path, line, name):
    wrong = BLOCKS.replace("seen = ends <= torch.arange(T)[:, None]", line)
    assert blamed(tmp_path, wrong) == [(name, line)]
