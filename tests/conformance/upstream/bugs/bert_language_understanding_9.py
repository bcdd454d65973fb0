"""
multi head attention.
1.linearly project the queries, keys and values h times (with different, learned linear projections to d_k, d_k, d_v dimensions)
2.scaled dot product attention for each projected version of Q, K, V
3.concatenated result
4.linear projection to get final result

three kinds of usage:
1. attention for encoder
2. attention for decoder (need a mask to pay attention for only known positions)
3. attention as bridge of encoder and decoder
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    """multi head attention"""

    def __init__(self, d_model, d_k, d_v, h, sequence_length=64, type=None, dropout_rate=0.1):
        """
        :param d_model: dimension of the model, of input and output
        :param d_k: dimension of queries and keys of one head
        :param d_v: dimension of values of one head
        :param h: number of heads
        :param sequence_length: the most tokens there may be
        :param type: 'encoder', 'decoder' or 'encoder_decoder_attention'. a decoder sees no later token
        :param dropout_rate: dropout of the attention weights
        """
        super().__init__()
        self.d_model = d_model
        self.d_k = d_k
        self.d_v = d_v
        self.h = h
        self.sequence_length = sequence_length
        self.type = type
        self.dropout_rate = dropout_rate
        self.Q_projection = nn.Linear(d_model, h * d_k)
        self.K_projection = nn.Linear(d_model, h * d_k)
        self.V_projection = nn.Linear(d_model, h * d_v)
        self.output_projection = nn.Linear(h * d_v, d_model)
        if type == "decoder":
            self.register_buffer("mask", self.get_mask(sequence_length), persistent=False)

    @staticmethod
    def get_mask(sequence_length):
        """:return: [sequence_length,sequence_length]. 0 for what may be seen, -inf for later tokens"""
        return torch.full((sequence_length, sequence_length), float("-inf")).triu(1)

    def multi_head_attention_fn(self, Q, K_s, V_s, input_mask=None):
        """
        multi head attention
        :param Q: query.  shape:[batch,sequence_length,d_model]
        :param K_s: keys. shape:[batch,sequence_length,d_model]
        :param V_s: values. shape:[batch,sequence_length,d_model]
        :param input_mask: [batch,sequence_length], 1 for tokens and 0 for padding among the keys
        :return: result of attention. shape:[batch,sequence_length,d_model]
        """
        # 1. linearly project, and split into heads. [batch,h,sequence_length,d_k]
        Q_projected = torch.stack(self.Q_projection(Q).split(self.d_k, dim=2), dim=1)
        K_projected = torch.stack(self.K_projection(K_s).split(self.d_k, dim=2), dim=1)
        V_projected = torch.stack(self.V_projection(V_s).split(self.d_v, dim=2), dim=1)
        # 2. scaled dot product attention. [batch,h,sequence_length,d_v]
        dot_product = self.scaled_dot_product_attention_batch(
            Q_projected, K_projected, V_projected, input_mask
        )
        # 3. concatenated. [batch,sequence_length,h*d_v]
        dot_product = torch.cat(dot_product.unbind(dim=1), dim=2)
        # 4. linear projection
        return self.output_projection(dot_product)

    def scaled_dot_product_attention_batch(self, Q, K_s, V_s, input_mask=None):
        """
        :param Q: query.  shape:[batch,h,sequence_length,d_k]
        :param K_s: keys. shape:[batch,h,sequence_length,d_k]
        :param V_s: values. shape:[batch,h,sequence_length,d_v]
        :return: result of scaled dot product attention. shape:[batch,h,sequence_length,d_v]
        """
        # dot product of Q,K, scaled. [batch,h,sequence_length,sequence_length]
        dot_product = torch.matmul(Q, K_s.transpose(2, 3))
        # before
        dot_product = dot_product * (1.0 / math.sqrt(float(self.d_model)))
        # after
        dot_product = dot_product * (1.0 / math.sqrt(float(self.d_k)))
        # end
        if self.type == "decoder":
            length = Q.shape[2]
            dot_product = dot_product + self.mask[:length, :length]
        if input_mask is not None:
            padding = (input_mask == 0)[:, None, None, :]
            dot_product = dot_product.masked_fill(padding, float("-inf"))
        # get weights, and weighted sum of the values
        p = F.softmax(dot_product, dim=-1)
        p = F.dropout(p, self.dropout_rate, training=self.training)
        return torch.matmul(p, V_s)

    def forward(self, Q, K_s, V_s, input_mask=None):
        return self.multi_head_attention_fn(Q, K_s, V_s, input_mask)
