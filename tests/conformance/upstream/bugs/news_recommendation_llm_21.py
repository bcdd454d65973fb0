"""The news encoder of a recommender on top of a pretrained language model."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class PretrainedLanguageModel(nn.Module):
    """A stand-in for AutoModel: an embedding and one layer of attention."""

    def __init__(self, vocab_size: int, hidden_size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        x = self.embeddings(input_ids)  # [batch_size, seq_len, hidden_size]
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        keep = None if attention_mask is None else attention_mask.bool()[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.norm(x + self.dense(out.transpose(1, 2).flatten(2)))


class AdditiveAttention(nn.Module):
    def __init__(self, input_dim: int, hidden_dim: int):
        super().__init__()
        self.attention = nn.Sequential(
            nn.Linear(input_dim, hidden_dim), nn.Tanh(), nn.Linear(hidden_dim, 1, bias=False)
        )

    def forward(
        self, input_val: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        scores = self.attention(input_val)  # [batch_size, seq_len, 1]
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask.bool().unsqueeze(-1), float("-inf"))
        return input_val * F.softmax(scores, dim=1)


class PLMBasedNewsEncoder(nn.Module):
    """Encodes the title of a news article, of which the tokenizer pads the end."""

    def __init__(
        self,
        vocab_size: int = 64,
        plm_hidden_size: int = 32,
        multihead_attn_num_heads: int = 4,
        additive_attn_hidden_dim: int = 20,
    ):
        super().__init__()
        self.plm = PretrainedLanguageModel(vocab_size, plm_hidden_size, multihead_attn_num_heads)
        self.multihead_attention = nn.MultiheadAttention(
            embed_dim=plm_hidden_size, num_heads=multihead_attn_num_heads, batch_first=True
        )
        self.additive_attention = AdditiveAttention(plm_hidden_size, additive_attn_hidden_dim)

    def forward(self, input_val: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """
        input_val: token ids, [batch_size, seq_len]
        attention_mask: 1 at tokens, 0 at padding, [batch_size, seq_len]
        """
        # before
        V = self.plm(input_val)
        multihead_attn_output, _ = self.multihead_attention(V, V, V)
        additive_attn_output = self.additive_attention(multihead_attn_output)
        # after
        V = self.plm(input_val, attention_mask=attention_mask)
        multihead_attn_output, _ = self.multihead_attention(
            V, V, V, key_padding_mask=attention_mask == 0
        )
        additive_attn_output = self.additive_attention(multihead_attn_output, attention_mask)
        # end
        return torch.sum(additive_attn_output, dim=1)  # [batch_size, hidden_size]
