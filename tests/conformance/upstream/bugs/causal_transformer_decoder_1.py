"""A decoder of transformers that writes one token after the other."""

from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor


def generate_square_subsequent_mask(sz: int, device: torch.device) -> Tensor:
    """True where a token must not be seen."""
    return torch.ones(sz, sz, dtype=torch.bool, device=device).triu(diagonal=1)


class CausalTransformerDecoderLayer(nn.Module):
    """
    Layer of a causal decoder: self-attention, attention to the encoder's output if there is any, feed-forward.

    As in torch.nn.TransformerDecoderLayer, the first dimension is the time.
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(dropout)
        self.activation = nn.ReLU()

    def forward(
        self,
        tgt: Tensor,
        memory: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """
        Args:
            tgt: (T x bsz x hidden_dim)
            memory: (memory_length x bsz x hidden_dim)
            memory_key_padding_mask: (bsz x memory_length), True at padding

        Returns:
            (T x bsz x hidden_dim)
        """
        # before
        tmp_tgt = self.self_attn(tgt, tgt, tgt)[0]
        # after
        tgt_mask = generate_square_subsequent_mask(tgt.size(0), tgt.device)
        tmp_tgt = self.self_attn(tgt, tgt, tgt, attn_mask=tgt_mask)[0]
        # end
        tgt = self.norm1(tgt + self.dropout1(tmp_tgt))

        # encoder-decoder attention
        if memory is not None:
            tmp_tgt = self.multihead_attn(
                tgt, memory, memory, key_padding_mask=memory_key_padding_mask
            )[0]
            tgt = self.norm2(tgt + self.dropout2(tmp_tgt))

        # final feed-forward network
        tmp_tgt = self.linear2(self.dropout(self.activation(self.linear1(tgt))))
        return self.norm3(tgt + self.dropout3(tmp_tgt))


class CausalTransformerDecoder(nn.Module):
    """A stack of causal layers."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        num_layers: int = 2,
        dim_feedforward: int = 64,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.layers = nn.ModuleList(
            CausalTransformerDecoderLayer(d_model, nhead, dim_feedforward, dropout)
            for _ in range(num_layers)
        )

    def forward(
        self,
        tgt: Tensor,
        memory: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ) -> Tensor:
        output = tgt
        for mod in self.layers:
            output = mod(output, memory, memory_key_padding_mask=memory_key_padding_mask)
        return output
