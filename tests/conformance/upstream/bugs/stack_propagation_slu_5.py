"""The self-attention of a model that finds intents and slots in utterances."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class QKVAttention(nn.Module):
    """
    Attention mechanism based on Query-Key-Value architecture. When query == key == value, it's self-attention.
    """

    def __init__(self, query_dim, key_dim, value_dim, hidden_dim, output_dim, dropout_rate):
        super().__init__()

        # Record hyper-parameters.
        self.__hidden_dim = hidden_dim

        # Declare network structures.
        self.__query_layer = nn.Linear(query_dim, hidden_dim)
        self.__key_layer = nn.Linear(key_dim, hidden_dim)
        self.__value_layer = nn.Linear(value_dim, output_dim)
        self.__dropout_layer = nn.Dropout(p=dropout_rate)

    def forward(self, input_query, input_key, input_value, mask=None):
        """The forward propagation of attention.

        :param input_query: is query tensor, (b, n, d_q)
        :param input_key:  is key tensor, (b, m, d_k)
        :param input_value:  is value tensor, (b, m, d_v)
        :param mask: True at the keys that are words, (b, m)
        :return: attention based tensor, (b, n, d_h)
        """
        linear_query = self.__query_layer(input_query)
        linear_key = self.__key_layer(input_key)
        linear_value = self.__value_layer(input_value)

        score_tensor = torch.matmul(linear_query, linear_key.transpose(-2, -1))
        score_tensor = score_tensor / math.sqrt(self.__hidden_dim)
        if mask is not None:
            score_tensor = score_tensor.masked_fill(~mask.unsqueeze(1), float("-inf"))
        forced_tensor = torch.matmul(F.softmax(score_tensor, dim=-1), linear_value)
        return self.__dropout_layer(forced_tensor)


class SelfAttention(nn.Module):
    def __init__(self, input_dim, hidden_dim, output_dim, dropout_rate):
        super().__init__()

        # Record parameters.
        self.__dropout_layer = nn.Dropout(dropout_rate)
        self.__attention_layer = QKVAttention(
            input_dim, input_dim, input_dim, hidden_dim, output_dim, dropout_rate
        )

    def forward(self, input_x, seq_lens):
        """Attend within padded utterances, and return their words without the padding.

        :param input_x: embedded words, (batch_size, max_sent_len, input_dim)
        :param seq_lens: list of the lengths of the utterances
        :return: (total_word_num, output_dim)
        """
        dropout_x = self.__dropout_layer(input_x)
        # before
        attention_x = self.__attention_layer(dropout_x, dropout_x, dropout_x)
        # after
        lengths = torch.tensor(seq_lens, device=input_x.device)
        mask = torch.arange(input_x.size(1), device=input_x.device) < lengths[:, None]
        attention_x = self.__attention_layer(dropout_x, dropout_x, dropout_x, mask)
        # end

        return torch.cat([attention_x[i][: seq_lens[i], :] for i in range(len(seq_lens))], dim=0)
