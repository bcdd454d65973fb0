"""Examples whose tokens lie within lists, dictionaries and objects, and tokens of several ids."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.calling.attentions import Projected, attend
from heedful import check
from heedful.conformance import Report
from heedful.conformance.calling.subject import find_subject

KEEP = torch.arange(5) < torch.tensor([[5], [3]])


@dataclass
class Batch:
    words: Tensor
    mask: Tensor
    language: str = "en"


class OfDictionary(Projected):
    def forward(self, batch: dict[str, Any]):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(batch["words"])
        return {"out": attend(q, k, v, ~batch["mask"][:, None])}


class OfObject(Projected):
    def forward(self, batch: Any):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(batch.words)
        return Batch(attend(q, k, v, ~batch.mask[:, None]), batch.mask)


class OfList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, tensors: list[Tensor]):
        return attend(*(part(it) for part, it in zip(self.parts, tensors, strict=True)))


class OfAnything(Projected):
    def forward(self, *inputs: Tensor, **options: Any):
        q, k, v = self.split(*inputs)
        return attend(q, k, v, options.get("hidden"))


class Fields(nn.Module):
    """Tokens with three ids each, which attend to each other within their sequence."""

    tokens_first = False

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(20, 8), nn.Linear(24, 72)

    def forward(self, ids: Tensor):
        x = self.embed(ids).flatten(2)
        x = x.transpose(0, 1) if self.tokens_first else x
        out = attend(*self.qkv(x).chunk(3, dim=-1))
        return out.transpose(0, 1) if self.tokens_first else out


class MixedFields(Fields):
    tokens_first = True


WORDS = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (OfDictionary, ({"words": WORDS, "mask": KEEP},)),
        (OfObject, (Batch(WORDS, KEEP),)),
        (OfObject, (SimpleNamespace(words=WORDS, mask=KEEP, size=3),)),
        (OfList, ([WORDS, WORDS + 1, WORDS * 2],)),
        (OfAnything, (WORDS,)),
        (Fields, (torch.randint(0, 20, (2, 5, 3)),)),
    ],
    ids=["dictionary", "dataclass", "namespace", "list", "star", "several ids"],
)
def test_tokens_within_arguments_are_found_and_vary(module, example):
    torch.manual_seed(0)
    target = module(24) if issubclass(module, Projected) else module()
    subject = find_subject(target, example=example)
    assert subject.run(subject.draw(3, 4)).shape[:2] == (3, 4)
    report = check(target, example=example)
    assert report.ok, report


@pytest.mark.parametrize("example", [{"words": WORDS, "mask": KEEP}, Batch(WORDS, KEEP)])
def test_a_mask_within_an_argument_is_found(example):
    module = OfDictionary(24) if isinstance(example, dict) else OfObject(24)
    padding = find_subject(module, example=(example,)).padding
    assert padding is not None
    assert padding.name in ("batch['mask']", "batch.mask")
    assert (padding.form, padding.true_keeps, padding.hides) == ("(B, T)", True, True)


def test_tokens_of_several_ids_that_mix_sequences_are_a_bug():
    torch.manual_seed(0)
    report: Report = check(MixedFields(), example=(torch.randint(0, 20, (2, 5, 3)),))
    assert [bug.name for bug in report.bugs] == ["batch-mixed"]


class Drawn(Projected):
    """Has a random table that each call moves, but that is never saved."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.table = torch.randn(12, d_model)

    def forward(self, x: Tensor):
        q, k, v = self.split(x + self.table[: x.shape[1]].to(x))
        return attend(q, k, v)


class Saved(Drawn):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        del self.table
        self.register_buffer("table", torch.randn(12, d_model))


def test_a_random_table_that_is_not_saved_is_a_bug():
    (bug,) = check(Drawn).bugs
    assert bug.name == "table-not-a-buffer"
    assert bug.place is not None
    assert bug.place.source == "self.table = torch.randn(12, d_model)"
    assert not check(Saved).bugs
