"""The encoder layer of LightSeq, with the arrangement of queries, keys, and values that its kernels do."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


def ker_arrange_encself_qkv(ori_qkv, qkv_bias, batch_size, batch_seq_len, hidden_size, head_num):
    """Add the bias to the fused projection, and arrange it for the attention.

    Args:
        ori_qkv: [batch_size, batch_seq_len, 3 * hidden_size], the output of one gemm
        qkv_bias: [3, hidden_size]

    Returns:
        query, key, value: [batch_size, head_num, batch_seq_len, dim_per_head] each
    """
    dim_per_head = hidden_size // head_num
    qkv = ori_qkv + qkv_bias.flatten()
    # before
    qkv = qkv.view(3, batch_size, batch_seq_len, head_num, dim_per_head)
    return tuple(part.permute(0, 2, 1, 3) for part in qkv.unbind(dim=0))
    # after
    qkv = qkv.view(batch_size, batch_seq_len, 3, head_num, dim_per_head)
    return tuple(part.permute(0, 2, 1, 3) for part in qkv.unbind(dim=2))
    # end


def ker_arrange_atten_output(atten, batch_size, batch_seq_len, hidden_size):
    return atten.permute(0, 2, 1, 3).reshape(batch_size, batch_seq_len, hidden_size)


class LSTransformerEncoderLayer(nn.Module):
    """Initialize the Lightseq Transformer Encoder Layer.

    Arguments:
        hidden_size: size of the features
        intermediate_size: size within the feed-forward network, 4 * hidden_size by default
        nhead: number of heads
        attn_prob_dropout_ratio: dropout of the attention weights
        activation_dropout_ratio: dropout after the activation
        hidden_dropout_ratio: dropout before a residual is added
        pre_layer_norm: norm before attention and feed-forward network, or after
        activation_fn: relu or gelu
    """

    @dataclass
    class Config:
        hidden_size: int
        intermediate_size: int
        nhead: int
        attn_prob_dropout_ratio: float
        activation_dropout_ratio: float
        hidden_dropout_ratio: float
        pre_layer_norm: bool
        activation_fn: str

    def __init__(
        self,
        hidden_size,
        nhead,
        intermediate_size=None,
        attn_prob_dropout_ratio=0.1,
        activation_dropout_ratio=0.1,
        hidden_dropout_ratio=0.1,
        pre_layer_norm=True,
        activation_fn="relu",
    ):
        super().__init__()
        if hidden_size % nhead != 0:
            raise ValueError(f"hidden_size {hidden_size} is not a multiple of nhead {nhead}")
        self.config = self.Config(
            hidden_size,
            intermediate_size or 4 * hidden_size,
            nhead,
            attn_prob_dropout_ratio,
            activation_dropout_ratio,
            hidden_dropout_ratio,
            pre_layer_norm,
            activation_fn,
        )
        hs, ims = self.config.hidden_size, self.config.intermediate_size
        self.attn_qkvw = nn.Parameter(torch.empty(3 * hs, hs))
        self.attn_qkvb = nn.Parameter(torch.zeros(3, hs))
        self.attn_ow = nn.Parameter(torch.empty(hs, hs))
        self.attn_ob = nn.Parameter(torch.zeros(hs))
        self.attn_norm = nn.LayerNorm(hs)
        self.inter = nn.Linear(hs, ims)
        self.output = nn.Linear(ims, hs)
        self.ffn_norm = nn.LayerNorm(hs)
        # Each of the three projections is initialized as one of its own.
        nn.init.xavier_uniform_(self.attn_qkvw, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.attn_ow)

    def self_attention(self, x, encoder_padding_mask):
        batch_size, seq_len, hidden_size = x.shape
        q, k, v = ker_arrange_encself_qkv(
            F.linear(x, self.attn_qkvw),
            self.attn_qkvb,
            batch_size,
            seq_len,
            hidden_size,
            self.config.nhead,
        )
        correlation = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        if encoder_padding_mask is not None:
            padding = encoder_padding_mask.to(torch.bool)[:, None, None, :]
            correlation = correlation.masked_fill(padding, float("-inf"))
        probs = F.dropout(
            F.softmax(correlation, dim=-1), self.config.attn_prob_dropout_ratio, self.training
        )
        atten = ker_arrange_atten_output(torch.matmul(probs, v), batch_size, seq_len, hidden_size)
        return F.linear(atten, self.attn_ow, self.attn_ob)

    def ffn(self, x):
        act = F.gelu if self.config.activation_fn == "gelu" else F.relu
        x = F.dropout(act(self.inter(x)), self.config.activation_dropout_ratio, self.training)
        return self.output(x)

    def forward(self, hidden_states, encoder_padding_mask=None):
        """
        hidden_states, [batch_size, seq_len, hidden_size]
        encoder_padding_mask, [batch_size, seq_len], 1 for padding and 0 for tokens
        """
        for norm, layer in (
            (self.attn_norm, lambda x: self.self_attention(x, encoder_padding_mask)),
            (self.ffn_norm, self.ffn),
        ):
            residual = hidden_states
            if self.config.pre_layer_norm:
                hidden_states = norm(hidden_states)
            hidden_states = F.dropout(
                layer(hidden_states), self.config.hidden_dropout_ratio, self.training
            )
            hidden_states = residual + hidden_states
            if not self.config.pre_layer_norm:
                hidden_states = norm(hidden_states)
        return hidden_states
