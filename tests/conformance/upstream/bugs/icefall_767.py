"""A small Zipformer: stacks of encoder layers, some of which run at a reduced frame rate."""

import copy
import math
from typing import Optional

import torch
from torch import Tensor, nn


def make_pad_mask(lengths: Tensor, max_len: int = 0) -> Tensor:
    """
    Args:
      lengths:
        A 1-D tensor containing sentence lengths.
      max_len:
        The length of masks.
    Returns:
      Return a 2-D bool tensor, where masked positions are filled with `True`.
    """
    max_len = max(max_len, int(lengths.max()))
    return torch.arange(max_len, device=lengths.device)[None, :] >= lengths[:, None]


class RelPositionalEncoding(nn.Module):
    """Embeds the offsets T-1, ..., 0, ..., -(T-1)."""

    def __init__(self, pos_dim: int) -> None:
        super().__init__()
        self.pos_dim = pos_dim

    def forward(self, x: Tensor) -> Tensor:
        T = x.size(0)
        offsets = torch.arange(T - 1, -T, -1, device=x.device, dtype=x.dtype)
        freqs = torch.arange(1, self.pos_dim // 2 + 1, device=x.device, dtype=x.dtype)
        angles = torch.atan(offsets[:, None] / math.sqrt(self.pos_dim)) * freqs
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


class RelPositionMultiheadAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, pos_dim: int, dropout: float) -> None:
        super().__init__()
        assert embed_dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.linear_pos = nn.Linear(pos_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(
        self,
        x: Tensor,
        pos_emb: Tensor,
        attn_mask: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        T, N, C = x.shape
        H, D = self.num_heads, self.head_dim
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q.reshape(T, N, H, D).permute(1, 2, 0, 3)
        k = k.reshape(T, N, H, D).permute(1, 2, 3, 0)
        v = v.reshape(T, N, H, D).permute(1, 2, 0, 3)

        # pos: (head, head_dim, 2 * T - 1)
        pos = self.linear_pos(pos_emb).reshape(2 * T - 1, H, D).permute(1, 2, 0)
        pos_scores = torch.matmul(q, pos)
        frames = torch.arange(T, device=x.device)
        indexes = T - 1 - frames[:, None] + frames[None, :]
        pos_scores = pos_scores.gather(-1, indexes.expand(N, H, T, T))

        scores = (torch.matmul(q, k) + pos_scores) * D**-0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, float("-inf"))
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], float("-inf"))
        weights = scores.softmax(dim=-1)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v)
        return self.out_proj(out.permute(2, 0, 1, 3).reshape(T, N, C))


class ConvolutionModule(nn.Module):
    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        assert (kernel_size - 1) % 2 == 0
        self.pointwise_conv1 = nn.Linear(channels, 2 * channels)
        self.depthwise_conv = nn.Conv1d(
            channels, channels, kernel_size, padding=(kernel_size - 1) // 2, groups=channels
        )
        self.pointwise_conv2 = nn.Linear(channels, channels)

    def forward(self, x: Tensor, src_key_padding_mask: Optional[Tensor] = None) -> Tensor:
        x = nn.functional.glu(self.pointwise_conv1(x), dim=-1).permute(1, 2, 0)
        if src_key_padding_mask is not None:
            x = x.masked_fill(src_key_padding_mask.unsqueeze(1), 0.0)
        x = nn.functional.silu(self.depthwise_conv(x)).permute(2, 0, 1)
        return self.pointwise_conv2(x)


