"""Video encoder of a robot policy: a vision transformer with space-time separable attention.

The current frame is the last one. Attention over time uses the projections of a layer's own attention over patches, so
that the weights of an image encoder can be loaded as they are.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _build_temporal_sinusoidal_pe(num_frames: int, embed_dim: int) -> Tensor:
    """Fixed positions of the frames, ``(T, embed_dim)``. The row of the current frame is zero."""
    if embed_dim % 2 != 0:
        raise ValueError(f"embed_dim ({embed_dim}) must be divisible by 2")
    time = torch.arange(num_frames, dtype=torch.float64) - (num_frames - 1)
    period = torch.logspace(math.log10(4.0), math.log10(40.0), embed_dim // 2, dtype=torch.float64)
    phase = time[:, None] * 2 * math.pi / period
    pe = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1)
    return (pe - pe[-1:]).float()


class SiglipAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states: Tensor, is_causal: bool = False) -> Tensor:
        b, s, d = hidden_states.shape
        q, k, v = (
            proj(hidden_states).view(b, s, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.out_proj(out.transpose(1, 2).reshape(b, s, d))


class SpaceTimeEncoderLayer(nn.Module):
    """Attention over time for each patch (causal), then attention over the patches, then an MLP."""

    def __init__(self, embed_dim: int, num_heads: int, num_frames: int):
        super().__init__()
        self.num_frames = num_frames
        self.self_attn = SiglipAttention(embed_dim, num_heads)
        self.layer_norm1 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.layer_norm2 = nn.LayerNorm(embed_dim, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, 2 * embed_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(2 * embed_dim, embed_dim),
        )
        pe = _build_temporal_sinusoidal_pe(num_frames, embed_dim)
        self.register_buffer("_temporal_pe", pe, persistent=False)

    def _temporal_block_forward(self, hidden_states: Tensor) -> Tensor:
        t = self.num_frames
        bt, n, d = hidden_states.shape
        if bt % t != 0:
            raise ValueError(f"hidden_states.shape[0] ({bt}) must be divisible by {t} frames")
        x = hidden_states.view(bt // t, t, n, d)
        x_pe = (x + self._temporal_pe.to(x.dtype).view(1, t, 1, d)).transpose(1, 2)
        out = self.self_attn(self.layer_norm1(x_pe.reshape(-1, t, d)), is_causal=True)
        # residual without positions: they are a signal for the attention only
        out = x + out.view(bt // t, n, t, d).transpose(1, 2)
        return out.reshape(bt, n, d)

    def forward(self, hidden_states: Tensor, temporal: bool = True) -> Tensor:
        """hidden_states: (B*T, N, D) -> (B*T, N, D)."""
        if temporal and self.num_frames > 1:
            hidden_states = self._temporal_block_forward(hidden_states)
        hidden_states = hidden_states + self.self_attn(self.layer_norm1(hidden_states))
        return hidden_states + self.mlp(self.layer_norm2(hidden_states))


class SiglipVideoEncoder(nn.Module):
    """Encodes videos of ``num_frames`` frames, and single images with the same weights.

    Args:
        embed_dim: width of the tokens.
        num_heads: heads of each layer.
        num_frames: frames of a video, the current one included.
        num_layers: number of layers.
    """

    def __init__(self, embed_dim: int, num_heads: int, num_frames: int = 8, num_layers: int = 1):
        super().__init__()
        self.num_frames = num_frames
        self.layers = nn.ModuleList(
            SpaceTimeEncoderLayer(embed_dim, num_heads, num_frames) for _ in range(num_layers)
        )
        self.post_layernorm = nn.LayerNorm(embed_dim, eps=1e-6)

    def forward(self, patches: Tensor) -> Tensor:
        """patches: (B, T, N, D) of videos or (B, N, D) of images. Returns (B, N, D) of the last frames."""
        is_video = patches.dim() == 4
        if is_video and patches.shape[1] != self.num_frames:
            raise ValueError(f"expected {self.num_frames} frames, got {patches.shape[1]}")
        hidden_states = patches.flatten(0, 1) if is_video else patches
        for layer in self.layers:
            # before
            hidden_states = layer(hidden_states)
            # after
            hidden_states = layer(hidden_states, temporal=is_video)
            # end
        if is_video:
            hidden_states = hidden_states.view(patches.shape)[:, -1]
        return self.post_layernorm(hidden_states)
