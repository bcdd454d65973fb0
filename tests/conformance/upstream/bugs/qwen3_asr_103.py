"""The audio encoder of a speech recognizer: clips of any length are packed, and cut into windows of attention."""

from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class AudioEncoderConfig:
    d_model: int = 32
    encoder_attention_heads: int = 4
    encoder_layers: int = 1
    encoder_ffn_dim: int = 48
    n_window: int = 4
    attn_implementation: str = "sdpa"


class AudioAttention(nn.Module):
    def __init__(self, config: AudioEncoderConfig):
        super().__init__()
        self.config = config
        self.num_heads = config.encoder_attention_heads
        self.head_dim = config.d_model // self.num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        seq_length, _ = hidden_states.size()
        query, key, value = (
            proj(hidden_states).reshape(1, seq_length, self.num_heads, -1).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.config.attn_implementation == "flash_attention_2":
            from flash_attn import flash_attn_varlen_func

            longest = int((cu_seqlens[1:] - cu_seqlens[:-1]).max())
            packed = (t.squeeze(0).transpose(0, 1) for t in (query, key, value))
            out = flash_attn_varlen_func(*packed, cu_seqlens, cu_seqlens, longest, longest)
        else:
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=attention_mask, scale=self.scaling
            )
            out = out.squeeze(0).transpose(0, 1)
        return self.out_proj(out.reshape(seq_length, -1))


class AudioEncoderLayer(nn.Module):
    def __init__(self, config: AudioEncoderConfig):
        super().__init__()
        self.self_attn = AudioAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def forward(self, hidden_states, cu_seqlens, attention_mask=None):
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states = residual + self.self_attn(hidden_states, cu_seqlens, attention_mask)
        residual = hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        return residual + self.fc2(F.gelu(self.fc1(hidden_states)))


class AudioEncoder(nn.Module):
    def __init__(self, config: Optional[AudioEncoderConfig] = None):
        super().__init__()
        config = config or AudioEncoderConfig()
        self.config = config
        self.layers = nn.ModuleList(
            [AudioEncoderLayer(config) for _ in range(config.encoder_layers)]
        )
        self.ln_post = nn.LayerNorm(config.d_model)

    def _prepare_attention_mask(self, hidden_states, cu_seqlens) -> Optional[torch.Tensor]:
        # flash attention takes the boundaries themselves
        if self.config.attn_implementation == "flash_attention_2":
            return None
        seq_length = hidden_states.shape[0]
        positions = torch.arange(seq_length, device=hidden_states.device)
        window = torch.bucketize(positions, cu_seqlens[1:-1], right=True)
        return (window[:, None] == window[None, :])[None, None]

    def forward(self, input_features: torch.Tensor, feature_lens: torch.Tensor) -> torch.Tensor:
        """
        input_features: the frames of all clips, one after the other, of shape (frames, d_model)
        feature_lens: the number of frames of each clip, of shape (clips,)
        """
        cu_chunk_lens = [0]
        for length in feature_lens.tolist():
            full, rest = divmod(length, self.config.n_window)
            cu_chunk_lens += [self.config.n_window] * full + ([rest] if rest else [])
        cu_seqlens = torch.tensor(cu_chunk_lens, device=input_features.device).cumsum(-1)

        hidden_states = input_features
        # before
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(hidden_states, cu_seqlens)
        # after
        attention_mask = self._prepare_attention_mask(hidden_states, cu_seqlens)
        for encoder_layer in self.layers:
            hidden_states = encoder_layer(hidden_states, cu_seqlens, attention_mask)
        # end
        return self.ln_post(hidden_states)
