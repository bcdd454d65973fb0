"""The local reconstructor of a video captioner: it rebuilds the features of the frames from the caption."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class TemporalAttention(nn.Module):
    def __init__(self, hidden_size, feat_size, bottleneck_size):
        super().__init__()
        self.W = nn.Linear(hidden_size, bottleneck_size, bias=False)
        self.U = nn.Linear(feat_size, bottleneck_size, bias=False)
        self.b = nn.Parameter(torch.ones(bottleneck_size))
        self.w = nn.Linear(bottleneck_size, 1, bias=False)

    def forward(self, hidden, feats, masks=None):
        Wh = self.W(hidden)
        Uv = self.U(feats)
        Wh = Wh.unsqueeze(1).expand_as(Uv)
        energies = self.w(torch.tanh(Wh + Uv + self.b)).squeeze(2)
        if masks is not None:
            energies = energies.masked_fill(~masks, -float("inf"))
        weights = F.softmax(energies, dim=1)
        weighted_feats = feats * weights.unsqueeze(2)
        attn_feats = weighted_feats.sum(dim=1)
        return attn_feats, weights


class LocalReconstructor(nn.Module):
    def __init__(self, feat_size, hidden_size, bottleneck_size, n_frames=4):
        super().__init__()
        self.hidden_size = hidden_size
        self.n_frames = n_frames
        self.attention = TemporalAttention(hidden_size, hidden_size, bottleneck_size)
        self.rnn = nn.LSTMCell(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, feat_size)

    def get_rnn_init_hidden(self, batch_size, like):
        zeros = like.new_zeros(batch_size, self.hidden_size)
        return zeros, zeros

    def forward(self, decoder_hiddens, caption_masks):
        """
        decoder_hiddens: the states of the decoder after each word, of shape (batch, words, hidden_size)
        caption_masks: True at words, False after the end of the caption, of shape (batch, words)
        """
        caption_masks = caption_masks.bool()
        decoder_hiddens = decoder_hiddens * caption_masks.unsqueeze(2)
        hidden = self.get_rnn_init_hidden(len(decoder_hiddens), decoder_hiddens)
        feats_recons = []
        for _ in range(self.n_frames):
            # before
            context, _ = self.attention(hidden[0], decoder_hiddens)
            # after
            context, _ = self.attention(hidden[0], decoder_hiddens, caption_masks)
            # end
            hidden = self.rnn(context, hidden)
            feats_recons.append(self.out(hidden[0]))
        return torch.stack(feats_recons, dim=1)
