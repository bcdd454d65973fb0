"""Latent attention: all heads attend to one latent for each token, which is key and value."""

from __future__ import annotations

import pytest
from edited_attention import CORRECT, edited

from heedful import check
from heedful.conformance.calling.loading import loaded

LATENT = """
import torch
from torch import nn

class LatentAttention(nn.Module):
    def __init__(self, d_model=32, n_heads=4, nope=6, rope=4, rank=12, v_dim=5):
        super().__init__()
        self.n_heads, self.nope, self.rope, self.rank = n_heads, nope, rope, rank
        self.scale = (nope + rope) ** -0.5
        self.wq = nn.Linear(d_model, n_heads * (nope + rope), bias=False)
        self.down = nn.Linear(d_model, rank + rope, bias=False)
        self.up_keys = nn.Parameter(torch.randn(n_heads, nope, rank) / rank**0.5)
        self.up_context = nn.Parameter(torch.randn(n_heads, rank, v_dim) / rank**0.5)
        self.wo = nn.Linear(n_heads * v_dim, d_model, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.n_heads, -1)
        q_nope, q_rope = q.split([self.nope, self.rope], dim=-1)
        q_latent = torch.einsum("bthd,hdr->bthr", q_nope, self.up_keys)
        q = torch.cat([q_latent, q_rope], dim=-1).transpose(1, 2)
        key = self.down(x)[:, None]
        scores = q @ key.mT * self.scale
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        latents = weights @ key[..., : self.rank]
        context = torch.einsum("bhtr,hrv->bthv", latents, self.up_context)
        return self.wo(context.flatten(2))
"""


def found(tmp_path, source):
    path = tmp_path / "latent_attention.py"
    path.write_text(source)
    with loaded(f"{path}:LatentAttention") as target:
        report = check(target, causal=True)
    return [(it.name, it.place.source if it.place else "") for it in report.bugs]


def test_the_latents_are_keys_and_values_and_the_scale_is_that_of_the_keys_they_stand_for(tmp_path):
    assert found(tmp_path, LATENT) == []


def test_the_size_of_the_latents_is_a_wrong_scale(tmp_path):
    line = "self.scale = (rank + rope) ** (-0.5)"
    wrong = LATENT.replace("self.scale = (nope + rope) ** -0.5", line)
    assert found(tmp_path, wrong) == [("scale-wrong", line)]


@pytest.mark.parametrize("unread", ["", "        self.last = value\n"])
def test_keys_in_place_of_values_that_the_code_has_are_named(tmp_path, unread):
    """That nothing reads the values is no condition: they may be returned for a cache."""
    line = "context = weights @ value"
    source = CORRECT.replace(line, "context = weights @ key")
    source = source.replace("        scores = query @", f"{unread}        scores = query @")
    with edited(tmp_path, source=source) as attention:
        bugs = check(attention, causal=True).bugs
    assert ("keys-values-swapped", "context = weights @ key") in [
        (it.name, it.place and it.place.source) for it in bugs
    ]
