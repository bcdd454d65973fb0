"""Steps of decoders: a token, a state and an encoder's tokens, which are the keys, with an example and without."""

from __future__ import annotations

import pytest
import torch
from torch import randint, randn

from conformance.calling import decoders
from heedful import check
from heedful.conformance.calling.subject import find_subject

pytestmark = pytest.mark.slow

BATCH_FIRST, TOKENS_FIRST = "(B, T, C)", "(T, B, C)"
KEEP = torch.ones(2, 6, dtype=torch.bool)

# The class, an example of its arguments, the keys and their layout, and the argument of the padding mask.
STEPS = [
    (
        decoders.BahdanauStep,
        lambda: (randint(0, 20, (2,)), (randn(1, 2, 24), randn(1, 2, 24)), randn(2, 6, 24)),
        ("encoder_outputs", BATCH_FIRST, "mask"),
    ),
    (
        decoders.LuongStep,
        lambda: (randint(0, 30, (1, 2)), randn(2, 2, 24), randn(6, 2, 24)),
        ("encoder_outputs", TOKENS_FIRST, None),
    ),
    (
        decoders.CellStep,
        lambda: (randn(2, 12), randn(2, 20), randn(2, 20), randn(2, 6, 28)),
        ("features", BATCH_FIRST, None),
    ),
    (
        decoders.StateStep,
        lambda: (randint(0, 17, (2, 4)), [randn(2, 6, 16), randn(2, 2, 16), torch.tensor([4, 6])]),
        ("state[0]", BATCH_FIRST, "state[2]"),
    ),
    (
        decoders.HiddenStep,
        lambda: (randint(0, 21, (2,)), randn(2, 18), randn(6, 2, 24), torch.ones(2, 6)),
        ("encoder_outputs", TOKENS_FIRST, "mask"),
    ),
    (
        decoders.PassedOn,
        lambda: (randn(2, 1, 14), randn(2, 1, 22), (randn(2, 2, 22),) * 2, randn(2, 6, 22)),
        ("enc_out", BATCH_FIRST, "src_mask"),
    ),
    (
        decoders.Speller,
        lambda: (randint(0, 19, (2,)), (randn(2, 18), randn(2, 18)), randn(2, 6, 26), KEEP),
        ("listener_features", BATCH_FIRST, "mask"),
    ),
    (
        decoders.TutorialStep,
        lambda: (randint(0, 15, (2, 1)), randn(1, 2, 20), randn(2, 6, 20)),
        ("encoder_outputs", BATCH_FIRST, None),
    ),
    (
        decoders.FourArgs,
        lambda: (randint(0, 23, (2,)), randn(6, 2, 32), randn(1, 2, 16), randn(1, 2, 16)),
        ("encoder_states", TOKENS_FIRST, None),
    ),
    (
        decoders.PrimeStep,
        lambda: (randn(2, 7), randn(2, 11), randn(2, 6, 13)),
        ("encoder_outputs", BATCH_FIRST, None),
    ),
]
IDS = [it[0].__name__ for it in STEPS]


@pytest.mark.parametrize("given", [True, False], ids=["example", "no example"])
@pytest.mark.parametrize(("module", "example", "expected"), STEPS, ids=IDS)
def test_the_tokens_of_the_encoder_are_the_keys(module, example, expected, given):
    torch.manual_seed(0)
    subject = find_subject(module(), example=example() if given else None)
    keys, layout, mask = expected
    assert (subject.convention.names, subject.layout) == ((keys,), layout)
    assert subject.max_length is None
    assert subject.run(subject.draw(3, 9)).shape[:2] == (3, 9)
    assert (subject.padding and subject.padding.name) == mask
    assert mask is None or (subject.padding is not None and subject.padding.hides)


@pytest.mark.parametrize(
    ("module", "right", "wrong", "name"),
    [
        ("BahdanauStep", "scores = scores.masked_fill", "scores.masked_fill", "mask-unused"),
        ("LuongStep", "softmax(energies, dim=1)", "softmax(energies, dim=0)", "softmax-wrong-dim"),
        ("CellStep", "e.softmax(dim=1)", "e.softmax(dim=0)", "softmax-wrong-dim"),
        ("StateStep", "masked_fill(~keep", "masked_fill(keep", "mask-inverted"),
        ("HiddenStep", "outputs.permute(1, 0, 2)", "outputs.view(-1, src_len, 24)", "batch-mixed"),
    ],
)
def test_the_bug_of_a_step_is_named(module, right, wrong, name, bugs_of):
    assert bugs_of(decoders, module, right, wrong) == [name]


@pytest.mark.parametrize("module", [it[0] for it in STEPS], ids=IDS)
def test_a_sound_step_has_no_bug(module):
    torch.manual_seed(0)
    report = check(module())
    assert not report.bugs, report


def test_a_sequence_that_gets_a_row_for_each_token_is_no_step():
    torch.manual_seed(0)
    subject = find_subject(decoders.Encoder(), example=(randn(2, 6, 16), randn(2, 2, 16)))
    assert subject.convention.names == ("x",)
    assert not subject.convention.pooled
