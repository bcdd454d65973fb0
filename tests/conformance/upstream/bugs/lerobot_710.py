"""Attention of a vision-language-action policy: the tokens of images and language, and those of states and actions,
go through the weights of two models, and are attended together."""

import torch
from torch import Tensor, nn


def make_att_2d_masks(pad_masks: Tensor, att_masks: Tensor) -> Tensor:
    """Tokens can attend to valid tokens of their own block and of the blocks before it.

    Args:
        pad_masks: bool[B, N], true if the token is part of the input, false if padding.
        att_masks: int[B, N], 1 where a new block begins, one that previous tokens cannot depend on, and 0 where
            the token shares the block of the previous one.
    """
    cumsum = torch.cumsum(att_masks, dim=1)
    att_2d_masks = cumsum[:, None, :] <= cumsum[:, :, None]
    pad_2d_masks = pad_masks[:, None, :] * pad_masks[:, :, None]
    return att_2d_masks & pad_2d_masks


def apply_rope(x: Tensor, positions: Tensor, max_wavelength: float = 10_000) -> Tensor:
    """Applies RoPE positions [B, L] to x [B, L, H, D]."""
    d_half = x.shape[-1] // 2
    exponents = (2.0 / x.shape[-1]) * torch.arange(d_half, dtype=torch.float32, device=x.device)
    radians = positions[..., None].float() / max_wavelength**exponents
    radians = radians[..., None, :]
    sin, cos = torch.sin(radians).to(x.dtype), torch.cos(radians).to(x.dtype)
    x1, x2 = x.split(d_half, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class Projections(nn.Module):
    """The attention weights of one of the two models."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int):
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def qkv(self, x: Tensor) -> list[Tensor]:
        shape = (*x.shape[:-1], -1, self.head_dim)
        return [proj(x).view(shape) for proj in (self.q_proj, self.k_proj, self.v_proj)]


class PaliGemmaWithExpertAttention(nn.Module):
    def __init__(
        self,
        vlm_hidden_size: int = 64,
        expert_hidden_size: int = 32,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 1,
        head_dim: int = 16,
    ):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        heads = (num_attention_heads, num_key_value_heads, head_dim)
        self.paligemma = Projections(vlm_hidden_size, *heads)
        self.gemma_expert = Projections(expert_hidden_size, *heads)

    def forward(
        self,
        prefix_embs: Tensor,
        suffix_embs: Tensor,
        pad_masks: Tensor | None = None,
        att_masks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            prefix_embs: [B, P, vlm_hidden_size], images and language.
            suffix_embs: [B, S, expert_hidden_size], state, noisy actions and time.
            pad_masks: [B, P + S], see make_att_2d_masks. By default all tokens are valid.
            att_masks: [B, P + S], see make_att_2d_masks. By default the suffix is a block after the prefix.
        """
        B, P, S = *prefix_embs.shape[:2], suffix_embs.shape[1]
        if pad_masks is None:
            pad_masks = torch.ones(B, P + S, dtype=torch.bool, device=prefix_embs.device)
        if att_masks is None:
            att_masks = torch.zeros(B, P + S, dtype=torch.int64, device=prefix_embs.device)
            att_masks[:, P] = 1
        attention_mask = make_att_2d_masks(pad_masks, att_masks)
        position_ids = torch.cumsum(pad_masks, dim=1) - 1

        streams = zip(
            self.paligemma.qkv(prefix_embs), self.gemma_expert.qkv(suffix_embs), strict=True
        )
        query_states, key_states, value_states = (torch.cat(pair, dim=1) for pair in streams)
        query_states = apply_rope(query_states, position_ids)
        key_states = apply_rope(key_states, position_ids)

        att_output = self.eager_attention_forward(
            attention_mask, query_states, key_states, value_states
        )
        prefix_out, suffix_out = att_output.split((P, S), dim=1)
        return self.paligemma.o_proj(prefix_out), self.gemma_expert.o_proj(suffix_out)

    def eager_attention_forward(
        self, attention_mask: Tensor, query_states: Tensor, key_states: Tensor, value_states: Tensor
    ) -> Tensor:
        num_key_value_groups = self.num_attention_heads // self.num_key_value_heads
        key_states = key_states.repeat_interleave(num_key_value_groups, dim=2)
        value_states = value_states.repeat_interleave(num_key_value_groups, dim=2)

        att_weights = torch.matmul(query_states.transpose(1, 2), key_states.permute(0, 2, 3, 1))
        att_weights = att_weights * self.head_dim**-0.5
        # before
        big_neg = -2.3819763e38  # See gemma/modules.py
        # after
        big_neg = torch.finfo(att_weights.dtype).min
        # end
        masked_att_weights = att_weights.masked_fill(~attention_mask[:, None, :, :], big_neg)

        probs = nn.functional.softmax(masked_att_weights, dim=-1)
        att_output = torch.matmul(probs, value_states.transpose(1, 2))
        return att_output.transpose(1, 2).flatten(2)
