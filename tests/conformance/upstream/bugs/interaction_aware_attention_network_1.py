"""Interaction-aware attention network: the emotion of an utterance, given what both speakers said before it."""

import torch
from torch import nn


def mask_seq(seq):
    """1 for frames, 0 for padding: frames of zeros. [batch_size, sequence_len]"""
    return seq.abs().sum(-1).sign()


class SelfAttention(nn.Module):
    """Reduces an utterance to one vector."""

    def __init__(self, hidden_size, attention_size):
        super().__init__()
        self.w_omega = nn.Linear(hidden_size, attention_size)
        self.u_omega = nn.Parameter(torch.randn(attention_size) * 0.1)

    def forward(self, inputs, mask):
        v = torch.tanh(self.w_omega(inputs))
        vu = torch.tensordot(v, self.u_omega, dims=1)
        vu = torch.where(mask == 0, torch.full_like(vu, -10e8), vu)
        alphas = vu.softmax(-1)
        return (inputs * alphas.unsqueeze(-1)).sum(1)


class InteractionAwareAttention(nn.Module):
    """Bahdanau attention over the current utterance, conditioned on the two previous ones."""

    def __init__(self, hidden_size, attention_size):
        super().__init__()
        self.W_c = nn.Parameter(torch.randn(hidden_size, attention_size) * 0.1)
        self.W_p = nn.Parameter(torch.randn(hidden_size, attention_size) * 0.1)
        self.W_r = nn.Parameter(torch.randn(hidden_size, attention_size) * 0.1)
        self.b = nn.Parameter(torch.randn(attention_size) * 0.1)
        self.u = nn.Parameter(torch.randn(attention_size) * 0.1)

    def forward(self, out, h_p, h_r, mask_att):
        """
        out: hidden units of the current utterance, [batch_size, sequence_len, hidden_size]
        h_p, h_r: the previous utterances of the target and of the opposite speaker, [batch_size, hidden_size]
        """
        seq_len = out.shape[1]
        mask = mask_att.unsqueeze(-1)
        h_p_ = h_p.unsqueeze(1).repeat(1, seq_len, 1) * mask
        h_r_ = h_r.unsqueeze(1).repeat(1, seq_len, 1) * mask
        out = out * mask
        v = torch.tanh(
            torch.tensordot(out, self.W_c, dims=1)
            + torch.tensordot(h_p_, self.W_p, dims=1)
            + torch.tensordot(h_r_, self.W_r, dims=1)
            + self.b
        )
        vu = torch.tensordot(v, self.u, dims=1)  # [batch_size, sequence_len]
        # mask attention weights
        # before
        paddings = mask_att * (-10e8)
        # after
        paddings = torch.ones_like(mask_att) * (-10e8)
        # end
        vu = torch.where(mask_att == 0, paddings, vu)
        alphas = vu.softmax(-1)
        return (out * alphas.unsqueeze(-1)).sum(1), alphas


class IAAN(nn.Module):
    def __init__(
        self, in_dim=45, seq_dim=512, atten_size=16, hidden_dim=64, num_emo=4, keep_proba=0.9
    ):
        super().__init__()
        self.up_encoder = nn.GRU(in_dim, seq_dim, batch_first=True)
        self.ur_encoder = nn.GRU(in_dim, seq_dim, batch_first=True)
        self.uc_encoder = nn.GRU(in_dim, seq_dim, batch_first=True)
        self.up_attention = SelfAttention(seq_dim, atten_size)
        self.ur_attention = SelfAttention(seq_dim, atten_size)
        self.interaction = InteractionAwareAttention(seq_dim, atten_size)
        self.dropout = nn.Dropout(1 - keep_proba)
        self.dense = nn.Linear(seq_dim * 3, hidden_dim)
        self.layer_norm = nn.LayerNorm(hidden_dim)
        self.out = nn.Linear(hidden_dim, num_emo)

    def forward(self, current_utt, target_utt, opposite_utt):
        """
        All are [batch_size, sequence_len, in_dim], padded with frames of zeros at the end:
        current_utt: current utterance, Uc
        target_utt: previous utterance of the target speaker, Up
        opposite_utt: previous utterance of the opposite speaker, Ur
        """
        h_p, _ = self.up_encoder(target_utt)
        h_p = self.up_attention(h_p, mask_seq(target_utt))
        h_r, _ = self.ur_encoder(opposite_utt)
        h_r = self.ur_attention(h_r, mask_seq(opposite_utt))

        c_out, _ = self.uc_encoder(self.dropout(current_utt))
        h_c, _ = self.interaction(self.dropout(c_out), h_p, h_r, mask_seq(current_utt))

        dense = self.dense(torch.cat([h_c, h_p, h_r], 1))
        dense = torch.relu(self.dropout(self.layer_norm(dense)))
        return self.out(dense)
