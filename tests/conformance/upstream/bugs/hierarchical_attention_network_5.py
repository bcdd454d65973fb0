"""The word level of a hierarchical attention network: the words of each sentence give its vector."""

import torch
import torch.nn.functional as F
from torch import nn


def attention_mul(rnn_outputs, att_weights):
    """Sum the outputs of all steps, each times its weights."""
    return torch.sum(rnn_outputs * att_weights, dim=0)


class WordRNN(nn.Module):
    def __init__(self, vocab_size, embedsize, hid_size):
        super().__init__()
        self.hid_size = hid_size
        # Word Encoder
        self.embed = nn.Embedding(vocab_size, embedsize)
        self.wordRNN = nn.GRU(embedsize, hid_size, bidirectional=True)
        # Word Attention
        self.wordattn = nn.Linear(2 * hid_size, 2 * hid_size)
        self.attn_combine = nn.Linear(2 * hid_size, 2 * hid_size, bias=False)

    def forward(self, inp, hid_state=None):
        """inp: the words of the sentences, of shape (words, sentences)."""
        emb_out = self.embed(inp)
        out_state, hid_state = self.wordRNN(emb_out, hid_state)

        word_annotation = torch.tanh(self.wordattn(out_state))
        # before
        attn = F.softmax(self.attn_combine(word_annotation), dim=1)
        # after
        attn = F.softmax(self.attn_combine(word_annotation), dim=0)
        # end

        return attention_mul(out_state, attn), hid_state
