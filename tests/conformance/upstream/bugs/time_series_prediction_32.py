"""The decoder of a transformer that forecasts time series."""

from typing import Optional

import torch
from torch import nn


class CausalMask(nn.Module):
    """Causal mask for the first self-attention of the decoder: 1 where a step is later than the query."""

    def __init__(self, num_attention_heads: int):
        super().__init__()
        self.num_attention_heads = num_attention_heads

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        batch_size, seq_length = inputs.shape[:2]
        mask = torch.ones(seq_length, seq_length, dtype=inputs.dtype, device=inputs.device).triu(1)
        return mask.repeat(batch_size * self.num_attention_heads, 1, 1)


class Attention(nn.Module):
    """Multi-head attention layer

    Parameters
    ----------
    hidden_size : int
        The number of hidden units, hidden_size = attention_dim_each_head x num_attention_heads.
    num_attention_heads : int
        The number of attention heads.
    attention_probs_dropout_prob : float, optional
        Dropout rate for the attention weights. Defaults to 0.0.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int = 1,
        attention_probs_dropout_prob: float = 0.0,
    ):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError(
                f"Hidden size {hidden_size} must be divisible by {num_attention_heads} heads."
            )
        self.num_attention_heads = num_attention_heads
        self.dense_q = nn.Linear(hidden_size, hidden_size, bias=False)
        self.dense_k = nn.Linear(hidden_size, hidden_size, bias=False)
        self.dense_v = nn.Linear(hidden_size, hidden_size, bias=False)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def forward(self, q, k, v, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        # multi-heads transfer to multi-sample
        q_, k_, v_ = (
            torch.cat(x.chunk(self.num_attention_heads, dim=2), dim=0)
            for x in (self.dense_q(q), self.dense_k(k), self.dense_v(v))
        )

        # => (batch * heads) * seq_q * seq_k
        score = torch.matmul(q_, k_.transpose(1, 2)) / q_.shape[-1] ** 0.5
        if mask is not None:
            # before
            score = score * mask
            # after
            score = score.masked_fill(mask.bool(), -1e9)
            # end

        score = self.dropout(torch.softmax(score, dim=-1))

        # (batch * heads) * seq_q * units
        outputs = torch.matmul(score, v_)
        return torch.cat(outputs.chunk(self.num_attention_heads, dim=0), dim=2)


class DecoderLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int = 32,
        num_attention_heads: int = 4,
        ffn_intermediate_size: int = 64,
        attention_probs_dropout_prob: float = 0.0,
        layer_norm_eps: float = 1e-9,
    ):
        super().__init__()
        heads = (hidden_size, num_attention_heads, attention_probs_dropout_prob)
        self.causal_mask = CausalMask(num_attention_heads)
        self.self_attention = Attention(*heads)
        self.cross_attention = Attention(*heads)
        self.ffn = nn.Sequential(
            nn.Linear(hidden_size, ffn_intermediate_size),
            nn.ReLU(),
            nn.Linear(ffn_intermediate_size, hidden_size),
        )
        self.ln1, self.ln2, self.ln3 = (
            nn.LayerNorm(hidden_size, eps=layer_norm_eps) for _ in range(3)
        )

    def forward(self, decoder_inputs: torch.Tensor, encoder_memory: torch.Tensor) -> torch.Tensor:
        """
        decoder_inputs: batch * predict_length * hidden_size
        encoder_memory: batch * input_length * hidden_size
        """
        x = decoder_inputs
        x = self.ln1(x + self.self_attention(x, x, x, mask=self.causal_mask(x)))
        x = self.ln2(x + self.cross_attention(x, encoder_memory, encoder_memory))
        return self.ln3(x + self.ffn(x))
