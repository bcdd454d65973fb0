"""The answer pointer of a reading comprehension model: it points at the first word of the answer, then at the last."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Score every input by a state."""

    def __init__(self, input_size, state_size, attn_size):
        super().__init__()
        self.w_inputs = nn.Linear(input_size, attn_size, bias=False)
        self.w_state = nn.Linear(state_size, attn_size, bias=False)
        self.v = nn.Linear(attn_size, 1, bias=False)

    def forward(self, inputs, state):
        hidden = torch.tanh(self.w_inputs(inputs) + self.w_state(state).unsqueeze(1))
        return self.v(hidden).squeeze(-1)


class PointerNet(nn.Module):
    """
    inputs: the words of the passage, of shape (batch, length, size)
    state: the summary of the question, of shape (batch, size)
    """

    def __init__(self, size, attn_size=32):
        super().__init__()
        self.attention = Attention(size, size, attn_size)
        self.cell = nn.GRUCell(size, size)

    def forward(self, inputs, state):
        p1_logits = self.attention(inputs, state)
        # before
        scores = F.softmax(p1_logits.unsqueeze(-1), dim=-1)
        # after
        scores = F.softmax(p1_logits, dim=-1).unsqueeze(-1)
        # end
        attention_pool = torch.sum(scores * inputs, dim=1)
        state = self.cell(attention_pool, state)
        p2_logits = self.attention(inputs, state)
        return torch.stack((p1_logits, p2_logits), dim=1)
