"""A decoder layer of a tutorial on the transformer, whose heads are modules of their own."""

import torch
from torch import nn


class OneHeadAttention(nn.Module):
    def __init__(self, e_dim, h_dim):
        """
        :param e_dim: size of the inputs
        :param h_dim: size of the outputs
        """
        super().__init__()
        self.h_dim = h_dim
        self.lQ = nn.Linear(e_dim, h_dim)
        self.lK = nn.Linear(e_dim, h_dim)
        self.lV = nn.Linear(e_dim, h_dim)

    def forward(self, seq_inputs, encoder_input=None, mask=None):
        """
        :param seq_inputs: [batch, seq_lens, e_dim]
        :param encoder_input: outputs of the encoder, [batch, encoder_lens, e_dim], or None for self-attention
        :param mask: 0 where not to look, [1, seq_lens, seq_lens]
        """
        # before
        queries = seq_inputs if encoder_input is None else encoder_input
        Q = self.lQ(queries)
        K = self.lK(seq_inputs)
        V = self.lV(seq_inputs)
        # after
        keys = seq_inputs if encoder_input is None else encoder_input
        Q = self.lQ(seq_inputs)
        K = self.lK(keys)
        V = self.lV(keys)
        # end
        QK = torch.matmul(Q, K.permute(0, 2, 1))
        QK = QK / (self.h_dim**0.5)
        if mask is not None:
            QK = QK.masked_fill(mask == 0, -1e9)
        a = torch.softmax(QK, dim=-1)
        return torch.matmul(a, V)


class MultiHeadAttentionLayer(nn.Module):
    def __init__(self, e_dim, h_dim, n_heads):
        """
        :param e_dim: size of the inputs and outputs
        :param h_dim: size of the output of each head
        :param n_heads: number of heads
        """
        super().__init__()
        self.atte_layers = nn.ModuleList(OneHeadAttention(e_dim, h_dim) for _ in range(n_heads))
        self.l = nn.Linear(h_dim * n_heads, e_dim)

    def forward(self, seq_inputs, encoder_input=None, mask=None):
        outs = [one(seq_inputs, encoder_input, mask) for one in self.atte_layers]
        return self.l(torch.cat(outs, dim=-1))


class DecoderLayer(nn.Module):
    def __init__(self, e_dim, h_dim, n_heads, drop_rate=0.1):
        super().__init__()
        self.self_attention = MultiHeadAttentionLayer(e_dim, h_dim, n_heads)
        self.sa_LN = nn.LayerNorm(e_dim)
        self.interactive_attention = MultiHeadAttentionLayer(e_dim, h_dim, n_heads)
        self.ia_LN = nn.LayerNorm(e_dim)
        self.ff_layer = nn.Sequential(
            nn.Linear(e_dim, e_dim // 2),
            nn.ReLU(),
            nn.Dropout(drop_rate),
            nn.Linear(e_dim // 2, e_dim),
        )
        self.ff_LN = nn.LayerNorm(e_dim)
        self.drop_out = nn.Dropout(drop_rate)

    def forward(self, seq_inputs, encoder_input, mask):
        """
        :param seq_inputs: [batch, seq_lens, e_dim]
        :param encoder_input: outputs of the encoder, [batch, encoder_lens, e_dim]
        :param mask: 0 at the tokens to come, [1, seq_lens, seq_lens]
        """
        outs_ = self.self_attention(seq_inputs, mask=mask)
        outs = self.sa_LN(seq_inputs + self.drop_out(outs_))
        outs_ = self.interactive_attention(outs, encoder_input)
        outs = self.ia_LN(outs + self.drop_out(outs_))
        outs_ = self.ff_layer(outs)
        return self.ff_LN(outs + self.drop_out(outs_))
