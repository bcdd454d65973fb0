"""Sequence to Sequence models."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class SoftDotAttention(nn.Module):
    """Soft Dot Attention.

    Ref: http://www.aclweb.org/anthology/D15-1166
    Adapted from PyTorch OPEN NMT.
    """

    def __init__(self, dim):
        """Initialize layer."""
        super().__init__()
        self.linear_in = nn.Linear(dim, dim, bias=False)
        self.sm = nn.Softmax(dim=1)
        self.linear_out = nn.Linear(dim * 2, dim, bias=False)
        self.tanh = nn.Tanh()
        self.mask = None

    def forward(self, input, context, ctx_mask=None):
        """Propagate input through the network.

        input: batch x dim
        context: batch x sourceL x dim
        ctx_mask: batch x sourceL, True for words and False for padding
        """
        target = self.linear_in(input).unsqueeze(2)  # batch x dim x 1

        # Get attention
        attn = torch.bmm(context, target).squeeze(2)  # batch x sourceL
        # before
        attn = self.sm(attn)
        # after
        if ctx_mask is not None:
            attn = attn.masked_fill(~ctx_mask.bool(), -float("inf"))
        attn = self.sm(attn)
        # end
        attn3 = attn.view(attn.size(0), 1, attn.size(1))  # batch x 1 x sourceL

        weighted_context = torch.bmm(attn3, context).squeeze(1)  # batch x dim
        h_tilde = torch.cat((weighted_context, input), 1)
        h_tilde = self.tanh(self.linear_out(h_tilde))
        return h_tilde, attn


class LSTMAttentionDot(nn.Module):
    r"""A long short-term memory (LSTM) cell with attention."""

    def __init__(self, input_size, hidden_size, batch_first=True):
        """Initialize params."""
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.batch_first = batch_first
        self.input_weights = nn.Linear(input_size, 4 * hidden_size)
        self.hidden_weights = nn.Linear(hidden_size, 4 * hidden_size)
        self.attention_layer = SoftDotAttention(hidden_size)

    def forward(self, input, hidden, ctx, ctx_mask=None):
        """Propagate input through the network."""

        def recurrence(input, hidden):
            """Recurrence helper."""
            hx, cx = hidden  # batch x hidden_dim
            gates = self.input_weights(input) + self.hidden_weights(hx)
            ingate, forgetgate, cellgate, outgate = gates.chunk(4, 1)
            ingate = torch.sigmoid(ingate)
            forgetgate = torch.sigmoid(forgetgate)
            cellgate = torch.tanh(cellgate)
            outgate = torch.sigmoid(outgate)
            cy = (forgetgate * cx) + (ingate * cellgate)
            hy = outgate * torch.tanh(cy)
            h_tilde, alpha = self.attention_layer(hy, ctx, ctx_mask)
            return h_tilde, cy

        if self.batch_first:
            input = input.transpose(0, 1)
        output = []
        for i in range(input.size(0)):
            hidden = recurrence(input[i], hidden)
            output.append(hidden[0])
        output = torch.stack(output, 0)
        if self.batch_first:
            output = output.transpose(0, 1)
        return output, hidden


class Seq2SeqAttention(nn.Module):
    """Container module with an encoder, deocder, embeddings."""

    def __init__(
        self,
        src_emb_dim,
        trg_emb_dim,
        src_vocab_size,
        trg_vocab_size,
        src_hidden_dim,
        trg_hidden_dim,
        pad_token_src=0,
        pad_token_trg=0,
        bidirectional=True,
        nlayers=1,
        dropout=0.0,
    ):
        """Initialize model."""
        super().__init__()
        self.num_directions = 2 if bidirectional else 1
        self.pad_token_src = pad_token_src
        hidden = src_hidden_dim // self.num_directions
        self.src_embedding = nn.Embedding(src_vocab_size, src_emb_dim, pad_token_src)
        self.trg_embedding = nn.Embedding(trg_vocab_size, trg_emb_dim, pad_token_trg)
        self.encoder = nn.LSTM(
            src_emb_dim,
            hidden,
            nlayers,
            bidirectional=bidirectional,
            batch_first=True,
            dropout=dropout if nlayers > 1 else 0.0,
        )
        self.decoder = LSTMAttentionDot(trg_emb_dim, trg_hidden_dim, batch_first=True)
        self.ctx2ctx = nn.Linear(src_hidden_dim, trg_hidden_dim, bias=False)
        self.encoder2decoder = nn.Linear(src_hidden_dim, trg_hidden_dim)
        self.decoder2vocab = nn.Linear(trg_hidden_dim, trg_vocab_size)

    def encode(self, input_src, lengths):
        """Run the encoder over the words, and return its states for all of them and the last ones."""
        src_emb = self.src_embedding(input_src)
        packed = pack_padded_sequence(
            src_emb, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        src_h, (src_h_t, src_c_t) = self.encoder(packed)
        src_h, _ = pad_packed_sequence(src_h, batch_first=True, total_length=input_src.size(1))
        if self.num_directions == 2:
            return (
                src_h,
                torch.cat((src_h_t[-1], src_h_t[-2]), 1),
                torch.cat((src_c_t[-1], src_c_t[-2]), 1),
            )
        return src_h, src_h_t[-1], src_c_t[-1]

    def forward(self, input_src, input_trg):
        """Propogate input through the network.

        input_src: batch x sourceL, padded at the end
        input_trg: batch x targetL
        """
        ctx_mask = input_src != self.pad_token_src
        src_h, h_t, c_t = self.encode(input_src, ctx_mask.sum(1))
        decoder_init_state = torch.tanh(self.encoder2decoder(h_t))
        ctx = self.ctx2ctx(src_h)

        trg_emb = self.trg_embedding(input_trg)
        trg_h, _ = self.decoder(
            trg_emb, (decoder_init_state, self.encoder2decoder(c_t)), ctx, ctx_mask
        )
        return self.decoder2vocab(trg_h)

    def decode(self, logits):
        """Return probability distribution over words."""
        return F.softmax(logits, dim=-1)
