"""Attentions whose arguments hold several values: dictionaries, lists, tuples and objects of any names."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class DictBatch(nn.Module):
    def __init__(self, d_model=32, heads=4):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, batch):
        x, mask = batch["src"], batch["mask"]
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-2, -1) / (C // self.h) ** 0.5
        s = s.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        return self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class ListBatch(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, tensors: list):
        query, key, value = tensors
        q, k, v = self.q(query), self.k(key), self.v(value)
        return (q @ k.transpose(1, 2) / q.size(-1) ** 0.5).softmax(-1) @ v


@dataclass
class Batch:
    src: Tensor
    src_mask: Tensor
    n: int = 0


class OfBatch(nn.Module):
    def __init__(self, vocab=30, dim=32, heads=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, batch: Batch):
        x = self.emb(batch.src)
        y, _ = self.attn(x, x, x, key_padding_mask=~batch.src_mask)
        return y


class OfDictIds(nn.Module):
    def __init__(self, vocab_size=30, hidden=24):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, hidden)
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask")
        x = self.tok(ids)
        s = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        if mask is not None:
            s = s + (1.0 - mask[:, None].to(s.dtype)) * -1e9
        return {"hidden": torch.softmax(s, -1) @ self.v(x)}


class OfList(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.a, self.b = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, inputs: list[Tensor]):
        q = self.a(inputs[0])
        k = self.b(inputs[1])
        m = inputs[2]
        s = torch.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5
        s = s.masked_fill(m[:, None] == 0, -1e9)
        return self.o(torch.softmax(s, -1) @ inputs[1])


class OfTuple(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, inputs):
        x, mask = inputs
        q, k, v = self.qkv(x).chunk(3, -1)
        s = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            s = s.masked_fill(~mask[:, None], -1e9)
        return s.softmax(-1) @ v, mask


class OfStrangers(nn.Module):
    """Needs an object that nobody can guess, beside what it takes apart."""

    def __init__(self, dim=24):
        super().__init__()
        self.q = nn.Linear(dim, dim)

    def forward(self, batch, pair, plan):
        query, key = pair
        return plan.route(self.q(batch["src"]), query @ key)
