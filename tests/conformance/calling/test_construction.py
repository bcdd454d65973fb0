"""A class is built with conventional values for the arguments that its constructor needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from conformance.calling.attentions import Projected, attend
from heedful import check
from heedful.conformance.calling import names
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.conventional import similar_name
from heedful.conformance.calling.declared import declared_number
from heedful.conformance.calling.subject import find_subject
from heedful.errors import ArgumentError
from heedful.textbook import multi_head

if TYPE_CHECKING:
    from collections.abc import Callable


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
        self.flavour = args.flavour.lower()


class OfUnknownNames(Projected):
    """Reads fields that are no sizes: a text that it compares, and a number."""

    def __init__(self, args):
        super().__init__(args.dim)
        if args.flavour not in ("sweet", "sour"):
            raise ValueError(f"unknown flavour {args.flavour}")
        self.sweetness = args.dim * args.sweetness


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


def test_fields_of_unknown_names_get_the_text_that_is_compared_or_a_number():
    subject = find_subject(OfUnknownNames)
    assert subject.module.sweetness > 0  # pyright: ignore
    assert {"flavour", "sweetness"} <= {*subject.target.guessed}


@pytest.mark.parametrize(
    "name",
    ["kv_num_heads", "n_head_kv", "num_query_groups", "head_count_kv", "num_key_heads", "n_kv"],
)
def test_fewer_heads_of_keys_are_recognized_by_many_names(name):
    assert similar_name(name) == "num_kv_heads"
    assert similar_name(f"{name}_dim") != "num_kv_heads"


class Giant(Projected):
    def __init__(self, n_hidden: int = 6144, n_heads: int = 64):
        super().__init__(n_hidden)
        self.n_heads = n_heads


class Tall(Projected):
    """As wide and as deep as the usual vision transformer."""

    def __init__(self, embed_dim: int = 768, depth: int = 12):
        super().__init__(embed_dim)
        self.depth = depth


class Stacked(Projected):
    """As deep as the usual encoder of speech."""

    def __init__(self, encoder_dim: int = 256, num_blocks: int = 12):
        super().__init__(encoder_dim)
        self.num_blocks = num_blocks


class OfPattern(Projected):
    """Takes the tensor of its mask, of which no value is known."""

    def __init__(self, dim: int, pattern: torch.Tensor):
        assert pattern.dtype == torch.bool, "a Boolean pattern is expected"
        super().__init__(dim)


class OfOneSequence(Projected):
    """Has caches for one sequence by default."""

    def __init__(self, dim: int, max_batch: int = 1):
        super().__init__(dim)
        self.register_buffer("cache", torch.zeros(max_batch, 16, dim))


@dataclass
class RotaryConfig:
    hidden_size: int = 768
    rotary_pct: float = 0.25


class PartlyRotated(Projected):
    """Rotates a quarter of the features of a head by default."""

    def __init__(self, config: RotaryConfig):
        assert int(6 * config.rotary_pct) % 2 == 0
        super().__init__(config.hidden_size)


class OfKind(Projected):
    def __init__(self, dim, kind):
        assert kind in {"local", "global"}
        super().__init__(dim)


class Deep(Projected):
    def __init__(self, dim, depth=None):
        assert depth is not None, "`depth` must be passed"
        super().__init__(dim)
        self.depth = depth


def test_large_default_sizes_become_small():
    module = find_subject(Giant).module
    assert module is not None
    assert sum(it.numel() for it in module.parameters()) < 100_000
    assert find_subject(Giant, arguments={"n_hidden": 48}).module.qkv.in_features == 48  # pyright: ignore


def test_many_layers_of_a_usual_width_become_few_and_narrow():
    module = find_subject(Tall).module
    assert (module.qkv.in_features <= 128, module.depth) == (True, 4)  # pyright: ignore
    assert find_subject(Tall, arguments={"depth": 1}).module.qkv.in_features == 768  # pyright: ignore


def test_many_blocks_become_few_and_narrow():
    module = find_subject(Stacked).module
    assert (module.qkv.in_features <= 128, module.num_blocks) == (True, 4)  # pyright: ignore


def test_caches_are_built_for_several_sequences():
    assert len(find_subject(OfOneSequence).module.cache) > 1  # pyright: ignore
    assert len(find_subject(OfOneSequence, arguments={"max_batch": 1}).module.cache) == 1  # pyright: ignore


def test_an_even_number_of_features_is_rotated():
    assert find_subject(PartlyRotated).name == "PartlyRotated"


def test_a_tensor_of_a_constructor_is_asked_for():
    with pytest.raises(ArgumentError, match="a Boolean pattern is expected"):
        find_subject(OfPattern)


def test_a_text_is_one_that_the_constructor_compares_with():
    assert find_subject(OfKind).name == "OfKind"


def test_an_argument_that_a_message_names_is_given():
    assert find_subject(Deep).module.depth == 2  # pyright: ignore


class PartlyRotary(Projected):
    """Rotates half of the features, which must be an even number, and warns by no assert."""

    def __init__(self, d_model, heads):
        super().__init__(d_model)
        self.heads, self.d = heads, d_model // heads // 2

    def forward(self, x):
        q, k, v = self.split(x)
        angles = torch.arange(x.shape[1])[:, None] * torch.cat([torch.ones((self.d + 1) // 2)] * 2)
        q, k = (
            self.turned(it.unflatten(-1, (self.heads, -1)).transpose(1, 2), angles) for it in (q, k)
        )
        v = v.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return attend(q, k, v).transpose(1, 2).flatten(2)

    def turned(self, x, angles):
        part, rest = x[..., : self.d], x[..., self.d :]
        half = torch.cat([-part[..., self.d // 2 :], part[..., : self.d // 2]], dim=-1)
        return torch.cat([part * angles.cos() + half * angles.sin(), rest], dim=-1)


def test_a_width_of_ours_that_does_not_fit_is_no_bug():
    report = check(PartlyRotary)
    assert [bug.proof for bug in report.bugs] == []


class Passing(Projected):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_arguments_that_a_constructor_only_passes_on_are_those_of_the_inherited_one():
    assert find_subject(Passing).name == "Passing"


class Options:
    """A configuration that is no dataclass and requires all of its values."""

    def __init__(self, d_model: int, reach: float):
        if reach <= 0:
            raise ValueError("reach must be positive")
        self.d_model, self.reach = d_model, reach


class OfOptions(Projected):
    def __init__(self, config: Options):
        super().__init__(config.d_model)


def test_a_configuration_of_any_class_gets_what_it_requires():
    assert isinstance(instantiate(OfOptions, {}), OfOptions)
    with pytest.raises(ArgumentError, match=r"Options: .*received ValueError: reach must be pos"):
        instantiate(OfOptions, {"reach": 0.0})


class OfDevice(Projected):
    """Puts its parameters on a device and in a dtype that its caller names, and scores a fixed number of steps."""

    def __init__(self, device, dtype, dim, num_timesteps):
        super().__init__(dim)
        self.places = nn.Parameter(torch.zeros(num_timesteps, dtype=dtype).to(device))

    def forward(self, x):
        q, k, v = self.split(x)
        return attend(q, k, v) + self.places[:, None]


def test_a_constructor_gets_a_device_a_dtype_and_a_whole_number_of_steps():
    assert find_subject(OfDevice).fixed_sizes == (3, 16)


class Settings:
    """Takes its width, and a radius that nothing is known of."""

    def __init__(self, dim: int, radius):
        self.dim, self.radius = dim, radius


class OfTwoConfigurations(Projected):
    """Takes configurations beside something whose annotation exists for type checkers alone."""

    def __init__(self, model_config: Config, config: Settings, made: Callable | None = None):
        super().__init__(model_config.n_embd)
        self.radius, self.made = config.radius, made


class OfGottenFields(Projected):
    def __init__(self, train_args):
        super().__init__(train_args.get("token_width"))


class OfParts(Projected):
    def __init__(self, config_master, config_model):
        super().__init__(config_model.token_width)
        self.device = config_master.config_general.device


@pytest.mark.parametrize("target", [OfTwoConfigurations, OfGottenFields, OfParts])
def test_a_configuration_is_told_by_its_annotation_or_by_its_name(target):
    assert find_subject(target).module.qkv.in_features == 24  # pyright: ignore


class HandsOn(nn.MultiheadAttention):
    """Takes whatever the constructor of PyTorch's layer takes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_stars_of_a_constructor_are_no_configuration():
    arguments = {"embed_dim": 32, "num_heads": 4, "batch_first": True}
    assert instantiate(HandsOn, arguments).batch_first is True
    assert find_subject(HandsOn, arguments=arguments).layout == "(B, T, C)"


