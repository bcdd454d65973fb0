"""Decoders that attend to an encoder's tokens in each step, in the styles of tutorials, papers and toolkits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BahdanauStep(nn.Module):
    """One step of a decoder with additive attention (LSTM, tuple state)."""

    def __init__(self, vocab=20, emb=16, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)
        self.rnn = nn.LSTM(emb + hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, token, state, encoder_outputs, mask=None):
        h, c = state
        scores = self.v(
            torch.tanh(self.query(h[-1]).unsqueeze(1) + self.key(encoder_outputs))
        ).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs)
        step, state = self.rnn(torch.cat([self.embed(token).unsqueeze(1), context], -1), (h, c))
        return self.out(step.squeeze(1)), state, weights


class LuongStep(nn.Module):
    """GRU, time first: input (1, B) ids, last_hidden (layers, B, H), encoder_outputs (S, B, H)."""

    def __init__(self, hidden_size=24, output_size=30, n_layers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.drop = nn.Dropout(dropout)
        self.gru = nn.GRU(hidden_size, hidden_size, n_layers, dropout=dropout)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, input_step, last_hidden, encoder_outputs):
        embedded = self.drop(self.embedding(input_step))
        rnn_output, hidden = self.gru(embedded, last_hidden)
        energies = torch.sum(rnn_output * encoder_outputs, dim=2).t()
        attn = F.softmax(energies, dim=1).unsqueeze(1)
        context = attn.bmm(encoder_outputs.transpose(0, 1))
        joined = torch.cat((rnn_output.squeeze(0), context.squeeze(1)), 1)
        return F.softmax(self.out(torch.tanh(self.concat(joined))), dim=1), hidden


class CellStep(nn.Module):
    """LSTMCell with features of an image: forward(prev_word_emb, h, c, features)."""

    def __init__(self, embed_dim=12, hidden_dim=20, feature_dim=28, att=16):
        super().__init__()
        self.wf = nn.Linear(feature_dim, att)
        self.wh = nn.Linear(hidden_dim, att)
        self.score = nn.Linear(att, 1)
        self.cell = nn.LSTMCell(embed_dim + feature_dim, hidden_dim)

    def forward(self, word, h, c, features):
        e = self.score(F.relu(self.wf(features) + self.wh(h)[:, None])).squeeze(2)
        alpha = e.softmax(dim=1)
        ctx = (features * alpha[..., None]).sum(1)
        h, c = self.cell(torch.cat([word, ctx], 1), (h, c))
        return h, c, alpha


class StateStep(nn.Module):
    """state = (encoder outputs, hidden, lengths); X (B, steps) ids."""

    def __init__(self, vocab_size=17, embed_size=8, num_hiddens=16, num_layers=2):
        super().__init__()
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = nn.GRU(embed_size + num_hiddens, num_hiddens, num_layers)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def forward(self, X, state):
        enc_outputs, hidden_state, enc_valid_lens = state
        X = self.embedding(X).permute(1, 0, 2)
        outs = []
        for x in X:
            q = hidden_state[-1].unsqueeze(1)
            scores = self.w_v(
                torch.tanh(self.W_q(q).unsqueeze(2) + self.W_k(enc_outputs).unsqueeze(1))
            ).squeeze(-1)
            if enc_valid_lens is not None:
                keep = torch.arange(scores.shape[-1])[None] < enc_valid_lens[:, None]
                scores = scores.masked_fill(~keep[:, None], -1e6)
            context = torch.bmm(scores.softmax(-1), enc_outputs)
            out, hidden_state = self.rnn(
                torch.cat((context, x.unsqueeze(1)), -1).permute(1, 0, 2), hidden_state
            )
            outs.append(out)
        outputs = self.dense(torch.cat(outs, dim=0))
        return outputs.permute(1, 0, 2), [enc_outputs, hidden_state, enc_valid_lens]


class HiddenStep(nn.Module):
    """hidden (B, dec), encoder_outputs (S, B, 2 enc), input (B,), mask (B, S)."""

    def __init__(self, output_dim=21, emb_dim=10, enc_hid_dim=12, dec_hid_dim=18):
        super().__init__()
        self.attn = nn.Linear(enc_hid_dim * 2 + dec_hid_dim, dec_hid_dim)
        self.v = nn.Linear(dec_hid_dim, 1, bias=False)
        self.embedding = nn.Embedding(output_dim, emb_dim)
        self.rnn = nn.GRU(enc_hid_dim * 2 + emb_dim, dec_hid_dim)
        self.fc_out = nn.Linear(enc_hid_dim * 2 + dec_hid_dim + emb_dim, output_dim)

    def forward(self, input, hidden, encoder_outputs, mask):
        embedded = self.embedding(input.unsqueeze(0))
        src_len = encoder_outputs.shape[0]
        h = hidden.unsqueeze(1).repeat(1, src_len, 1)
        enc = encoder_outputs.permute(1, 0, 2)
        energy = torch.tanh(self.attn(torch.cat((h, enc), dim=2)))
        attention = self.v(energy).squeeze(2).masked_fill(mask == 0, -1e10)
        a = F.softmax(attention, dim=1).unsqueeze(1)
        weighted = torch.bmm(a, enc).permute(1, 0, 2)
        output, hidden = self.rnn(torch.cat((embedded, weighted), dim=2), hidden.unsqueeze(0))
        pred = self.fc_out(
            torch.cat((output.squeeze(0), weighted.squeeze(0), embedded.squeeze(0)), dim=1)
        )
        return pred, hidden.squeeze(0), a.squeeze(1)


class PassedOn(nn.Module):
    """state goes to the LSTM as it is; input feeding."""

    def __init__(self, emb=14, hidden=22):
        super().__init__()
        self.rnn = nn.LSTM(emb + hidden, hidden, num_layers=2, batch_first=True)
        self.proj = nn.Linear(hidden, hidden, bias=False)
        self.join = nn.Linear(hidden * 2, hidden)

    def forward(self, emb_t, h_tilde, h_prev, enc_out, src_mask=None):
        x = torch.cat([emb_t, h_tilde], dim=-1)
        y, state = self.rnn(x, h_prev)
        w = torch.bmm(self.proj(y), enc_out.transpose(1, 2))
        if src_mask is not None:
            w = w.masked_fill(src_mask.unsqueeze(1), -float("inf"))
        w = w.softmax(-1)
        ctx = torch.bmm(w, enc_out)
        return torch.tanh(self.join(torch.cat([y, ctx], -1))), state


class InnerAttention(nn.Module):
    def __init__(self, q, k, units):
        super().__init__()
        self.q, self.k, self.e = nn.Linear(q, units), nn.Linear(k, units), nn.Linear(units, 1)

    def forward(self, query, keys, mask):
        e = self.e(torch.tanh(self.q(query)[:, None] + self.k(keys)))[..., 0]
        e = e.masked_fill(~mask, -1e9)
        return e.softmax(1)


class Speller(nn.Module):
    """state[0], state[1] with indices; two LSTM cells; features (B, T, F)."""

    def __init__(self, vocab=19, embed=8, hidden=18, listener=26):
        super().__init__()
        self.embed = nn.Embedding(vocab, embed)
        self.attention = InnerAttention(hidden, listener, 15)
        self.cell = nn.LSTMCell(embed + listener, hidden)
        self.out = nn.Linear(hidden + listener, vocab)

    def forward(
        self, y: Tensor, state: tuple[Tensor, Tensor], listener_features: Tensor, mask: Tensor
    ):
        hidden, cell = state[0], state[1]
        a = self.attention(hidden, listener_features, mask)
        ctx = torch.einsum("bt,btf->bf", a, listener_features)
        hidden, cell = self.cell(torch.cat([self.embed(y), ctx], dim=1), (hidden, cell))
        return self.out(torch.cat([hidden, ctx], dim=1)).log_softmax(-1), (hidden, cell), a


class TutorialStep(nn.Module):
    """input (B, 1), hidden (1, B, H), encoder_outputs (B, T, H)."""

    def __init__(self, hidden_size=20, output_size=15):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, input, hidden, encoder_outputs):
        embedded = self.embedding(input)
        query = hidden.permute(1, 0, 2)
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(encoder_outputs)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = F.softmax(scores, dim=-1)
        context = torch.bmm(weights, encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, weights


class FourArgs(nn.Module):
    """LSTM: input (B,), hidden (1, B, H), cell (1, B, H), encoder_outputs (S, B, 2H)."""

    def __init__(self, output_dim=23, emb_dim=10, hid=16):
        super().__init__()
        self.emb = nn.Embedding(output_dim, emb_dim)
        self.rnn = nn.LSTM(2 * hid + emb_dim, hid)
        self.energy = nn.Linear(hid * 3, 1)
        self.fc = nn.Linear(hid, output_dim)

    def forward(self, x, encoder_states, hidden, cell):
        x = x.unsqueeze(0)
        e = self.emb(x)
        S = encoder_states.shape[0]
        hr = hidden.repeat(S, 1, 1)
        energy = F.relu(self.energy(torch.cat((hr, encoder_states), dim=2)))
        attention = F.softmax(energy, dim=0).permute(1, 2, 0)
        context = torch.bmm(attention, encoder_states.permute(1, 0, 2)).permute(1, 0, 2)
        out, (hidden, cell) = self.rnn(torch.cat((context, e), dim=2), (hidden, cell))
        return self.fc(out).squeeze(0), hidden, cell


class PrimeStep(nn.Module):
    """GRU, additive attention: its widths are the numbers that a check would take for its own tokens."""

    def __init__(self, embedding_size=7, hidden_size=11, encoder_size=13, attention_size=17):
        super().__init__()
        self.cell = nn.GRUCell(embedding_size + encoder_size, hidden_size)
        self.query = nn.Linear(hidden_size, attention_size, bias=False)
        self.key = nn.Linear(encoder_size, attention_size, bias=False)
        self.score = nn.Linear(attention_size, 1, bias=False)

    def forward(self, embedded, hidden, encoder_outputs):
        energy = torch.tanh(self.query(hidden).unsqueeze(1) + self.key(encoder_outputs))
        weights = torch.softmax(self.score(energy).squeeze(2), dim=1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return self.cell(torch.cat([embedded, context], dim=1), hidden), weights


class Encoder(nn.Module):
    """Self-attention over the outputs of a recurrent layer: no step, although it takes a state."""

    def __init__(self, d_model=16):
        super().__init__()
        self.rnn = nn.GRU(d_model, d_model, num_layers=2, batch_first=True)
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, hidden):
        y, _ = self.rnn(x, hidden)
        scores = self.q(y) @ self.k(y).transpose(1, 2) / y.shape[-1] ** 0.5
        return torch.softmax(scores, -1) @ y
