"""State that a call leaves behind, names of the file, and tensors that are no buffers."""

import pytest
import torch
from edited_attention import (
    APPLY_MASK,
    CONTEXT,
    DROPOUT,
    MANUAL_DROPOUT,
    MASK_BUFFER,
    SIZES,
    SOFTMAX,
    assert_bug,
    assert_no_finding,
    edited,
    findings_of,
)
from torch import nn

from heedful.conformance.checking import check

# The finding, what is replaced, by what, and what is on the line to be named.
BUGS = {
    "a mask of the first call's scores": (
        "stale-state",
        APPLY_MASK,
        "        if not hasattr(self, 'hidden'):\n            self.hidden = scores > scores.mean()\n"
        "        scores = scores + self.hidden\n" + APPLY_MASK,
        "self.hidden = scores",
    ),
    "a mask changed in place": (
        "stale-state",
        APPLY_MASK,
        APPLY_MASK + "        self.mask.logical_or_(self.mask.roll(1, 0).triu())\n",
        "self.mask.logical_or_",
    ),
    "a mask of the first call's scores, by setdefault": (
        "stale-state",
        APPLY_MASK,
        "        hidden = self.__dict__.setdefault('hidden', scores > scores.mean())\n"
        "        scores = scores + (hidden if hidden.shape == scores.shape else 0)\n" + APPLY_MASK,
        "setdefault",
    ),
    "the last call's weights": (
        "stale-state",
        SOFTMAX,
        SOFTMAX + "        if getattr(self, 'last', weights).shape == weights.shape:\n"
        "            weights = 0.5 * weights + 0.5 * getattr(self, 'last', weights)\n"
        "        self.last = weights.detach()\n",
        "self.last = weights",
    ),
    "the last call's scores, in a global": (
        "stale-state",
        APPLY_MASK,
        "        if T not in SEEN:\n            SEEN.clear()\n            SEEN[T] = scores.detach()[0]\n"
        "        scores = 0.5 * scores + 0.5 * SEEN[T]\n" + APPLY_MASK,
        "SEEN[T]",
    ),
    "a global instead of a local": (
        "undefined-or-global-name",
        CONTEXT,
        CONTEXT.replace("value", "values"),
        "weights @ values",
    ),
    "a plain attribute": (
        "mask-not-a-buffer",
        MASK_BUFFER,
        MASK_BUFFER.replace('register_buffer("mask", ', "mask = ("),
        "self.mask = ",
    ),
    "a plain attribute that a call makes": (
        "mask-not-a-buffer",
        APPLY_MASK,
        "        if getattr(self, 'kept', None) != T:\n"
        "            self.kept = T\n            self.hidden = self.mask[:T, :T].clone()\n"
        + APPLY_MASK.replace("self.mask[:T, :T]", "self.hidden"),
        "self.hidden = ",
    ),
    "a plain attribute, by a comparison": (
        "mask-not-a-buffer",
        MASK_BUFFER,
        "        self.mask = torch.ones(context_length, context_length).triu(1) > 0\n",
        "self.mask = ",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_wrong_state_is_found(tmp_path, bug):
    assert_bug(tmp_path, *BUGS[bug])


CORRECT_STATES = {
    "a mask kept for one length and device": (
        APPLY_MASK,
        "        if getattr(self, 'kept', None) != (T, x.device):\n"
        "            self.kept, self.hidden = (T, x.device), self.mask[:T, :T]\n"
        + APPLY_MASK.replace("self.mask[:T, :T]", "self.hidden"),
    ),
    "the last weights kept": (DROPOUT, DROPOUT + "        self.last_weights = weights.detach()\n"),
    "a table of the file": (CONTEXT, "        scores = scores * SLOPES\n" + CONTEXT),
}


@pytest.mark.parametrize("state", CORRECT_STATES)
def test_correct_state_raises_no_alarm(tmp_path, state):
    assert_no_finding(tmp_path, *CORRECT_STATES[state])


class Encoder(nn.Module):
    """Takes a padding mask, True at hidden tokens, and keeps that of the first call if `keeps`."""

    def __init__(self, keeps: bool):
        super().__init__()
        self.keeps, self.hidden = keeps, None
        self.projections = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def forward(self, x, key_padding_mask=None):
        if key_padding_mask is None:
            key_padding_mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        if self.hidden is None or not self.keeps or self.hidden.shape != key_padding_mask.shape:
            self.hidden = key_padding_mask
        query, key, value = (projection(x) for projection in self.projections)
        scores = query @ key.mT / 24**0.5
        weights = scores.masked_fill(self.hidden[:, None, :], -torch.inf).softmax(-1)
        return weights @ value


def test_padding_kept_from_an_earlier_call_is_found():
    assert findings_of(Encoder(keeps=False)) == []
    (finding,) = findings_of(Encoder(keeps=True))
    assert finding.name == "stale-state"
    assert finding.place is not None
    assert finding.place.source == "self.hidden = key_padding_mask"


class Streaming(nn.Module):
    """Adds up the keys and values of all calls, until reset() if it `forgets`."""

    def __init__(self, forgets: bool):
        super().__init__()
        self.forgets, self.state = forgets, 0.0
        self.projections = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))

    def reset(self):
        if self.forgets:
            self.state = 0.0

    def forward(self, x):
        query, key, value = (projection(x) for projection in self.projections)
        self.state = self.state + key.softmax(-2).mT @ value
        return query.softmax(-1) @ self.state


