"""A Q-Former between an encoder of molecules and a language model."""

from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class BertAttention(nn.Module):
    """Attention of the Q-Former, with the output layer, the residual and the norm."""

    def __init__(self, hidden_size, num_attention_heads, encoder_width=None, dropout=0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        kv_size = encoder_width or hidden_size
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(kv_size, hidden_size)
        self.value = nn.Linear(kv_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)

    def transpose_for_scores(self, x):
        x = x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: Optional[torch.Tensor] = None,
        encoder_attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(context))
        value_layer = self.transpose_for_scores(self.value(context))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / self.attention_head_size**0.5
        if encoder_attention_mask is not None:
            attention_scores = attention_scores + encoder_attention_mask
        attention_probs = self.dropout(attention_scores.softmax(dim=-1))

        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).flatten(2)
        return self.LayerNorm(self.dropout(self.dense(context_layer)) + hidden_states)


class QFormerLayer(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, encoder_width):
        super().__init__()
        self.attention = BertAttention(hidden_size, num_attention_heads)
        self.crossattention = BertAttention(hidden_size, num_attention_heads, encoder_width)
        self.intermediate_query = nn.Linear(hidden_size, 2 * hidden_size)
        self.output_query = nn.Linear(2 * hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)

    def invert_attention_mask(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """1 for tokens to attend to, 0 for others."""
        return (1.0 - mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min

    def forward(self, query_embeds, encoder_hidden_states, encoder_attention_mask):
        mask = self.invert_attention_mask(encoder_attention_mask, query_embeds.dtype)
        hidden_states = self.attention(query_embeds)
        hidden_states = self.crossattention(hidden_states, encoder_hidden_states, mask)
        feed_forward = self.output_query(F.gelu(self.intermediate_query(hidden_states)))
        return self.LayerNorm(feed_forward + hidden_states)


class Blip2Qformer(nn.Module):
    """
    batch_node: the atoms of each molecule, as the encoder returns them, of shape (batch, atoms, unimol_width)
    batch_mask: where the encoder has padded, of shape (batch, atoms)
    """

    def __init__(
        self,
        unimol_width: int = 24,
        hidden_size: int = 32,
        num_attention_heads: int = 4,
        num_query_token: int = 3,
        embed_dim: int = 16,
    ):
        super().__init__()
        self.ln_graph = nn.LayerNorm(unimol_width)
        self.query_tokens = nn.Parameter(torch.randn(1, num_query_token, hidden_size) * 0.02)
        self.Qformer = QFormerLayer(hidden_size, num_attention_heads, unimol_width)
        self.graph_proj = nn.Linear(hidden_size, embed_dim)

    def forward(self, batch_node: torch.Tensor, batch_mask: torch.Tensor) -> torch.Tensor:
        batch_node = self.ln_graph(batch_node)
        query_tokens = self.query_tokens.expand(batch_node.shape[0], -1, -1)
        # before
        atoms = batch_mask
        # after
        atoms = ~batch_mask
        # end
        query_output = self.Qformer(
            query_tokens,
            encoder_hidden_states=batch_node,
            encoder_attention_mask=atoms,
        )
        return F.normalize(self.graph_proj(query_output), dim=-1)
