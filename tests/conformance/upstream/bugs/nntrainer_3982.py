"""Disentangled attention: words attend by content, and by relative position in both directions (DeBERTa)."""

import math

import torch
from torch import nn


class DisentangledSelfAttention(nn.Module):
    """
    hidden_size: size of a word.
    num_heads: number of heads.
    att_span: relative positions beyond this are treated alike.
    pos_att_type: which terms with positions there are, "c2p" from content to position, "p2c" the other way.
    """

    def __init__(self, hidden_size, num_heads, att_span=4, pos_att_type=("c2p", "p2c")):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.att_span = att_span
        self.pos_att_type = pos_att_type
        self.query_proj = nn.Linear(hidden_size, hidden_size)
        self.key_proj = nn.Linear(hidden_size, hidden_size)
        self.value_proj = nn.Linear(hidden_size, hidden_size)
        self.rel_embeddings = nn.Parameter(torch.randn(2 * att_span, hidden_size))
        if "c2p" in pos_att_type:
            self.pos_key_proj = nn.Linear(hidden_size, hidden_size)
        if "p2c" in pos_att_type:
            self.pos_query_proj = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-2, -3)

    def bucket(self, length, device):
        """Return how far each query is behind each key, of shape (length, length)."""
        ids = torch.arange(length, device=device)
        return ids[:, None] - ids[None, :]

    def add_relative_attn_score(self, scores, query, key, scale):
        b, h, length, _ = scores.shape
        rel = self.bucket(length, scores.device)
        if "c2p" in self.pos_att_type:
            pos_key = self.split(self.pos_key_proj(self.rel_embeddings))
            c2p_pos = torch.clamp(rel + self.att_span, 0, self.att_span * 2 - 1)
            c2p = torch.einsum("bhqd,hpd->bhqp", query, pos_key)
            c2p = torch.gather(c2p, -1, c2p_pos.expand(b, h, length, length))
            scores = scores + c2p / scale
        if "p2c" in self.pos_att_type:
            pos_query = self.split(self.pos_query_proj(self.rel_embeddings))
            # before
            p2c_pos = torch.clamp(-rel + self.att_span, 0, self.att_span * 2 - 1)
            # after
            p2c_pos = torch.clamp(rel + self.att_span, 0, self.att_span * 2 - 1)
            # end
            p2c = torch.einsum("bhkd,hpd->bhpk", key, pos_query)
            p2c = torch.gather(p2c, -2, p2c_pos.expand(b, h, length, length))
            scores = scores + p2c / scale
        return scores

    def forward(self, hidden_states, attention_mask=None):
        """
        hidden_states: (batch, length, hidden_size). attention_mask: 1 at words, 0 at padding, (batch, length).
        """
        query = self.split(self.query_proj(hidden_states))
        key = self.split(self.key_proj(hidden_states))
        value = self.split(self.value_proj(hidden_states))

        # every term adds to the variance of the scores
        scale = math.sqrt(self.head_dim * (1 + len(self.pos_att_type)))
        scores = torch.matmul(query, key.transpose(-1, -2)) / scale
        scores = self.add_relative_attn_score(scores, query, key, scale)
        if attention_mask is not None:
            hidden = attention_mask[:, None, None, :] == 0
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        probs = scores.softmax(dim=-1)
        context = torch.matmul(probs, value).transpose(1, 2).flatten(2)
        return self.dense(context)
