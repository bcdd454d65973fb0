"""A wrapper of language models that runs several prompts as one batch, padded on the left."""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import nn


@dataclass
class GPT2Config:
    vocab_size: int = 50
    n_positions: int = 32
    n_embd: int = 32
    n_head: int = 4
    n_layer: int = 1


class GPT2Attention(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.num_heads = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, hidden_states, keep):
        query, key, value = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in self.c_attn(hidden_states).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-1, -2) * query.size(-1) ** -0.5
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        context = scores.softmax(dim=-1) @ value
        return self.c_proj(context.transpose(1, 2).flatten(2))


class GPT2Block(nn.Module):
    def __init__(self, config: GPT2Config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = GPT2Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
        )

    def forward(self, hidden_states, keep):
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states), keep)
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class GPT2Model(nn.Module):
    """input_ids and attention_mask: (batch, length). Without position_ids, tokens are counted from the left edge."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList([GPT2Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        length = input_ids.size(1)
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device).unsqueeze(0)
        keep = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()[
            None, None
        ]
        if attention_mask is not None:
            keep = keep & attention_mask.bool()[:, None, None, :]
            # padding sees itself, so that no row is empty
            keep = keep | torch.eye(length, dtype=torch.bool, device=input_ids.device)
        hidden_states = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            hidden_states = block(hidden_states, keep)
        return self.ln_f(hidden_states)


class LanguageModel(nn.Module):
    """Prompts of different lengths are padded on the left, so that the last token is at the same index in all."""

    def __init__(self, config: Optional[GPT2Config] = None):
        super().__init__()
        self._model = GPT2Model(config or GPT2Config())

    def _prepare_input(
        self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> dict[str, Any]:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        # before
        return {"input_ids": input_ids, "attention_mask": attention_mask}
        # after
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
        }
        # end

    def forward(
        self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        return self._model(**self._prepare_input(input_ids, attention_mask))
