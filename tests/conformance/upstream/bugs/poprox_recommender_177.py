"""A news recommender's encoder of headlines: attention between the words, and additive attention over them (NRMS)."""

import torch
import torch.nn.functional as F
from torch import nn


class AdditiveAttention(nn.Module):
    """
    Weighted sum of vectors.

    Args:
        input_dim: size of a vector.
        query_dim: size of the space in which vectors are compared with the query.
    """

    def __init__(self, input_dim, query_dim):
        super().__init__()
        self.linear = nn.Linear(input_dim, query_dim)
        self.query = nn.Parameter(torch.empty(query_dim).uniform_(-0.1, 0.1))

    def forward(self, vectors, padding_mask=None):
        scores = torch.tanh(self.linear(vectors)) @ self.query
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask, float("-inf"))
        weights = F.softmax(scores, dim=1)
        return torch.bmm(weights.unsqueeze(1), vectors).squeeze(1)


class LanguageModel(nn.Module):
    """Stands for the pre-trained model: embedded words, none where there is padding."""

    def __init__(self, vocab_size, dim):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, input_ids, attention_mask):
        return self.norm(self.word_embeddings(input_ids)) * attention_mask.unsqueeze(-1)


class NewsEncoder(nn.Module):
    def __init__(self, vocab_size, hidden_size, num_attention_heads, additive_attn_hidden_dim):
        super().__init__()
        self.plm = LanguageModel(vocab_size, hidden_size)
        self.multihead_attention = nn.MultiheadAttention(
            embed_dim=hidden_size, num_heads=num_attention_heads, batch_first=True
        )
        self.additive_attention = AdditiveAttention(hidden_size, additive_attn_hidden_dim)

    def forward(self, news_input):
        """
        Args:
            news_input: ids of the words of headlines, 0 at padding, of shape (articles, words).

        Returns: embedded headlines, of shape (articles, hidden_size).
        """
        attention_mask = (news_input != 0).to(torch.float32)
        V = self.plm(news_input, attention_mask)
        # before
        multihead_attn_output, _ = self.multihead_attention(V, V, V)
        return self.additive_attention(multihead_attn_output)
        # after
        padding_mask = news_input == 0
        multihead_attn_output, _ = self.multihead_attention(V, V, V, key_padding_mask=padding_mask)
        return self.additive_attention(multihead_attn_output, padding_mask)
        # end
