"""The decoder of a translation system, with global attention to the source (Luong et al., 2015)."""

import torch
import torch.nn as nn


def sequence_mask(lengths, max_len):
    """Creates a boolean mask from sequence lengths: (batch, max_len), True where there is a word."""
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


class GlobalAttention(nn.Module):
    """
    Takes the states of the decoder as queries over the context of the encoder.

        attn_type: dot, general or mlp
            dot: h_t · h_s
            general: h_t W h_s
            mlp: v tanh(W h_t + U h_s)
    """

    def __init__(self, dim, coverage=False, attn_type="general"):
        super().__init__()
        assert attn_type in ["dot", "general", "mlp"], "Please select a valid attention type."
        self.dim = dim
        self.attn_type = attn_type

        if attn_type == "general":
            self.linear_in = nn.Linear(dim, dim, bias=False)
        elif attn_type == "mlp":
            self.linear_context = nn.Linear(dim, dim, bias=False)
            self.linear_query = nn.Linear(dim, dim, bias=True)
            self.v = nn.Linear(dim, 1, bias=False)

        # mlp wants it with bias
        self.linear_out = nn.Linear(dim * 2, dim, bias=attn_type == "mlp")
        self.linear_cover = nn.Linear(1, dim, bias=False) if coverage else None
        self.sm = nn.Softmax(dim=-1)
        self.tanh = nn.Tanh()

    def score(self, h_t, h_s):
        """
        h_t: (batch, tgt_len, dim)
        h_s: (batch, src_len, dim)
        returns raw attention scores: (batch, tgt_len, src_len)
        """
        if self.attn_type in ["general", "dot"]:
            if self.attn_type == "general":
                h_t = self.linear_in(h_t)
            return torch.bmm(h_t, h_s.transpose(1, 2))
        wq, uh = self.linear_query(h_t), self.linear_context(h_s)
        return self.v(self.tanh(wq[:, :, None] + uh[:, None])).squeeze(-1)

    def forward(self, input, context, context_lengths=None, coverage=None):
        """
        input: (batch, tgt_len, dim)
        context: (batch, src_len, dim)
        context_lengths: (batch,)
        """
        if coverage is not None:
            assert self.linear_cover is not None, "the attention has no coverage"
            context = self.tanh(context + self.linear_cover(coverage.unsqueeze(-1)))

        align = self.score(input, context)
        if context_lengths is not None:
            mask = sequence_mask(context_lengths, context.size(1)).unsqueeze(1)
            align = align.masked_fill(~mask, -float("inf"))

        align_vectors = self.sm(align)
        c = torch.bmm(align_vectors, context)
        attn_h = self.linear_out(torch.cat([c, input], 2))
        if self.attn_type in ["general", "dot"]:
            attn_h = self.tanh(attn_h)
        return attn_h, align_vectors


class StdRNNDecoder(nn.Module):
    """
    An RNN over the target, then attention for all its states at once.

        hidden_size: size of the embeddings and the states
        num_layers: number of layers of the RNN
        attn_type: type of the attention
    """

    def __init__(self, hidden_size, num_layers=1, attn_type="general", dropout=0.0):
        super().__init__()
        self.rnn = nn.GRU(hidden_size, hidden_size, num_layers, batch_first=True, dropout=dropout)
        self.attn = GlobalAttention(hidden_size, attn_type=attn_type)
        self.dropout = nn.Dropout(dropout)

    def forward(self, emb, context, context_lengths):
        """
        emb: (batch, tgt_len, hidden_size), the embeddings of the target
        context: (batch, src_len, hidden_size), the states of the encoder
        context_lengths: (batch,), the lengths of the sources
        """
        rnn_output, _ = self.rnn(emb)
        # before
        attn_outputs, attn_scores = self.attn(rnn_output, context)
        # after
        attn_outputs, attn_scores = self.attn(rnn_output, context, context_lengths)
        # end
        return self.dropout(attn_outputs), {"std": attn_scores}