class ZipformerEncoderLayer(nn.Module):
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        pos_dim: int,
        dropout: float,
        cnn_module_kernel: int,
    ) -> None:
        super().__init__()
        self.self_attn = RelPositionMultiheadAttention(embed_dim, num_heads, pos_dim, dropout)
        self.conv_module = ConvolutionModule(embed_dim, cnn_module_kernel)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_dim, feedforward_dim),
            nn.SiLU(),
            nn.Dropout(dropout),
            nn.Linear(feedforward_dim, embed_dim),
        )
        self.norm_final = nn.LayerNorm(embed_dim)
        self.bypass_scale = nn.Parameter(torch.full((embed_dim,), 0.5))

    def forward(
        self,
        src: Tensor,
        pos_emb: Tensor,
        src_mask: Optional[Tensor] = None,
        src_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        src_orig = src
        src = src + self.self_attn(src, pos_emb, src_mask, src_key_padding_mask)
        src = src + self.conv_module(src, src_key_padding_mask=src_key_padding_mask)
        src = self.norm_final(src + self.feed_forward(src))
        return src_orig + (src - src_orig) * self.bypass_scale


class ZipformerEncoder(nn.Module):
    """ZipformerEncoder is a stack of N encoder layers."""

    def __init__(self, encoder_layer: nn.Module, num_layers: int, pos_dim: int) -> None:
        super().__init__()
        self.encoder_pos = RelPositionalEncoding(pos_dim)
        self.layers = nn.ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])

    def forward(
        self,
        src: Tensor,
        mask: Optional[Tensor] = None,
        src_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """
        Shape:
            src: (S, N, E).
            mask: (S, S), True where attention is not allowed.
            src_key_padding_mask: (N, S), True for padding.
        """
        pos_emb = self.encoder_pos(src)
        for mod in self.layers:
            src = mod(src, pos_emb, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src


class DownsampledZipformerEncoder(nn.Module):
    """
    A zipformer encoder evaluated at a reduced frame rate and then upsampled again at the output, and combined with
    the original input, so that the output has the same shape as the input.
    """

    def __init__(self, encoder: nn.Module, embed_dim: int, downsample: int) -> None:
        super().__init__()
        self.downsample_factor = downsample
        self.downsample = nn.Linear(embed_dim, embed_dim)
        self.encoder = encoder
        self.combine = nn.Parameter(torch.full((embed_dim,), 0.4))

    def forward(
        self,
        src: Tensor,
        mask: Optional[Tensor] = None,
        src_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """
        Args:
            src: (S, N, E).
            mask: (S, S), at the frame rate of the input.
            src_key_padding_mask: (N, (S + ds - 1) // ds).  Should be downsampled already.
        """
        src_orig = src
        ds = self.downsample_factor
        src = self.downsample(src[::ds])
        if mask is not None:
            mask = mask[::ds, ::ds]
        # before
        src = self.encoder(src, mask=mask, src_key_padding_mask=mask)
        # after
        src = self.encoder(src, mask=mask, src_key_padding_mask=src_key_padding_mask)
        # end
        # remove any extra frames that are not a multiple of downsample_factor
        src = src.repeat_interleave(ds, dim=0)[: src_orig.shape[0]]
        return src_orig + (src - src_orig) * self.combine


class Zipformer(nn.Module):
    """
    Args:
        num_features (int): Number of input features
        d_model (int): embedding dimension of the encoder stacks
        nhead (int): number of heads
        zipformer_downsampling_factors: the frame rate of each stack is reduced by its factor
    """

    def __init__(
        self,
        num_features: int,
        d_model: int = 32,
        nhead: int = 4,
        feedforward_dim: int = 64,
        num_encoder_layers: tuple[int, ...] = (1, 1),
        zipformer_downsampling_factors: tuple[int, ...] = (1, 2),
        pos_dim: int = 16,
        dropout: float = 0.1,
        cnn_module_kernel: int = 3,
    ) -> None:
        super().__init__()
        self.zipformer_downsampling_factors = zipformer_downsampling_factors
        self.encoder_embed = nn.Linear(num_features, d_model)
        encoders: list[nn.Module] = []
        for num_layers, ds in zip(num_encoder_layers, zipformer_downsampling_factors):
            layer = ZipformerEncoderLayer(
                d_model, nhead, feedforward_dim, pos_dim, dropout, cnn_module_kernel
            )
            encoder: nn.Module = ZipformerEncoder(layer, num_layers, pos_dim)
            if ds != 1:
                encoder = DownsampledZipformerEncoder(encoder, d_model, ds)
            encoders.append(encoder)
        self.encoders = nn.ModuleList(encoders)

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
          x:
            The input tensor. Its shape is (batch_size, seq_len, feature_dim).
          x_lens:
            A tensor of shape (batch_size,) containing the number of frames in `x` before padding.
        Returns:
          Return a tuple containing the embeddings, (batch_size, seq_len, d_model), and their numbers of frames.
        """
        mask = make_pad_mask(x_lens, x.size(1))
        x = self.encoder_embed(x).permute(1, 0, 2)  # (N, T, C) -> (T, N, C)
        for module, ds in zip(self.encoders, self.zipformer_downsampling_factors):
            x = module(x, src_key_padding_mask=mask[..., ::ds])
        return x.permute(1, 0, 2), x_lens
