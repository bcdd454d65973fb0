"""The line of a softmax over the wrong dimension."""

import pytest
from edited_attention import CORRECT, SOFTMAX, edited

from heedful import check

BUFFER = "        self.register_buffer("
CREATED = "        self.attend = nn.Softmax(dim=-2)\n"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("self.attend(scores)", "self.attend = nn.Softmax(dim=-2)"),
        ("scores.softmax(dim=-2)", "weights = scores.softmax(dim=-2)"),
    ],
)
def test_a_module_is_blamed_where_it_is_created(tmp_path, call, line):
    source = CORRECT.replace(BUFFER, CREATED + BUFFER)
    with edited(tmp_path, SOFTMAX, f"        weights = {call}\n", source) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "softmax-wrong-dim"
    assert bug.place is not None
    assert bug.place.source == line


def test_a_layer_in_a_sequential_is_blamed_where_it_is_created(tmp_path):
    created = (
        "        self.weigh = nn.Sequential(\n"
        "            nn.Identity(),\n"
        "            nn.Softmax(-2),\n"
        "        )\n"
    )
    source = CORRECT.replace(BUFFER, created + BUFFER)
    with edited(tmp_path, SOFTMAX, "        weights = self.weigh(scores)\n", source) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "softmax-wrong-dim"
    assert bug.place is not None
    assert bug.place.source == "nn.Softmax(-2),"
