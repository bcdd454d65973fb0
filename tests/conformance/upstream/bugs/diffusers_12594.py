"""The transformer of Wan for video latents, with rotary embeddings over frames, rows and columns."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def get_1d_rotary_pos_embed(dim: int, pos: int, theta: float = 10000.0):
    """Tables (pos, dim) of cos and sin, each value twice in a row."""
    freqs = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    freqs = torch.outer(torch.arange(pos, dtype=torch.float64), freqs)
    return (
        freqs.cos().repeat_interleave(2, dim=1).float(),
        freqs.sin().repeat_interleave(2, dim=1).float(),
    )


class WanRotaryPosEmbed(nn.Module):
    def __init__(
        self,
        attention_head_dim: int,
        patch_size: tuple[int, int, int],
        max_seq_len: int,
        theta: float = 10000.0,
    ):
        super().__init__()
        self.attention_head_dim = attention_head_dim
        self.patch_size = patch_size
        self.max_seq_len = max_seq_len

        h_dim = w_dim = 2 * (attention_head_dim // 6)
        t_dim = attention_head_dim - h_dim - w_dim
        self.t_dim, self.h_dim, self.w_dim = t_dim, h_dim, w_dim

        freqs_cos, freqs_sin = [], []
        for dim in [t_dim, h_dim, w_dim]:
            freq_cos, freq_sin = get_1d_rotary_pos_embed(dim, max_seq_len, theta)
            freqs_cos.append(freq_cos)
            freqs_sin.append(freq_sin)
        self.register_buffer("freqs_cos", torch.cat(freqs_cos, dim=1), persistent=False)
        self.register_buffer("freqs_sin", torch.cat(freqs_sin, dim=1), persistent=False)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, _, num_frames, height, width = hidden_states.shape
        p_t, p_h, p_w = self.patch_size
        ppf, pph, ppw = num_frames // p_t, height // p_h, width // p_w

        # before
        split_sizes = [
            self.attention_head_dim - 2 * (self.attention_head_dim // 3),
            self.attention_head_dim // 3,
            self.attention_head_dim // 3,
        ]
        # after
        split_sizes = [self.t_dim, self.h_dim, self.w_dim]
        # end

        def over_grid(table):
            f, h, w = table.split(split_sizes, dim=1)
            f = f[:ppf].view(ppf, 1, 1, -1).expand(ppf, pph, ppw, -1)
            h = h[:pph].view(1, pph, 1, -1).expand(ppf, pph, ppw, -1)
            w = w[:ppw].view(1, 1, ppw, -1).expand(ppf, pph, ppw, -1)
            return torch.cat([f, h, w], dim=-1).reshape(1, ppf * pph * ppw, 1, -1)

        return over_grid(self.freqs_cos), over_grid(self.freqs_sin)


class WanAttention(nn.Module):
    """Self-attention if no `encoder_hidden_states` are given, and cross-attention otherwise."""

    def __init__(self, dim: int, heads: int = 8, dim_head: int = 64, eps: float = 1e-6):
        super().__init__()
        self.inner_dim = dim_head * heads
        self.heads = heads
        self.to_q = nn.Linear(dim, self.inner_dim)
        self.to_k = nn.Linear(dim, self.inner_dim)
        self.to_v = nn.Linear(dim, self.inner_dim)
        self.to_out = nn.ModuleList([nn.Linear(self.inner_dim, dim), nn.Dropout(0.0)])
        self.norm_q = nn.RMSNorm(self.inner_dim, eps=eps)
        self.norm_k = nn.RMSNorm(self.inner_dim, eps=eps)

    @staticmethod
    def apply_rotary_emb(hidden_states, freqs_cos, freqs_sin):
        x1, x2 = hidden_states.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = freqs_cos[..., 0::2], freqs_sin[..., 1::2]
        out = torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)
        return out.flatten(-2).type_as(hidden_states)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
        rotary_emb: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
    ) -> torch.Tensor:
        if encoder_hidden_states is None:
            encoder_hidden_states = hidden_states
        query = self.norm_q(self.to_q(hidden_states)).unflatten(2, (self.heads, -1))
        key = self.norm_k(self.to_k(encoder_hidden_states)).unflatten(2, (self.heads, -1))
        value = self.to_v(encoder_hidden_states).unflatten(2, (self.heads, -1))

        if rotary_emb is not None:
            query = self.apply_rotary_emb(query, *rotary_emb)
            key = self.apply_rotary_emb(key, *rotary_emb)

        hidden_states = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=attention_mask,
        )
        hidden_states = hidden_states.transpose(1, 2).flatten(2, 3)
        return self.to_out[1](self.to_out[0](hidden_states))


class WanTransformerBlock(nn.Module):
    def __init__(self, dim: int, ffn_dim: int, num_heads: int, eps: float = 1e-6):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps, elementwise_affine=False)
        self.attn1 = WanAttention(dim, num_heads, dim // num_heads, eps)
        self.norm2 = nn.LayerNorm(dim, eps)
        self.attn2 = WanAttention(dim, num_heads, dim // num_heads, eps)
        self.norm3 = nn.LayerNorm(dim, eps, elementwise_affine=False)
        self.ffn = nn.Sequential(
            nn.Linear(dim, ffn_dim), nn.GELU(approximate="tanh"), nn.Linear(ffn_dim, dim)
        )

    def forward(self, hidden_states, encoder_hidden_states, rotary_emb):
        hidden_states = hidden_states + self.attn1(self.norm1(hidden_states), rotary_emb=rotary_emb)
        hidden_states = hidden_states + self.attn2(self.norm2(hidden_states), encoder_hidden_states)
        return hidden_states + self.ffn(self.norm3(hidden_states))


class WanTransformer3DModel(nn.Module):
    r"""
    A Transformer model for video-like data.

    Args:
        patch_size (`tuple[int]`, defaults to `(1, 2, 2)`): 3D patch dimensions (t_patch, h_patch, w_patch).
        num_attention_heads (`int`, defaults to `40`)
        attention_head_dim (`int`, defaults to `128`)
        in_channels (`int`, defaults to `16`)
        text_dim (`int`, defaults to `4096`): Width of the text embeddings.
    """

    def __init__(
        self,
        patch_size: tuple[int, int, int] = (1, 2, 2),
        num_attention_heads: int = 40,
        attention_head_dim: int = 128,
        in_channels: int = 16,
        text_dim: int = 4096,
        ffn_dim: int = 13824,
        num_layers: int = 40,
        rope_max_seq_len: int = 1024,
    ):
        super().__init__()
        inner_dim = num_attention_heads * attention_head_dim
        self.patch_size = patch_size
        self.rope = WanRotaryPosEmbed(attention_head_dim, patch_size, rope_max_seq_len)
        self.patch_embedding = nn.Conv3d(
            in_channels, inner_dim, kernel_size=patch_size, stride=patch_size
        )
        self.text_embedder = nn.Linear(text_dim, inner_dim)
        self.blocks = nn.ModuleList(
            [
                WanTransformerBlock(inner_dim, ffn_dim, num_attention_heads)
                for _ in range(num_layers)
            ]
        )
        self.norm_out = nn.LayerNorm(inner_dim, eps=1e-6)
        p_t, p_h, p_w = patch_size
        self.proj_out = nn.Linear(inner_dim, in_channels * p_t * p_h * p_w)

    def forward(
        self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> torch.Tensor:
        batch_size, _, num_frames, height, width = hidden_states.shape
        p_t, p_h, p_w = self.patch_size

        rotary_emb = self.rope(hidden_states)
        hidden_states = self.patch_embedding(hidden_states).flatten(2).transpose(1, 2)
        encoder_hidden_states = self.text_embedder(encoder_hidden_states)
        for block in self.blocks:
            hidden_states = block(hidden_states, encoder_hidden_states, rotary_emb)

        hidden_states = self.proj_out(self.norm_out(hidden_states))
        hidden_states = hidden_states.reshape(
            batch_size, num_frames // p_t, height // p_h, width // p_w, p_t, p_h, p_w, -1
        )
        hidden_states = hidden_states.permute(0, 7, 1, 4, 2, 5, 3, 6)
        return hidden_states.flatten(6, 7).flatten(4, 5).flatten(2, 3)
