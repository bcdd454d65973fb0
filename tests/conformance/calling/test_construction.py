"""A class is built with conventional values for the arguments that its constructor needs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import nn

from conformance.calling.attentions import Projected
from heedful.conformance.calling.construction import _similar_name
from heedful.conformance.calling.subject import find_subject
from heedful.errors import ArgumentError
from heedful.textbook import multi_head


@dataclass
class Config:
    n_embd: int
    n_head: int
    dropout: float = 0.0
    flavour: str = "plain"


class OfDataclass(Projected):
    def __init__(self, config: Config):
        super().__init__(config.n_embd)
        self.n_head, self.drop = config.n_head, nn.Dropout(config.dropout)


class OfDict(Projected):
    def __init__(self, cfg):
        super().__init__(cfg["emb_dim"])
        self.drop = nn.Dropout(cfg["drop_rate"])


class OfNames(Projected):
    def __init__(self, args):
        super().__init__(args.dim)
        self.flavour = args.flavour


def test_constructors_get_conventional_sizes_and_a_dropout_above_zero():
    subject = find_subject(multi_head.MultiHeadAttention)
    module = subject.module
    assert isinstance(module, multi_head.MultiHeadAttention)
    assert module.dropout.p > 0
    assert len({module.d_in, module.num_heads, module.head_dim, module.context_length}) == 4
    assert find_subject(OfDataclass).module.drop.p > 0  # pyright: ignore
    assert find_subject(OfDict).module.drop.p > 0  # pyright: ignore


@pytest.mark.parametrize(
    ("arguments", "heads", "width"),
    [({"d_out": 10}, 2, 10), ({"num_heads": 5}, 5, 30), ({"d_in": 3, "d_out": 4}, 4, 4)],
)
def test_missing_sizes_fit_the_given_ones(arguments, heads, width):
    module = find_subject(multi_head.MultiHeadAttention, arguments=arguments).module
    assert isinstance(module, multi_head.MultiHeadAttention)
    assert (module.num_heads, module.d_out) == (heads, width)


def test_an_unconventional_argument_is_requested_by_name():
    with pytest.raises(ArgumentError, match=r"flavour.*arguments="):
        find_subject(OfNames)
    assert find_subject(OfNames, arguments={"flavour": "sweet"}).module.flavour == "sweet"  # pyright: ignore
    with pytest.raises(ArgumentError, match=r"colour.*d_model"):
        find_subject(Projected, arguments={"colour": 1})


@pytest.mark.parametrize(
    "name",
    ["kv_num_heads", "n_head_kv", "num_query_groups", "head_count_kv", "num_key_heads", "n_kv"],
)
def test_fewer_heads_of_keys_are_recognized_by_many_names(name):
    assert _similar_name(name) == "num_kv_heads"
    assert _similar_name(f"{name}_dim") != "num_kv_heads"
