"""The attention of a decoder with a recurrent state to the states of its encoder."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class VectorSequenceAttention(nn.Module):
    """The base of attentions of a vector to a sequence."""

    def __init__(self, hsz: int):
        super().__init__()
        self.hsz = hsz
        self.W_c = nn.Linear(2 * hsz, hsz, bias=False)

    def forward(self, query_t, keys_bth, values_bth, keys_mask: Optional[torch.Tensor] = None):
        """
        query_t: the state of the decoder, of shape [B, H]. keys_bth, values_bth: of shape [B, T, H].
        keys_mask: nonzero at the states that belong to the example, of shape [B, T].
        """
        a = self._attention(query_t, keys_bth, keys_mask)
        attended = torch.bmm(a.unsqueeze(1), values_bth).squeeze(1)
        return torch.tanh(self.W_c(torch.cat([attended, query_t], -1)))

    def _attention(self, query_t, keys_bth, keys_mask):
        raise NotImplementedError


class BahdanauAttention(VectorSequenceAttention):
    def __init__(self, hsz: int):
        super().__init__(hsz)
        self.W_a = nn.Linear(hsz, hsz, bias=False)
        self.E_a = nn.Linear(hsz, hsz, bias=False)
        self.v = nn.Linear(hsz, 1, bias=False)

    def _attention(self, query_t, keys_bth, keys_mask):
        q = self.W_a(query_t).unsqueeze(1)
        u = self.E_a(keys_bth)
        a = self.v(torch.tanh(q + u)).squeeze(-1)
        if keys_mask is not None:
            # before
            a.masked_fill(keys_mask == 0, -1e9)
            # after
            a = a.masked_fill(keys_mask == 0, -1e9)
            # end
        return F.softmax(a, dim=-1)