class OfSections(Projected):
    def __init__(self, config):
        super().__init__(config.model["token_width"])
        self.dropout = nn.Dropout(config.model.attention_dropout_rate)


class OfParts(nn.Module):
    """Hands its configuration on to a part, which reads a field of a telling name."""

    def __init__(self, config):
        super().__init__()
        self.part = OfRates(config)

    def forward(self, x):
        return self.part(x)


class OfRates(Projected):
    def __init__(self, config):
        super().__init__(config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)


def test_a_configuration_has_sections_and_fields_of_telling_names():
    assert find_subject(OfSections).module.dropout.p <= 1  # pyright: ignore
    assert find_subject(OfParts).module.part.dropout.p == 0.25  # pyright: ignore


class KeepsItsConfiguration(Projected):
    def __init__(self, config):
        super().__init__(config.hidden_size)
        self.config = config


def test_a_window_that_nothing_reads_is_not_declared():
    module = find_subject(KeepsItsConfiguration).module
    assert declared_number(module, names.WINDOWS) is None
    assert declared_number(module, names.WIDTHS) == 24


class Masked(nn.Module):
    """Has a mask for all positions that it may ever see, and a table with a row for each."""

    def __init__(self, dim, context_length=4096, max_len=5000):
        super().__init__()
        self.register_buffer("mask", torch.ones(context_length, context_length, dtype=torch.bool))
        self.register_buffer("table", torch.zeros(max_len, dim))


