"""The attention operators of a runtime for ONNX models."""

from typing import Optional

import torch
from torch import Tensor, nn


def softmax_lane(scores: Tensor, flush_nans_to_zero: bool = False) -> Tensor:
    """Softmax over the last dimension."""
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    exps = shifted.exp()
    probs = exps / exps.sum(dim=-1, keepdim=True)
    if flush_nans_to_zero:
        probs = torch.where(probs.isnan(), torch.zeros_like(probs), probs)
    return probs


class GroupQueryAttention(nn.Module):
    """
    The operator of com.microsoft, with its projections.

    num_heads: number of query heads.
    kv_num_heads: number of key and value heads, of which each serves consecutive query heads.
    scale: scale of the scores. The default is 1/sqrt(head_size).
    softcap: softcap of the scores. 0 turns it off.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        kv_num_heads: int,
        scale: Optional[float] = None,
        softcap: float = 0.0,
    ):
        super().__init__()
        assert num_heads % kv_num_heads == 0
        self.num_heads = num_heads
        self.kv_num_heads = kv_num_heads
        self.head_size = hidden_size // num_heads
        self.scale = self.head_size**-0.5 if scale is None else scale
        self.softcap = softcap
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, kv_num_heads * self.head_size, bias=False)
        self.value = nn.Linear(hidden_size, kv_num_heads * self.head_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, attention_mask: Optional[Tensor] = None) -> Tensor:
        """
        x: (batch, sequence, hidden_size)
        attention_mask: 1 at tokens and 0 at padding, (batch, sequence). Prompts are padded on the left.
        """
        batch, seq, _ = x.shape
        query = self.query(x).view(batch, seq, self.num_heads, self.head_size).transpose(1, 2)
        key = self.key(x).view(batch, seq, self.kv_num_heads, self.head_size).transpose(1, 2)
        value = self.value(x).view(batch, seq, self.kv_num_heads, self.head_size).transpose(1, 2)

        group_size = self.num_heads // self.kv_num_heads
        key = key.repeat_interleave(group_size, dim=1)
        value = value.repeat_interleave(group_size, dim=1)

        scores = torch.matmul(query, key.transpose(-1, -2)) * self.scale
        if self.softcap > 0.0:
            scores = self.softcap * torch.tanh(scores / self.softcap)

        keep = torch.ones(seq, seq, dtype=torch.bool, device=x.device).tril()[None, None]
        if attention_mask is not None:
            keep = keep & attention_mask.bool()[:, None, None, :]
        scores = scores.masked_fill(~keep, float("-inf"))

        # before
        probs = softmax_lane(scores)
        # after
        probs = softmax_lane(scores, flush_nans_to_zero=True)
        # end
        context = torch.matmul(probs, value)
        return self.out(context.transpose(1, 2).reshape(batch, seq, -1))
