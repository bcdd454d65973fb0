"""Correct attentions in which nothing is found."""

import pytest
import torch.nn.functional as F
from edited_attention import assert_no_finding, findings_of
from torch import nn

from heedful.nn import MultiHeadAttention, RotaryEmbedding
from heedful.textbook import causal, multi_head, self_attention


def test_the_attention_that_other_tests_edit_raises_no_alarm(tmp_path):
    assert_no_finding(tmp_path)


@pytest.mark.parametrize(
    "target",
    [
        nn.MultiheadAttention(24, 4, dropout=0.2),
        nn.MultiheadAttention(24, 4, dropout=0.2, batch_first=True),
        nn.TransformerEncoderLayer(24, 4, 32),
        nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, norm_first=True),
        self_attention.SelfAttentionV2,
        causal.CausalAttention,
        multi_head.MultiHeadAttention,
        multi_head.MultiHeadAttentionWrapper,
        MultiHeadAttention(24, 4, dropout=0.2),
        MultiHeadAttention(24, 4, num_kv_heads=2, rotary=RotaryEmbedding(6), window=5),
        MultiHeadAttention(24, 4, causal=False),
        F.scaled_dot_product_attention,
    ],
    ids=lambda target: getattr(target, "__name__", type(target).__name__),
)
def test_known_attentions_raise_no_alarm(target):
    assert findings_of(target) == []
