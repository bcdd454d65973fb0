"""A dropout that is declared for the weights must be applied in training."""

import pytest
from edited_attention import APPLY_MASK, CONTEXT, CORRECT, DROPOUT, SOFTMAX, edited

from heedful import check


def test_a_declared_dropout_that_nothing_calls_is_found_where_the_weights_are_made(tmp_path):
    with edited(tmp_path, SOFTMAX + DROPOUT, SOFTMAX) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "dropout-unused"
    assert bug.place is not None
    assert "softmax" in bug.place.source


def test_another_dropout_does_not_stand_in_for_that_of_the_weights(tmp_path):
    source = CORRECT.replace("self.dropout = ", "self.resid = self.attn_drop = ")
    projected = "        return self.resid(self.out_proj(context))\n"
    source = source.replace("        return self.out_proj(context)\n", projected)
    source = source.replace(
        "self.resid = self.attn_drop = nn.Dropout(dropout)",
        "self.resid, self.attn_drop = nn.Dropout(dropout), nn.Dropout(dropout)",
    )
    with edited(tmp_path, DROPOUT, "", source) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "dropout-unused"
    assert "attn_drop" in bug.proof


def test_a_dropout_of_the_output_alone_is_no_bug(tmp_path):
    moved = CORRECT.replace("self.out_proj(context)", "self.dropout(self.out_proj(context))")
    with edited(tmp_path, DROPOUT, "", moved) as attention:
        assert not check(attention, causal=True).bugs


def test_a_probability_that_nothing_reads_is_found(tmp_path):
    source = CORRECT.replace("self.dropout = nn.Dropout(dropout)", "self.attn_dropout = dropout")
    with edited(tmp_path, DROPOUT, "", source) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "dropout-unused"


def test_a_dropout_that_the_fused_attention_applies_is_used(tmp_path):
    fused = (
        "        p = self.dropout.p if self.training else 0.0\n"
        "        context = F.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=True)\n"
    )
    with edited(tmp_path, APPLY_MASK + SOFTMAX + DROPOUT + CONTEXT, fused) as attention:
        assert not check(attention, causal=True).bugs


STATES_NONE = (
    "        context = F.scaled_dot_product_attention(query, key, value, {}is_causal=True)\n"
)


@pytest.mark.parametrize("stated", ["dropout_p=0.0, ", "attn_mask=None, dropout_p=0, "])
def test_a_number_is_not_meant_for_a_call_that_says_it_drops_nothing(tmp_path, stated):
    source = CORRECT.replace("self.dropout = nn.Dropout(dropout)", "self.dropout = dropout")
    fused = STATES_NONE.format(stated)
    with edited(tmp_path, APPLY_MASK + SOFTMAX + DROPOUT + CONTEXT, fused, source) as attention:
        assert not check(attention, causal=True).bugs


@pytest.mark.parametrize(
    ("declared", "stated"),
    [
        ("self.dropout = dropout", ""),
        ("self.attn_dropout = dropout", "dropout_p=0.0, "),
        ("self.dropout = nn.Dropout(dropout)", "dropout_p=0.0, "),
    ],
)
def test_a_dropout_for_the_weights_is_missed_in_a_fused_call(tmp_path, declared, stated):
    source = CORRECT.replace("self.dropout = nn.Dropout(dropout)", declared)
    fused = STATES_NONE.format(stated)
    with edited(tmp_path, APPLY_MASK + SOFTMAX + DROPOUT + CONTEXT, fused, source) as attention:
        assert [bug.name for bug in check(attention, causal=True).bugs] == ["dropout-unused"]
