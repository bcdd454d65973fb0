"""The numbers that masks fill scores with, and the lines that define them."""

import pytest
from edited_attention import APPLY_MASK, CORRECT, MASK_BUFFER, edited

from heedful import check


@pytest.mark.parametrize(
    "fill", ['float("inf")', "-float('-inf')", "1e9", "torch.finfo(x.dtype).max"]
)
def test_a_large_positive_fill_is_found_on_its_line(tmp_path, fill):
    with edited(tmp_path, APPLY_MASK, APPLY_MASK.replace('float("-inf")', fill)) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "mask-fill-positive"
    assert bug.place is not None
    assert "masked_fill" in bug.place.source


def test_the_line_is_where_a_local_variable_is_assigned(tmp_path):
    lines = '        fill = -float("-inf")\n' + APPLY_MASK.replace('float("-inf")', "fill")
    with edited(tmp_path, APPLY_MASK, lines) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "mask-fill-positive"
    assert bug.place is not None
    assert bug.place.source == "fill = -float('-inf')"


@pytest.mark.parametrize("fill", ["-100.0", "1e-9"])
def test_the_line_of_a_small_fill_is_where_its_buffer_is_registered(tmp_path, fill):
    register = f'        self.register_buffer("fill", torch.tensor({fill}))\n'
    source = CORRECT.replace(MASK_BUFFER, MASK_BUFFER + register)
    filled = "        scores = torch.where(self.mask[:T, :T], self.fill, scores)\n"
    with edited(tmp_path, APPLY_MASK, filled, source) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "mask-fill-too-small"
    assert bug.place is not None
    assert "register_buffer('fill'" in bug.place.source


def test_distances_that_are_negated_may_be_filled_with_infinity(tmp_path):
    lines = '        scores = -(-scores).masked_fill(self.mask[:T, :T], float("inf"))\n'
    with edited(tmp_path, APPLY_MASK, lines) as attention:
        assert not check(attention, causal=True).bugs
