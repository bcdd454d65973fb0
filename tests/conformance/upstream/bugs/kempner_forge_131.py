"""Joint decoder for video and text: the visual tokens of all frames are a prefix of the text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class ModalityContext:
    """What the transformer is told about inputs that are not text.

    Attributes:
        prefix_embeds: (batch, num_prefix, dim), embeddings placed before the text.
        key_padding_mask: (batch, seq_len), True for tokens that may be attended to, over prefix and text.
    """

    prefix_embeds: torch.Tensor | None = None
    key_padding_mask: torch.Tensor | None = None


def apply_rope(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate (batch, heads, seq, head_dim) by the positions; halves are paired."""
    half = x.shape[-1] // 2
    freqs = theta ** -(torch.arange(half, device=x.device).float() / half)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device).float(), freqs)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class Attention(nn.Module):
    """Grouped-query causal self-attention."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, rope_theta: float) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.rope_theta = rope_theta
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(
        self, x: torch.Tensor, key_padding_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        batch, seq_len, _ = x.shape
        q = self.q_proj(x).view(batch, seq_len, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, seq_len, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, seq_len, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q, k = apply_rope(q, self.rope_theta), apply_rope(k, self.rope_theta)
        groups = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

        if key_padding_mask is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=x.device).tril()
            attn_mask = causal & key_padding_mask[:, None, None, :]
            # A row that may see no key at all sees every earlier one, so that the softmax stays finite.
            attn_mask = torch.where(attn_mask.any(dim=-1, keepdim=True), attn_mask, causal)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, seq_len, -1))


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, ffn_dim: int, theta: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = Attention(dim, n_heads, n_kv_heads, theta)
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-5)
        self.gate_proj = nn.Linear(dim, ffn_dim, bias=False)
        self.up_proj = nn.Linear(dim, ffn_dim, bias=False)
        self.down_proj = nn.Linear(ffn_dim, dim, bias=False)

    def forward(self, x: torch.Tensor, key_padding_mask: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), key_padding_mask)
        y = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Transformer(nn.Module):
    def __init__(
        self, vocab_size: int, dim: int, n_layers: int, n_heads: int, n_kv_heads: int, ffn_dim: int
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(
            TransformerBlock(dim, n_heads, n_kv_heads, ffn_dim, 10000.0) for _ in range(n_layers)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor, modality: ModalityContext) -> torch.Tensor:
        h = self.token_embedding(tokens)
        if modality.prefix_embeds is not None:
            h = torch.cat([modality.prefix_embeds, h], dim=1)
        for layer in self.layers:
            h = layer(h, modality.key_padding_mask)
        return self.output_head(self.norm(h[:, -tokens.shape[1] :]))


def _visual_token_mask(frame_mask: torch.Tensor, tokens_per_frame: int) -> torch.Tensor:
    """Expand (batch, frames) to (batch, frames * tokens_per_frame)."""
    return frame_mask.bool().repeat_interleave(tokens_per_frame, dim=1)


class VideoVLMWrapper(nn.Module):
    """Vision encoder, adapter and transformer.

    Args:
        vocab_size: Number of text tokens.
        dim: Width of the transformer.
        vision_dim: Width of the vision encoder.
        patch_size: Side of a patch of a frame, in pixels.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int = 32,
        n_layers: int = 2,
        n_heads: int = 4,
        n_kv_heads: int = 2,
        ffn_dim: int = 48,
        vision_dim: int = 24,
        patch_size: int = 4,
    ) -> None:
        super().__init__()
        self.vision_encoder = nn.Conv2d(3, vision_dim, patch_size, stride=patch_size)
        self.adapter = nn.Sequential(nn.Linear(vision_dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.transformer = Transformer(vocab_size, dim, n_layers, n_heads, n_kv_heads, ffn_dim)

    def forward(
        self,
        pixel_values: torch.Tensor,
        input_ids: torch.Tensor,
        frame_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits of the text, (batch, text_len, vocab_size).

        Args:
            pixel_values: (batch, frames, 3, height, width). Short clips are padded with blank frames.
            input_ids: (batch, text_len).
            frame_mask: (batch, frames), True for real frames and False for padding.
        """
        batch, frames = pixel_values.shape[:2]
        features = self.vision_encoder(pixel_values.flatten(0, 1)).flatten(2).transpose(1, 2)
        tokens_per_frame = features.shape[1]
        prefix = self.adapter(features).reshape(batch, frames * tokens_per_frame, -1)

        # before
        modality = ModalityContext(prefix_embeds=prefix)
        # after
        key_padding_mask = None
        if frame_mask is not None:
            visual = _visual_token_mask(frame_mask, tokens_per_frame)
            text = torch.ones_like(input_ids, dtype=torch.bool)
            key_padding_mask = torch.cat([visual, text], dim=1)
        modality = ModalityContext(prefix_embeds=prefix, key_padding_mask=key_padding_mask)
        # end
        return self.transformer(input_ids, modality)
