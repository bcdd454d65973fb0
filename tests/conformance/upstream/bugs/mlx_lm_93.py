"""GPT-2, with a cache of keys and values for generation."""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn


@dataclass
class ModelArgs:
    n_embd: int
    n_head: int
    n_layer: int
    n_positions: int
    vocab_size: int
    layer_norm_epsilon: float = 1e-5


class KVCache:
    """The keys and values of one layer. It grows with every call."""

    def __init__(self):
        self.keys = None
        self.values = None
        self.offset = 0

    def update_and_fetch(self, keys, values):
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        self.offset = keys.shape[2]
        return keys, values


def create_attention_mask(h: torch.Tensor, offset: int = 0) -> Optional[torch.Tensor]:
    """An additive mask of shape (T, offset + T); a single token needs none."""
    T = h.shape[1]
    if T == 1:
        return None
    linds = torch.arange(offset, offset + T, device=h.device)
    rinds = torch.arange(offset + T, device=h.device)
    mask = linds[:, None] < rinds[None]
    return torch.zeros(mask.shape, dtype=h.dtype, device=h.device).masked_fill(mask, float("-inf"))


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        assert args.n_embd % args.n_head == 0, "n_embd must be divisible by n_head"
        self.n_embd = args.n_embd
        self.n_head = args.n_head
        self.scale = (args.n_embd // args.n_head) ** -0.5
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd, bias=True)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd, bias=True)

    def forward(self, x, mask=None, cache=None):
        B, L, _ = x.shape
        queries, keys, values = self.c_attn(x).split(self.n_embd, dim=-1)
        queries = queries.reshape(B, L, self.n_head, -1).transpose(1, 2)
        keys = keys.reshape(B, L, self.n_head, -1).transpose(1, 2)
        values = values.reshape(B, L, self.n_head, -1).transpose(1, 2)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        scores = (queries * self.scale) @ keys.transpose(-1, -2)
        if mask is not None:
            scores = scores + mask
        output = torch.softmax(scores, dim=-1) @ values
        return self.c_proj(output.transpose(1, 2).reshape(B, L, -1))


class MLP(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.c_fc = nn.Linear(args.n_embd, 4 * args.n_embd)
        self.c_proj = nn.Linear(4 * args.n_embd, args.n_embd)

    def forward(self, x):
        return self.c_proj(nn.functional.gelu(self.c_fc(x), approximate="tanh"))


class TransformerBlock(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.attn = Attention(args)
        self.mlp = MLP(args)
        self.ln_1 = nn.LayerNorm(args.n_embd, eps=args.layer_norm_epsilon)
        self.ln_2 = nn.LayerNorm(args.n_embd, eps=args.layer_norm_epsilon)

    def forward(self, x, mask=None, cache=None):
        h = x + self.attn(self.ln_1(x), mask, cache)
        return h + self.mlp(self.ln_2(h))


class Model(nn.Module):
    def __init__(self, n_embd=768, n_head=12, n_layer=12, n_positions=1024, vocab_size=50257):
        super().__init__()
        args = ModelArgs(n_embd, n_head, n_layer, n_positions, vocab_size)
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(n_positions, n_embd)
        self.h = nn.ModuleList([TransformerBlock(args) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd, eps=args.layer_norm_epsilon)

    def make_cache(self) -> list[KVCache]:
        return [KVCache() for _ in self.h]

    def forward(self, inputs: torch.Tensor, cache: Optional[list[Any]] = None) -> torch.Tensor:
        """inputs: (B, L). cache: what make_cache() returned; it is updated. Returns the logits."""
        _, L = inputs.shape
        hidden_states = self.wte(inputs)
        if cache is None:
            cache = [None] * len(self.h)
        offset = 0 if cache[0] is None else cache[0].offset

        mask = create_attention_mask(hidden_states, offset)
        # before
        if hidden_states.shape[1] > 1:
            position_ids = torch.arange(L, device=inputs.device)
            hidden_states = hidden_states + self.wpe(position_ids)
        # after
        position_ids = torch.arange(offset, offset + L, device=inputs.device)
        hidden_states = hidden_states + self.wpe(position_ids)
        # end

        for layer, c in zip(self.h, cache):
            hidden_states = layer(hidden_states, mask, cache=c)
        return self.ln_f(hidden_states) @ self.wte.weight.T
