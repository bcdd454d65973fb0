"""The episodic memory of a dynamic memory network, which reads the facts that matter for a question."""

import torch
from torch import nn


class AttnGRU(nn.Module):
    """A GRU whose update gate is the attention to the fact."""

    def __init__(self, num_units):
        super().__init__()
        self.reset = nn.Linear(2 * num_units, num_units)
        self.candidate_x = nn.Linear(num_units, num_units)
        self.candidate_h = nn.Linear(num_units, num_units, bias=False)

    def forward(self, fact, state, g):
        r = torch.sigmoid(self.reset(torch.cat([fact, state], dim=1)))
        c = torch.tanh(self.candidate_x(fact) + r * self.candidate_h(state))
        return g * c + (1 - g) * state


class EpisodeModule(nn.Module):
    """
    :param num_hidden: Size of facts, question and memory.
    :param attn_hidden: Size of the hidden layer of the attention.
    """

    def __init__(self, num_hidden, attn_hidden=32):
        super().__init__()
        self.w1 = nn.Linear(4 * num_hidden, attn_hidden)
        self.w2 = nn.Linear(attn_hidden, 1)
        self.gru = AttnGRU(num_hidden)

    def attention(self, facts, question, memory):
        """Return how much each fact matters, of shape [N, F]."""
        q, m = question.unsqueeze(1), memory.unsqueeze(1)
        vec = torch.cat([facts * q, facts * m, (facts - q).abs(), (facts - m).abs()], dim=2)
        l1 = torch.tanh(self.w1(vec))
        l2 = self.w2(l1).squeeze(2)
        # before
        return torch.softmax(l2, dim=0)
        # after
        return torch.softmax(l2, dim=1)
        # end

    def forward(self, facts, question, memory):
        """
        Create a new episode.

        :param facts: [N, F, D]
        :param question: [N, D]
        :param memory: The memory so far, [N, D].
        :return: [N, D]
        """
        gs = self.attention(facts, question, memory)
        state = torch.zeros_like(memory)
        for f in range(facts.size(1)):
            state = self.gru(facts[:, f], state, gs[:, f : f + 1])
        return state