class Buffered(nn.Module):
    """Writes keys and values to the start of a buffer of 16 rows, and hides its other rows if `hides`."""

    def __init__(self, hides: bool):
        super().__init__()
        self.hides = hides
        self.projections = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.register_buffer("rows", torch.zeros(2, 1, 16, 24), persistent=False)

    def forward(self, x):
        query, key, value = (projection(x) for projection in self.projections)
        rows = self.rows.expand(2, len(x), 16, 24) if len(self.rows[0]) != len(x) else self.rows
        new, T = torch.stack([key, value]), x.shape[1]
        self.rows = torch.cat([new, rows[:, :, T:]], dim=2).detach()
        key, value = torch.cat([new, self.rows[:, :, T:]], dim=2)
        scores = query @ key.mT / 24**0.5
        if self.hides:
            scores = scores.masked_fill(torch.arange(16) >= T, -torch.inf)
        return scores.softmax(-1) @ value


def test_rows_of_an_earlier_call_may_stay_in_a_buffer_if_no_query_weights_them():
    assert check(Buffered(hides=True)).bugs == ()
    (bug,) = (it for it in check(Buffered(hides=False)).bugs if it.name == "stale-state")
    assert bug.place is not None
    assert "scores.softmax" in bug.place.source


def test_state_that_a_method_forgets_is_a_suspicion():
    (finding,) = findings_of(Streaming(forgets=True))
    assert (finding.name, finding.level) == ("stale-state", "suspicious")
    assert "After a call of reset() it is the same." in finding.proof
    (finding,) = findings_of(Streaming(forgets=False))
    assert (finding.name, finding.level) == ("stale-state", "bug")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (SOFTMAX, SOFTMAX.replace("(scores", "(attn_scores"), "softmax(attn_scores"),
        ("weights @ value", "weight @ value", "weight @ value"),
    ],
    ids=["a global of another size", "an undefined name"],
)
def test_a_wrong_name_is_found_although_the_call_raises(tmp_path, old, new, line):
    with edited(tmp_path, old, new) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "undefined-or-global-name"
    assert bug.place is not None
    assert line in bug.place.source


def test_a_check_restores_the_random_state_and_the_weights(tmp_path):
    with edited(tmp_path, DROPOUT, MANUAL_DROPOUT.format("")) as attention:
        module = attention(*SIZES)
        state = torch.get_rng_state()
        weights = [parameter.clone() for parameter in module.parameters()]
        assert check(module, causal=True).bugs
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(weights, module.parameters(), strict=True))
