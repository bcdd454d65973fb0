"""A layer of a BERT for DNA, whose tokens are k-mers, with the mask as the base class of all models makes it."""

import math

import torch
from torch import nn


class BertConfig:
    def __init__(
        self,
        vocab_size=69,
        hidden_size=32,
        num_attention_heads=4,
        attention_probs_dropout_prob=0.1,
        hidden_dropout_prob=0.1,
        is_decoder=False,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.hidden_dropout_prob = hidden_dropout_prob
        self.is_decoder = is_decoder


class ModuleUtilsMixin:
    @property
    def dtype(self):
        return next(self.parameters()).dtype

    def get_extended_attention_mask(self, attention_mask, input_shape):
        """Makes broadcastable attention mask and causal mask so that future and masked tokens are ignored.

        Arguments:
            attention_mask: torch.Tensor with 1 indicating tokens to ATTEND to
            input_shape: tuple, shape of input
        """
        if attention_mask.dim() == 3:
            extended_attention_mask = attention_mask[:, None, :, :]
        elif attention_mask.dim() == 2:
            extended_attention_mask = attention_mask[:, None, None, :]
            if self.config.is_decoder:
                seq_length = input_shape[1]
                causal_mask = torch.ones(seq_length, seq_length, device=attention_mask.device)
                extended_attention_mask = causal_mask.tril()[None, None] * extended_attention_mask
        else:
            raise ValueError(f"Wrong shape for attention_mask (shape {input_shape})")

        # Since we are adding it to the raw scores before the softmax, this is
        # effectively the same as removing these entirely.
        extended_attention_mask = extended_attention_mask.to(dtype=self.dtype)
        # before
        exteneded_attention_mask = (1.0 - extended_attention_mask) * torch.finfo(self.dtype).min
        # after
        extended_attention_mask = (1.0 - extended_attention_mask) * torch.finfo(self.dtype).min
        # end
        return extended_attention_mask


class BertSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = int(config.hidden_size / config.num_attention_heads)
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def transpose_for_scores(self, x):
        new_x_shape = (*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.view(*new_x_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        attention_probs = self.dropout(nn.Softmax(dim=-1)(attention_scores))
        context_layer = torch.matmul(attention_probs, value_layer).permute(0, 2, 1, 3).contiguous()
        return context_layer.view(*context_layer.size()[:-2], self.all_head_size)


class BertLayer(nn.Module, ModuleUtilsMixin):
    def __init__(self, config: BertConfig):
        super().__init__()
        self.config = config
        self.self = BertSelfAttention(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: 1 at tokens and 0 at padding, of shape (batch, tokens)"""
        if attention_mask is None:
            attention_mask = torch.ones(hidden_states.shape[:2], device=hidden_states.device)
        extended = self.get_extended_attention_mask(attention_mask, hidden_states.shape[:2])
        attention_output = self.dropout(self.dense(self.self(hidden_states, extended)))
        return self.LayerNorm(attention_output + hidden_states)
