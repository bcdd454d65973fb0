"""The attention of the labels of a classifier to the tokens of a text."""

import torch
import torch.nn.functional as F
from torch import nn


class LabelAttentionClassifier(nn.Module):
    def __init__(self, embedding_dim: int, num_classes: int = 6, n_head: int = 2):
        super().__init__()
        self.num_classes = num_classes
        self.n_head = n_head
        self.head_dim = embedding_dim // n_head
        self.label_embeds = nn.Embedding(num_classes, embedding_dim)
        self.c_q = nn.Linear(embedding_dim, embedding_dim, bias=False)
        self.c_k = nn.Linear(embedding_dim, embedding_dim, bias=False)
        self.c_v = nn.Linear(embedding_dim, embedding_dim, bias=False)
        self.c_proj = nn.Linear(embedding_dim, embedding_dim, bias=False)

    def forward(self, token_embeddings: torch.Tensor, attention_mask: torch.Tensor):
        """
        Args:
            token_embeddings: tensor of shape (batch, seq_len, embedding_dim).
            attention_mask: tensor of shape (batch, seq_len), 1 at real tokens and 0 at padding.

        Returns:
            The embeddings of the classes, of shape (batch, num_classes, embedding_dim).
        """
        B, T, C = token_embeddings.size()
        labels = self.label_embeds.weight.unsqueeze(0).expand(B, -1, -1)
        q = self.c_q(labels).view(B, self.num_classes, self.n_head, self.head_dim).transpose(1, 2)
        k = self.c_k(token_embeddings).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        v = self.c_v(token_embeddings).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        # before
        attn_mask = attention_mask == 0
        # after
        attn_mask = attention_mask != 0
        # end
        attn_mask = attn_mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        y = y.transpose(1, 2).contiguous().view(B, self.num_classes, C)
        return self.c_proj(y)
