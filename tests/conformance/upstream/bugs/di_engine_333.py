"""The attention of a transformer for reinforcement learning, over the units of a game."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """
    Arguments:
        - input_dim (:obj:`int`): dimension of the input
        - head_dim (:obj:`int`): dimension of each head
        - output_dim (:obj:`int`): dimension of the output
        - head_num (:obj:`int`): number of heads
        - dropout (:obj:`nn.Module`): dropout of the attention weights
    """

    def __init__(
        self, input_dim: int, head_dim: int, output_dim: int, head_num: int, dropout: nn.Module
    ):
        super().__init__()
        self.head_num = head_num
        self.head_dim = head_dim
        self.dropout = dropout
        self.attention_pre = nn.Linear(input_dim, head_dim * head_num * 3)
        self.project = nn.Linear(head_dim * head_num, output_dim)

    def split(self, x: torch.Tensor, T: bool = False) -> torch.Tensor:
        B, N = x.shape[:2]
        x = x.view(B, N, self.head_num, self.head_dim).permute(0, 2, 1, 3).contiguous()
        return x.permute(0, 1, 3, 2).contiguous() if T else x

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """
        Arguments:
            - x (:obj:`torch.Tensor`): :math:`(B, N, C)`
            - mask (:obj:`torch.Tensor`): True where there is a unit, :math:`(B, N)`
        """
        query, key, value = torch.chunk(self.attention_pre(x), 3, dim=2)
        query, key, value = self.split(query), self.split(key, T=True), self.split(value)

        score = torch.matmul(query, key)
        score /= math.sqrt(self.head_dim)
        if mask is not None:
            mask = mask.unsqueeze(1).unsqueeze(2)
            minimum = torch.finfo(score.dtype).min
            # before
            score.masked_fill(~mask, value=minimum)
            # after
            score.masked_fill_(~mask, value=minimum)
            # end
        score = self.dropout(F.softmax(score, dim=-1))

        attention = torch.matmul(score, value).permute(0, 2, 1, 3).contiguous()
        return self.project(attention.view(*attention.shape[:2], -1))
