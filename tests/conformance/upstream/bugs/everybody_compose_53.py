"""A recurrent decoder that attends to a rhythm in order to choose its notes."""

import torch
from torch import nn


class AttentionRNN(nn.Module):
    """
    num_notes: how many notes there are to choose from.
    embed_dim: size of a note, and of each direction of the encoded rhythm.
    hidden_dim: size of the decoder's state.
    """

    def __init__(self, num_notes, embed_dim, hidden_dim):
        super().__init__()
        self.num_notes = num_notes
        self.embed_dim = embed_dim
        self.hidden_dim = hidden_dim

        # a beat is the time since the last one and how long it lasts
        self.beat_encoder = nn.LSTM(2, embed_dim, batch_first=True, bidirectional=True)
        self.note_embedding = nn.Embedding(num_notes, embed_dim)

        self.score = nn.Sequential(
            nn.Linear(2 * embed_dim + hidden_dim, embed_dim),
            nn.LeakyReLU(),
            nn.Linear(embed_dim, 1),
            # before
            nn.Softmax(dim=2),
            # after
            nn.Softmax(dim=1),
            # end
        )

        self.mix = nn.Sequential(nn.Linear(3 * embed_dim, 3 * embed_dim), nn.LeakyReLU())
        self.decoder = nn.LSTM(3 * embed_dim, hidden_dim, batch_first=True)
        self.to_notes = nn.Linear(hidden_dim, num_notes)

    def attend(self, beats, hidden):
        """Return what the decoder reads from the rhythm, of shape (batch, 1, 2 * embed_dim)."""
        batch_size, seq_len, _ = beats.shape
        hidden = hidden.transpose(0, 1).expand(batch_size, seq_len, self.hidden_dim)
        attn = self.score(torch.cat((hidden, beats), dim=-1))  # (batch, seq_len, 1)
        return torch.bmm(attn.transpose(1, 2), beats)

    def step(self, beats, y_prev, state):
        context = self.attend(beats, state[0])
        x = torch.cat((context, self.note_embedding(y_prev)), dim=-1)
        x = x + self.mix(x)
        x, state = self.decoder(x, state)
        return self.to_notes(x), state

    def forward(self, x, y_prev):
        """
        x: beats, of shape (batch, seq_len, 2).
        y_prev: the note before each beat, of shape (batch, seq_len).
        """
        batch_size, seq_len, _ = x.shape
        beats, _ = self.beat_encoder(x)
        zeros = x.new_zeros(1, batch_size, self.hidden_dim)
        state = (zeros, zeros)
        logits = []
        for t in range(seq_len):
            out, state = self.step(beats, y_prev[:, t : t + 1], state)
            logits.append(out)
        return torch.cat(logits, dim=1)
