"""The news encoder of LSTUR: the words of a title, a convolution over them, and an attention that pools them."""

import torch
from torch import nn


class AttLayer2(nn.Module):
    """Soft alignment attention implement.

    Attributes:
        dim (int): attention hidden dim
    """

    def __init__(self, input_dim, dim=200):
        super().__init__()
        self.dim = dim
        self.W = nn.Parameter(torch.empty(input_dim, dim))
        self.b = nn.Parameter(torch.zeros(dim))
        self.q = nn.Parameter(torch.empty(dim, 1))
        nn.init.xavier_uniform_(self.W)
        nn.init.xavier_uniform_(self.q)

    def forward(self, inputs, mask=None):
        """Core implementation of soft attention

        Args:
            inputs (torch.Tensor): input tensor, (batch, length, input_dim).
            mask (torch.Tensor): (batch, length), false at the words that are padding.

        Returns:
            torch.Tensor: weighted sum of input tensors, (batch, input_dim).
        """
        attention = torch.tanh(torch.matmul(inputs, self.W) + self.b)
        attention = torch.matmul(attention, self.q).squeeze(2)

        # before
        attention = torch.exp(attention)
        # after
        attention = torch.exp(attention)
        if mask is not None:
            attention = attention * mask.to(attention.dtype)
        # end

        attention_weight = attention / (torch.sum(attention, dim=-1, keepdim=True) + 1e-7)
        weighted_input = inputs * attention_weight.unsqueeze(2)
        return torch.sum(weighted_input, dim=1)


class TitleEncoder(nn.Module):
    """The vector of a title.

    Args:
        word_size (int): size of the vocabulary. 0 is the padding.
        word_emb_dim (int): size of the word embeddings.
        filter_num (int): number of filters of the convolution.
        window_size (int): words that a filter sees, odd.
        attention_hidden_dim (int): hidden size of the attention.
        dropout (float): of the embeddings and of the features.
    """

    def __init__(
        self,
        word_size,
        word_emb_dim=300,
        filter_num=400,
        window_size=3,
        attention_hidden_dim=200,
        dropout=0.2,
    ):
        super().__init__()
        self.embedding = nn.Embedding(word_size, word_emb_dim, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Conv1d(word_emb_dim, filter_num, window_size, padding=window_size // 2)
        self.attention = AttLayer2(filter_num, attention_hidden_dim)

    def forward(self, titles):
        """
        Args:
            titles (torch.Tensor): ids of the words, (batch, title_size), filled up with 0.
        """
        embedded_sequences_title = self.embedding(titles)

        y = self.dropout(embedded_sequences_title)
        y = torch.relu(self.conv(y.transpose(1, 2))).transpose(1, 2)
        y = self.dropout(y)
        return self.attention(y, mask=titles != 0)
