"""Embeds sentences by a pretrained transformer, of which one layer is kept here."""

import math

import torch
from torch import nn


class BertLayer(nn.Module):
    """attention_mask: 1 at tokens that are attended to, and 0 at all others."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size)

    def transpose_for_scores(self, x):
        return x.view(x.size(0), x.size(1), self.num_attention_heads, -1).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        hidden = 1.0 - attention_mask[:, None, None, :].to(scores.dtype)
        scores = scores + hidden * torch.finfo(scores.dtype).min
        context = torch.matmul(scores.softmax(dim=-1), v).permute(0, 2, 1, 3).flatten(2)
        return self.LayerNorm(self.dense(context) + hidden_states)


class BertEmbedderModule(nn.Module):
    """Wrapper of the transformer: takes the ids of the tokens, of shape (batch, length), 0 where there is none."""

    def __init__(self, vocab_size, hidden_size=32, num_attention_heads=4):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.layer = BertLayer(hidden_size, num_attention_heads)

    def forward(self, ids):
        # before
        mask = ids == 0
        # after
        mask = ids != 0
        # end
        return self.layer(self.embeddings(ids), attention_mask=mask)
