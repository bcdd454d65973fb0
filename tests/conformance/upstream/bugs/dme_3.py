"""Sentence encoders over dynamic meta-embeddings: words are embedded by several tables at once."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def run_rnn(rnn, x, lengths):
    """Run an RNN over padded sequences of shape (seq_len, batch, dim)."""
    packed = pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False)
    return pad_packed_sequence(rnn(packed)[0], total_length=x.size(0))[0]


class MetaEmbedder(nn.Module):
    """
    Projects the embeddings of all tables to `proj_dim` and sums them with attention.

    attnnet: "no_dep_softmax" (the weights of a word depend on its own embeddings, DME) or
        "dep_softmax" (they depend on the words around it too, CDME).
    """

    def __init__(self, vocab_size, emb_dims, proj_dim, attnnet, emb_dropout):
        super().__init__()
        self.n_emb = len(emb_dims)
        self.attnnet = attnnet
        self.emb_dropout = emb_dropout
        self.embeddings = nn.ModuleList([nn.Embedding(vocab_size, dim) for dim in emb_dims])
        self.projectors = nn.ModuleList([nn.Linear(dim, proj_dim) for dim in emb_dims])
        if attnnet == "no_dep_softmax":
            self.attn_1 = nn.Linear(proj_dim, 1)
        elif attnnet == "dep_softmax":
            self.attn_0 = nn.LSTM(proj_dim, 2, bidirectional=True)
            self.attn_1 = nn.Linear(4, 1)
        else:
            raise ValueError(f"unknown attnnet: {attnnet}")
        self.m_attn = None

    def forward(self, words, lengths):
        projected = [proj(emb(words)) for emb, proj in zip(self.embeddings, self.projectors)]
        # seq_len x batch x n_emb x proj_dim
        embedded = torch.stack(projected, 2)

        if self.attnnet == "no_dep_softmax":
            scores = self.attn_1(embedded)
        else:
            seq_len, batch_size, n_emb, proj_dim = embedded.size()
            flat = embedded.reshape(seq_len, batch_size * n_emb, proj_dim)
            states = run_rnn(self.attn_0, flat, lengths.repeat_interleave(n_emb))
            scores = self.attn_1(states).view(seq_len, batch_size, n_emb, 1)
        self.m_attn = F.softmax(scores, dim=2)

        out = torch.sum(self.m_attn * embedded, 2)
        out = F.relu(out)
        if self.emb_dropout > 0.0:
            # before
            out = F.dropout(out, p=self.emb_dropout)
            # after
            out = F.dropout(out, p=self.emb_dropout, training=self.training)
            # end
        return out


class SentenceEncoder(nn.Module):
    """
    A BiLSTM over the meta-embeddings, with max pooling.

    words: (seq_len, batch), sentences padded at the end.
    lengths: (batch,), the number of words of each sentence.
    """

    def __init__(
        self,
        vocab_size,
        emb_dims=(300, 300),
        proj_dim=256,
        rnn_dim=512,
        attnnet="no_dep_softmax",
        emb_dropout=0.2,
    ):
        super().__init__()
        self.embedder = MetaEmbedder(vocab_size, emb_dims, proj_dim, attnnet, emb_dropout)
        self.rnn = nn.LSTM(proj_dim, rnn_dim, bidirectional=True)

    def forward(self, words, lengths):
        out = run_rnn(self.rnn, self.embedder(words, lengths), lengths)
        positions = torch.arange(words.size(0), device=words.device)
        padding = positions[:, None] >= lengths[None, :]
        return out.masked_fill(padding[:, :, None], float("-inf")).max(0)[0]


class NLIClassifier(nn.Module):
    """Tells whether the first sentence of a pair entails, contradicts or is neutral to the second."""

    def __init__(self, encoder_args, rnn_dim, fc_dim=512, n_classes=3):
        super().__init__()
        self.encoder = SentenceEncoder(rnn_dim=rnn_dim, **encoder_args)
        self.classifier = nn.Sequential(
            nn.Linear(4 * 2 * rnn_dim, fc_dim), nn.ReLU(), nn.Linear(fc_dim, n_classes)
        )

    def forward(self, s1, s1_len, s2, s2_len):
        u, v = self.encoder(s1, s1_len), self.encoder(s2, s2_len)
        return self.classifier(torch.cat([u, v, (u - v).abs(), u * v], dim=1))
