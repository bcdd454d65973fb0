"""Projections, and parts of packed ones, that the output does not depend on."""

import pytest
from edited_attention import (
    CONTEXT,
    CORRECT,
    MASK_BUFFER,
    SPLIT_VALUE,
    assert_bug,
    assert_no_finding,
)

# What is replaced, by what, and what is on the line to be named.
BUGS = {
    "values from W_key": (
        SPLIT_VALUE,
        SPLIT_VALUE.replace("W_value", "W_key"),
        "value = self.split(self.W_key",
    ),
    "keys as values": (CONTEXT, CONTEXT.replace("value", "key"), "weights @ key"),
    "no output projection": ("self.out_proj(context)", "context", "return context"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_an_unused_projection_is_found(tmp_path, bug):
    assert_bug(tmp_path, "projection-unused", *BUGS[bug])


PACKED = CORRECT.replace(
    CORRECT[CORRECT.index("        query = ") : CORRECT.index("        scores = ")],
    "        query, key, value = (self.split(part) for part in self.packed(x).chunk(3, -1))\n",
).replace(MASK_BUFFER, MASK_BUFFER + "        self.packed = nn.Linear(d_model, 3 * d_model)\n")
for role in ("query", "key", "value"):
    PACKED = PACKED.replace(f"        self.W_{role} = nn.Linear(d_model, d_model)\n", "")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (CONTEXT, CONTEXT.replace("value", "key"), "weights @ key"),
        ("= query @ key", "= key @ key", "key @ key"),
    ],
)
def test_an_unused_part_of_a_packed_projection_is_found(tmp_path, old, new, line):
    assert_no_finding(tmp_path, source=PACKED)
    (tmp_path / "wrong").mkdir()
    assert_bug(tmp_path / "wrong", "projection-unused", old, new, line, PACKED)


@pytest.mark.parametrize(
    "member",
    [
        "self.cross = nn.MultiheadAttention(d_model, num_heads)",
        "self.cross_query = nn.Linear(d_model, d_model)",
    ],
    ids=["a module", "a query projection"],
)
def test_members_for_another_call_raise_no_alarm(tmp_path, member):
    assert_no_finding(tmp_path, MASK_BUFFER, f"{MASK_BUFFER}        {member}\n")
