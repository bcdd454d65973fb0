"""A bridge that runs a language model with learned positions and offers its inner activations."""

from typing import Optional

import torch
from torch import Tensor, nn


def get_offset_position_ids(past_kv_pos_offset: int, attention_mask: Tensor) -> Tensor:
    """The position of each token that is attended to, counted from the first one. Padding gets 0."""
    shifted_position_ids = attention_mask.long().cumsum(dim=1) - 1
    position_ids = shifted_position_ids.masked_fill(shifted_position_ids < 0, 0)
    return position_ids[:, past_kv_pos_offset:]


class AttentionBridge(nn.Module):
    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        pos = x.shape[1]
        q, k, v = (
            t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for t in self.c_attn(x).chunk(3, dim=-1)
        )
        attn_scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        allowed = torch.ones(pos, pos, dtype=torch.bool, device=x.device).tril()
        if attention_mask is not None:
            allowed = allowed & (attention_mask[:, None, None, :] != 0)
        attn_scores = attn_scores.masked_fill(~allowed, torch.finfo(attn_scores.dtype).min)
        pattern = attn_scores.softmax(dim=-1)
        return self.c_proj((pattern @ v).transpose(1, 2).flatten(2))


class BlockBridge(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_mlp: int):
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.attn = AttentionBridge(d_model, n_heads)
        self.ln2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(nn.Linear(d_model, d_mlp), nn.GELU(), nn.Linear(d_mlp, d_model))

    def forward(self, x: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        x = x + self.attn(self.ln1(x), attention_mask)
        return x + self.mlp(self.ln2(x))


class TransformerBridge(nn.Module):
    """
    d_vocab, n_ctx: number of tokens and of positions
    d_model, n_heads, d_mlp, n_layers: sizes of the blocks
    """

    def __init__(
        self,
        d_vocab: int = 40,
        n_ctx: int = 32,
        d_model: int = 32,
        n_heads: int = 4,
        d_mlp: int = 64,
        n_layers: int = 1,
    ):
        super().__init__()
        self.embed = nn.Embedding(d_vocab, d_model)
        self.pos_embed = nn.Embedding(n_ctx, d_model)
        self.blocks = nn.ModuleList([BlockBridge(d_model, n_heads, d_mlp) for _ in range(n_layers)])
        self.ln_final = nn.LayerNorm(d_model)
        self.unembed = nn.Linear(d_model, d_vocab, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Optional[Tensor] = None,
        position_ids: Optional[Tensor] = None,
        return_type: str = "logits",
    ) -> Tensor:
        """
        input_ids: (batch, pos). attention_mask: (batch, pos), 0 at padding, which may be left or right.
        """
        if position_ids is None:
            # before
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
            # after
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
            if attention_mask is not None:
                position_ids = get_offset_position_ids(0, attention_mask)
            # end
        residual = self.embed(input_ids) + self.pos_embed(position_ids)
        for block in self.blocks:
            residual = block(residual, attention_mask)
        residual = self.ln_final(residual)
        return residual if return_type == "residual" else self.unembed(residual)
