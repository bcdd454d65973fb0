"""Bugs that only some numbers of tokens, or of sequences, show."""

import pytest
from edited_attention import (
    APPLY_MASK,
    CONTEXT,
    SIZES,
    SOFTMAX,
    SPLIT_VALUE,
    assert_bug,
    assert_no_finding,
    edited,
    results_of,
)

from heedful.conformance.reporting.finding import Fact

# What is replaced, by what, and what is on the line to be named.
BUGS = {
    "32 keys": (
        CONTEXT,
        "        context = weights[..., :32] @ value[:, :, :32]\n",
        "weights[..., :32]",
    ),
    "values mixed up after 32": (
        SPLIT_VALUE,
        SPLIT_VALUE
        + "        value = torch.cat([value[:, :, :32], value[:, :, 32:].flip(-1)], dim=2)\n",
        "weights @ value",
    ),
    "16 tokens cut to 8": (
        CONTEXT,
        CONTEXT + "        T = 8 if T == 16 else T\n        context = context[:, :, :T]\n",
        None,
    ),
    "another scale beyond 32": (
        SOFTMAX,
        "        if T > 32:\n            scores = scores * 1.5\n" + SOFTMAX,
        "scores * 1.5",
    ),
    "no mask beyond 16": (
        APPLY_MASK,
        "        if T <= 16:\n    " + APPLY_MASK,
        "masked_fill",
    ),
    "31 tokens raise": (
        SOFTMAX,
        SOFTMAX + "        if T == 31:\n            raise IndexError(T)\n",
        "raise IndexError",
    ),
    "one sequence squeezed": (
        CONTEXT,
        CONTEXT + "        context = context.squeeze(0) if B == 1 else context\n",
        "context.squeeze",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_dependence_on_lengths_is_found(tmp_path, bug):
    assert_bug(tmp_path, "length-dependent", *BUGS[bug])


def test_refusing_long_sequences_raises_no_alarm(tmp_path):
    refusal = "        if T > 50:\n            raise ValueError(T)\n"
    assert_no_finding(tmp_path, CONTEXT, CONTEXT + refusal)


def test_the_largest_context_is_found_without_a_declaration(tmp_path):
    table = "        context = context + torch.zeros(41)[:T].view(T, 1)\n"
    with edited(tmp_path, CONTEXT, CONTEXT + table) as attention:
        assert Fact("largest context", "41 tokens") in results_of(attention(*SIZES))