def test_a_mask_for_thousands_of_tokens_becomes_small():
    built = instantiate(Masked, {})
    assert built.mask.shape == (128, 128)
    assert len(built.table) == 5000  # which is no square
    assert len(instantiate(Masked, {"context_length": 4096}).mask) == 4096


class OfLayers(Projected):
    """Makes its norm by calling what it is given, looks up its activation, and keeps two ready-made layers."""

    def __init__(self, d_model, norm_layer, act, attn_dropout, out_proj):
        super().__init__(d_model)
        self.norm, self.act = norm_layer(d_model), ACTIVATIONS[act]()
        self.attn_dropout, self.out_proj = attn_dropout, out_proj

    def forward(self, x):
        q, k, v = self.split(self.norm(x))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.out_proj(self.act(self.attn_dropout(weights) @ v))


ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


def test_layers_are_made_kept_and_looked_up():
    module = instantiate(OfLayers, {})
    kinds = nn.LayerNorm, nn.ReLU, nn.Dropout, nn.Linear
    layers = module.norm, module.act, module.attn_dropout, module.out_proj
    assert tuple(map(type, layers)) == kinds
    assert not check(OfLayers).bugs


class OfThreeGroups(nn.Module):
    """Cuts its heads into three groups, whose keys are shifted by other numbers of tokens."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        q, k, v = (
            it(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for it in (self.query, self.key, self.value)
        )
        k = torch.cat([k[:, 0:3], k[:, 3:5].roll(1, 2), k[:, 3:5].roll(2, 2)], 1)
        v = torch.cat([v[:, 0:3], v[:, 3:5].roll(1, 2), v[:, 5:7].roll(2, 2)], 1)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


def test_there_are_as_many_heads_as_the_code_cuts_into_groups():
    assert instantiate(OfThreeGroups, {}).num_heads == 7
    (bug,) = check(OfThreeGroups).bugs
    assert bug.name == "projection-unused"
    assert bug.place is not None
    assert "k[:, 3:5].roll(2, 2)" in bug.place.source


def test_a_text_is_chosen_by_the_attribute_that_a_parameter_is_kept_as(tmp_path):
    class Scored(nn.Module):
        def __init__(self, kind, width=8):
            super().__init__()
            self.method = kind
            if self.method == "none":
                self.score = None
            elif self.method == "local":
                raise ValueError("needs a length")
            elif self.method == "general":
                self.score = nn.Linear(width, width)

    assert (
        instantiate(Scored, {}).method == "general"
    )  # "local" cannot be built, and "none" comes last


def test_a_configuration_without_an_annotation_is_the_one_of_its_file_with_all_fields_read():
    assert instantiate(OfSettings, {}).thing == 9


@dataclass
class SettingsBeside:
    d_model: int = 8
    odd_thing: int = 9


@dataclass
class OtherSettings:
    d_model: int = 8


class OfSettings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.thing, self.width = config.odd_thing, config.d_model


def test_an_embedding_that_is_asked_for_its_id_of_padding_has_one():
    class Decoder(nn.Module):
        def __init__(self, embed_tokens: nn.Embedding):
            super().__init__()
            self.embed_tokens = embed_tokens
            self.padding = embed_tokens.padding_idx

    assert instantiate(Decoder, {}).padding == 0
