"""Knowledge tracing: the attention over what a student has answered so far."""

import torch
from torch import nn


class AttentionModule(nn.Module):
    """Adds to the state after each answer a summary of the states up to it.

    Args:
        hidden_dim: size of the states of the LSTM
        attention_dim: size of the layer that scores them

    Input: lstm_output (batch, seq, hidden_dim). Output: (batch, seq, 2 * hidden_dim)
    """

    def __init__(self, hidden_dim, attention_dim=80):
        super().__init__()
        self.mlp = nn.Linear(hidden_dim, attention_dim)
        self.similarity = nn.Linear(attention_dim, 1, bias=False)

    def forward(self, lstm_output):
        att_w = torch.tanh(self.mlp(lstm_output))
        att_w = self.similarity(att_w)  # (batch, seq, 1)

        # before
        alphas = torch.softmax(att_w, dim=1)
        attn_output = torch.cumsum(alphas * lstm_output, dim=1)
        # after
        seq = lstm_output.size(1)
        future = torch.ones(seq, seq, dtype=torch.bool, device=att_w.device).triu(1)
        att_w = att_w.transpose(1, 2).expand(-1, seq, -1).masked_fill(future, float("-inf"))
        alphas = torch.softmax(att_w, dim=-1)
        attn_output = torch.bmm(alphas, lstm_output)
        # end

        return torch.cat((attn_output, lstm_output), dim=2)


class KTBackbone(nn.Module):
    """Predicts whether a student will answer the next exercise correctly."""

    def __init__(self, skill_dim, answer_dim, hidden_dim, output_dim):
        super().__init__()
        self.output_dim = output_dim
        self.skill_emb = nn.Embedding(output_dim + 1, skill_dim, padding_idx=output_dim)
        self.answer_emb = nn.Embedding(3, answer_dim, padding_idx=2)
        self.rnn = nn.LSTM(skill_dim + answer_dim, hidden_dim, batch_first=True)
        self.attention_module = AttentionModule(hidden_dim)
        self.fc = nn.Linear(hidden_dim * 2, output_dim)

    def forward(self, skill, answer):
        """skill, answer: (batch, seq). Returns the probabilities for exercises 1, 2, ..."""
        skill_embedding, answer_embedding = self.skill_emb(skill), self.answer_emb(answer)
        skill_answer = torch.cat((skill_embedding, answer_embedding), dim=2)
        answer_skill = torch.cat((answer_embedding, skill_embedding), dim=2)
        right = (answer == 1).unsqueeze(2)
        out, _ = self.rnn(torch.where(right, skill_answer, answer_skill))
        res = torch.sigmoid(self.fc(self.attention_module(out)))[:, :-1]
        following = skill[:, 1:].clamp(max=self.output_dim - 1)
        return res.gather(2, following.unsqueeze(2)).squeeze(2)
