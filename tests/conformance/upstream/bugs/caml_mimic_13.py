"""
Convolutional attention for the codes of clinical notes: each code attends over the words of the note.
"""

from math import floor

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.init import xavier_uniform_


class BaseModel(nn.Module):
    def __init__(self, Y, vocab_size, embed_size=100, dropout=0.5):
        super().__init__()
        self.Y = Y
        self.embed_size = embed_size
        self.embed_drop = nn.Dropout(p=dropout)
        # 0 is the padding, the last row is for words that are not known
        self.embed = nn.Embedding(vocab_size + 2, embed_size, padding_idx=0)


class BOWPool(BaseModel):
    """
    Logistic regression over the mean or max of the embeddings
    """

    def __init__(self, Y, vocab_size, embed_size=100, dropout=0.5, pool="max"):
        super().__init__(Y, vocab_size, embed_size, dropout)
        self.final = nn.Linear(embed_size, Y)
        xavier_uniform_(self.final.weight)
        self.pool = pool

    def forward(self, x):
        words = (x != 0).unsqueeze(2)
        emb = self.embed_drop(self.embed(x))
        if self.pool == "max":
            emb = emb.masked_fill(~words, -float("inf")).max(dim=1)[0]
        else:
            emb = emb.sum(dim=1) / words.sum(dim=1)
        return self.final(emb)


class ConvAttnPool(BaseModel):
    """
    x: batch of notes, each a list of word ids; shorter notes are padded with 0
    returns the logits of the Y codes
    """

    def __init__(self, Y, vocab_size, kernel_size, num_filter_maps, embed_size=100, dropout=0.5):
        super().__init__(Y, vocab_size, embed_size, dropout)
        assert kernel_size % 2 == 1, "a word has one feature, so the kernel is odd"
        # initialize conv layer as in 2.1
        self.conv = nn.Conv1d(
            self.embed_size, num_filter_maps, kernel_size, padding=floor(kernel_size / 2)
        )
        xavier_uniform_(self.conv.weight)

        # context vectors for computing attention as in 2.2
        self.U = nn.Linear(num_filter_maps, Y)
        xavier_uniform_(self.U.weight)

        # final layer: create a matrix to use for the Y binary classifiers as in 2.3
        self.final = nn.Linear(num_filter_maps, Y)
        xavier_uniform_(self.final.weight)

    def forward(self, x, get_attention=False):
        pad = (x == 0).unsqueeze(1)
        # get embeddings and apply dropout
        x = self.embed_drop(self.embed(x))
        x = x.transpose(1, 2)

        # apply convolution and nonlinearity (tanh)
        x = torch.tanh(self.conv(x).transpose(1, 2))
        # apply attention: (batch, Y, words)
        scores = self.U.weight.matmul(x.transpose(1, 2))
        # before
        alpha = F.softmax(scores, dim=2)
        # after
        alpha = F.softmax(scores.masked_fill(pad, -float("inf")), dim=2)
        # end
        # document representations are weighted sums using the attention
        m = alpha.matmul(x)
        # final layer classification
        y = self.final.weight.mul(m).sum(dim=2).add(self.final.bias)
        if get_attention:
            return y, alpha
        return y
