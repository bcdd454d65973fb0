"""A target holds a copy of a module, and refuses what cannot be copied or called."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from conformance.calling.attentions import Projected, Rotary, Weighted
from heedful.conformance.calling.subject import find_subject
from heedful.conformance.calling.target import make_target
from heedful.errors import ArgumentError


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (Projected(4).forward, {}),
        (functools.partial(Projected(4)), {}),
        (Projected(4), {"d_model": 8}),
        (3, {}),
        (lambda: None, {}),
    ],
    ids=["method", "partial", "instance", "number", "no argument"],
)
def test_targets_that_cannot_be_copied_or_called_are_refused(target, arguments):
    with pytest.raises(ArgumentError):
        find_subject(target, arguments=arguments)


def test_a_compiled_module_is_unwrapped():
    assert find_subject(torch.compile(Projected(4))).name == "Projected"


def test_zero_projections_are_randomized_and_norms_are_not():
    module = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True)
    nn.init.zeros_(module.self_attn.out_proj.weight)
    copy = find_subject(module).module
    assert isinstance(copy, nn.TransformerEncoderLayer)
    assert copy.self_attn.out_proj.weight.all()
    assert (copy.norm1.weight == 1).all()
    assert not module.self_attn.out_proj.weight.any()


def test_complex_tables_stay_complex():
    module = find_subject(Rotary).module
    assert module is not None
    assert module.get_buffer("rotations").is_complex()


def test_a_module_that_stores_its_last_result_can_be_copied():
    module = Weighted(24)
    module(torch.randn(2, 5, 24))
    assert find_subject(module).run(find_subject(module).draw(2, 4)).shape == (2, 4, 24)


def test_weights_that_are_as_good_as_zero_are_randomized():
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    nn.init.normal_(module[0].weight, std=1e-10)
    nn.init.zeros_(module[1].weight)
    copy = make_target(module).module
    assert copy is not None
    assert copy[0].weight.abs().max() > 0.01
    assert copy[1].weight.all()


def test_frozen_weights_that_were_never_initialized_are_filled():
    module = Projected(4)
    for parameter in module.parameters():
        parameter.requires_grad = False
        parameter.fill_(torch.nan)
    held = make_target(module).module
    assert held is not None
    assert all(bool(it.isfinite().all()) for it in held.parameters())
    module.requires_grad_(True)  # these are weights that training would leave as they are
    held = make_target(module).module
    assert held is not None
    assert any(bool(it.isnan().any()) for it in held.parameters())
