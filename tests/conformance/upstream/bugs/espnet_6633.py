"""Transformer encoder of ESPnet with convolutional subsampling in time."""

import math
from typing import Optional

import torch
from torch import nn


def make_pad_mask(lengths, maxlen=None):
    """Make a mask of shape (B, Tmax) that is True for padding."""
    maxlen = int(lengths.max()) if maxlen is None else maxlen
    return torch.arange(maxlen, device=lengths.device)[None, :] >= lengths[:, None]


def subsampled_mask(x_mask, layers, maxlen):
    """Make the mask of what convolutions return.

    Args:
        x_mask (torch.Tensor): Input mask (#batch, 1, time).
        layers (List[Tuple[int, int]]): Kernel size and stride of each convolution.
        maxlen (int): Number of frames that they return.

    """
    lengths = x_mask.squeeze(1).sum(1)
    for kernel_size, stride in layers:
        lengths = torch.div(lengths - kernel_size, stride, rounding_mode="floor") + 1
    return ~make_pad_mask(lengths.clamp(min=0), maxlen)[:, None, :]


class PositionalEncoding(torch.nn.Module):
    def __init__(self, d_model, dropout_rate):
        super().__init__()
        self.d_model = d_model
        self.xscale = math.sqrt(self.d_model)
        self.dropout = torch.nn.Dropout(p=dropout_rate)

    def forward(self, x: torch.Tensor):
        position = torch.arange(x.size(1), dtype=x.dtype, device=x.device).unsqueeze(1)
        div_term = torch.exp(
            torch.arange(0, self.d_model, 2, dtype=x.dtype, device=x.device)
            * -(math.log(10000.0) / self.d_model)
        )
        pe = torch.stack([torch.sin(position * div_term), torch.cos(position * div_term)], -1)
        return self.dropout(x * self.xscale + pe.flatten(1))


class Conv1dSubsampling2(torch.nn.Module):
    """Convolutional 1D subsampling (to 1/2 length).

    Args:
        idim (int): Input dimension.
        odim (int): Output dimension.
        dropout_rate (float): Dropout rate.

    """

    def __init__(self, idim, odim, dropout_rate):
        super().__init__()
        self.conv = torch.nn.Sequential(
            torch.nn.Conv1d(idim, odim, 3, 1),
            torch.nn.ReLU(),
            torch.nn.Conv1d(odim, odim, 3, 2),
            torch.nn.ReLU(),
        )
        self.out = torch.nn.Sequential(
            torch.nn.Linear(odim, odim), PositionalEncoding(odim, dropout_rate)
        )

    def forward(self, x, x_mask):
        """Subsample x.

        Args:
            x (torch.Tensor): Input tensor (#batch, time, idim).
            x_mask (torch.Tensor): Input mask (#batch, 1, time).

        Returns:
            torch.Tensor: Subsampled tensor (#batch, time', odim), time' = (time - 3) // 2.
            torch.Tensor: Subsampled mask (#batch, 1, time').

        """
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        x = self.out(x)
        if x_mask is None:
            return x, None
        # before
        return x, x_mask[:, :, :-2:1][:, :, :-2:2]
        # after
        return x, subsampled_mask(x_mask, [(3, 1), (3, 2)], x.size(1))
        # end


class MultiHeadedAttention(nn.Module):
    def __init__(self, n_head, n_feat, dropout_rate):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout_rate)

    def forward(self, query, key, value, mask):
        n_batch = query.size(0)
        q = self.linear_q(query).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        k = self.linear_k(key).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(value).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)  # (batch, 1, *, time2)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)
        self.attn = attn.detach()
        x = torch.matmul(self.dropout(attn), v)
        return self.linear_out(x.transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout_rate):
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.norm1 = nn.LayerNorm(size)
        self.norm2 = nn.LayerNorm(size)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.dropout(self.self_attn(y, y, y, mask))
        return x + self.dropout(self.feed_forward(self.norm2(x))), mask


class TransformerEncoder(torch.nn.Module):
    """Transformer encoder module.

    Args:
        input_size: input dim
        output_size: dimension of attention
        attention_heads: the number of heads of multi head attention
        linear_units: the number of units of position-wise feed forward
        num_blocks: the number of encoder blocks
        input_layer: "conv1d2", or "linear" for no subsampling
    """

    def __init__(
        self,
        input_size: int,
        output_size: int = 256,
        attention_heads: int = 4,
        linear_units: int = 64,
        num_blocks: int = 2,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        input_layer: Optional[str] = "conv1d2",
    ):
        super().__init__()
        if input_layer == "conv1d2":
            self.embed = Conv1dSubsampling2(input_size, output_size, dropout_rate)
        elif input_layer == "linear":
            self.embed = torch.nn.Sequential(
                torch.nn.Linear(input_size, output_size),
                PositionalEncoding(output_size, dropout_rate),
            )
        else:
            raise ValueError("unknown input_layer: " + str(input_layer))
        self.encoders = nn.ModuleList(
            EncoderLayer(
                output_size,
                MultiHeadedAttention(attention_heads, output_size, attention_dropout_rate),
                nn.Sequential(
                    nn.Linear(output_size, linear_units),
                    nn.ReLU(),
                    nn.Dropout(dropout_rate),
                    nn.Linear(linear_units, output_size),
                ),
                dropout_rate,
            )
            for _ in range(num_blocks)
        )
        self.after_norm = nn.LayerNorm(output_size)

    def forward(
        self, xs_pad: torch.Tensor, ilens: torch.Tensor, prev_states: torch.Tensor = None
    ) -> tuple[torch.Tensor, torch.Tensor, Optional[torch.Tensor]]:
        """Embed positions in tensor.

        Args:
            xs_pad: input tensor (B, L, D)
            ilens: input length (B)
            prev_states: Not to be used now.
        Returns:
            position embedded tensor, its lengths, and None
        """
        masks = (~make_pad_mask(ilens, xs_pad.size(1)))[:, None, :]
        if isinstance(self.embed, Conv1dSubsampling2):
            xs_pad, masks = self.embed(xs_pad, masks)
        else:
            xs_pad = self.embed(xs_pad)
        for encoder in self.encoders:
            xs_pad, masks = encoder(xs_pad, masks)
        xs_pad = self.after_norm(xs_pad)
        olens = masks.squeeze(1).sum(1)
        return xs_pad, olens, None
