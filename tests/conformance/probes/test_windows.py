"""Windows that a module declares: how many keys its queries see, and the line of a wrong number."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

WINDOWED = """
import torch
import torch.nn.functional as F
from torch import nn

def attend(query, key, value, window=None):
    T = query.shape[-2]
    keep = torch.ones(T, T, dtype=torch.bool).tril()
    if window is not None:
        keep = keep.triu(1 - window)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=keep)

class Attention(nn.Module):
    def __init__(self, d_model, num_heads, window=3):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        qkv = self.qkv(x).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv)
        context = attend(query, key, value, window=self.window)
        return self.out_proj(context.transpose(1, 2).flatten(2))
"""
CALL = "attend(query, key, value, window=self.window)"
WRONG = {
    "the call omits the window": (CALL, "attend(query, key, value)", "window-missing", "= attend("),
    "the call passes one more": (
        CALL,
        "attend(query, key, value, window=self.window + 1)",
        "window-off-by-one",
        "= attend(",
    ),
    "the call passes one less": (
        CALL,
        "attend(query, key, value, window=self.window - 1)",
        "window-off-by-one",
        "= attend(",
    ),
    "the helper counts one more": (
        "keep.triu(1 - window)",
        "keep.triu(-window)",
        "window-off-by-one",
        "keep = keep.triu",
    ),
}


@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_window_is_found_on_its_line(tmp_path, bug):
    old, new, name, line = WRONG[bug]
    torch.manual_seed(0)
    with written(tmp_path, WINDOWED.replace(old, new)) as attention:
        (finding,) = check(attention, causal=True).bugs
    assert finding.name == name
    assert finding.place is not None
    assert line in finding.place.source


def test_a_window_that_is_passed_on_is_right(tmp_path):
    with written(tmp_path, WINDOWED) as attention:
        assert not check(attention, causal=True).bugs


STATED = WINDOWED.replace(
    "window=None):",
    'left=None):\n    """Let query i see the keys from i - left on, inclusive."""\n    window = left and left + 1',
)


@pytest.mark.parametrize(("given", "bugs"), [("self.window - 1", 0), ("self.window", 1)])
def test_a_helper_that_says_what_it_counts_is_not_blamed(tmp_path, given, bugs):
    call = f"attend(query, key, value, {given})"
    torch.manual_seed(0)
    with written(tmp_path, STATED.replace(CALL, call)) as attention:
        found = check(attention, causal=True).bugs
    assert [bug.name for bug in found] == ["window-off-by-one"] * bugs
    assert all(bug.place is not None and call in bug.place.source for bug in found)


TWO_SIDED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model, window=2):
        super().__init__()
        self.window = window
        self.reach = window, window
        self.projections = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        query, key, value = (projection(x) for projection in self.projections)
        places = torch.arange(x.shape[1])
        ahead = places - places[:, None]
        near = (ahead >= -self.window) & (ahead <= self.window)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return torch.where(near, scores, float("-inf")).softmax(-1) @ value
"""
BAND = "(ahead >= -self.window) & (ahead <= self.window)"
PAIR = TWO_SIDED.replace("self.window = window", "pass").replace("self.reach", "self.window")
LEFT, RIGHT = "ahead >= -self.window[0]", "ahead <= self.window[1]"
PAIR = PAIR.replace(BAND, f"torch.ones_like(ahead, dtype=torch.bool)\n        near &= {RIGHT}")
PAIR = PAIR.replace(RIGHT, f"{RIGHT}\n        near &= ({LEFT}) | torch.tensor(self.window[0] < 0)")
ONE_SIDED = {
    "the mask forgets the keys before": (TWO_SIDED.replace(BAND, "ahead <= self.window"), "near ="),
    "the mask forgets the keys after": (TWO_SIDED.replace(BAND, "ahead >= -self.window"), "near ="),
    "one number of the pair is negative": (
        PAIR.replace("window, window\n", "-window, window\n"),
        "(-window, window)",
    ),
}


@pytest.mark.parametrize("bug", ONE_SIDED)
def test_a_window_that_limits_one_side_only_is_found(tmp_path, bug):
    source, line = ONE_SIDED[bug]
    with written(tmp_path, source) as encoder:
        (finding,) = check(encoder(24)).bugs
    assert finding.name == "window-missing"
    assert finding.place is not None
    assert line in finding.place.source


@pytest.mark.parametrize(
    "source",
    [
        TWO_SIDED,
        PAIR,
        TWO_SIDED.replace(BAND, "ahead <= self.window  # the look-ahead"),
        PAIR.replace("= window, window\n", "= -1, window\n"),
    ],
)
def test_a_window_of_both_sides_or_meant_for_one_is_right(tmp_path, source):
    with written(tmp_path, source) as encoder:
        assert not check(encoder(24)).bugs
