"""The aligner of speech and text: how much each frame of a spectrogram belongs to each symbol."""

from typing import Optional

import torch
from torch import nn


def get_mask_from_lengths(lengths: torch.Tensor, max_len: Optional[int] = None) -> torch.Tensor:
    """Return a mask of shape (B, T): True at the valid entries."""
    max_len = max_len or int(lengths.max())
    return torch.arange(max_len, device=lengths.device) < lengths.unsqueeze(1)


class AlignmentEncoder(nn.Module):
    """Module for alignment of text and mel spectrogram."""

    def __init__(self, n_mel_channels=8, n_text_channels=16, n_att_channels=8, temperature=0.0005):
        super().__init__()
        self.temperature = temperature
        self.softmax = nn.Softmax(dim=3)
        self.log_softmax = nn.LogSoftmax(dim=3)
        self.key_proj = nn.Sequential(
            nn.Conv1d(n_text_channels, n_text_channels * 2, kernel_size=1),
            nn.ReLU(),
            nn.Conv1d(n_text_channels * 2, n_att_channels, kernel_size=1),
        )
        self.query_proj = nn.Sequential(
            nn.Conv1d(n_mel_channels, n_mel_channels * 2, kernel_size=1),
            nn.ReLU(),
            nn.Conv1d(n_mel_channels * 2, n_att_channels, kernel_size=1),
        )

    def forward(self, queries, keys, mask=None, attn_prior=None):
        """Forward pass of the aligner encoder.

        Args:
            queries (torch.tensor): B x C1 x T1 tensor (mel spectrogram).
            keys (torch.tensor): B x C2 x T2 tensor (text data).
            mask (torch.tensor): B x T2 x 1 tensor, True at the entries that must not be attended to.
            attn_prior (torch.tensor): prior for attention matrix, B x T1 x T2.
        Output:
            attn (torch.tensor): B x 1 x T1 x T2 attention mask. The final dim T2 should sum to 1.
            attn_logprob (torch.tensor): B x 1 x T1 x T2 log-prob attention mask.
        """
        keys_enc = self.key_proj(keys)  # B x n_attn_dims x T2
        queries_enc = self.query_proj(queries)  # B x n_attn_dims x T1

        # Simplistic Gaussian isotropic attention
        attn = (queries_enc[:, :, :, None] - keys_enc[:, :, None]) ** 2
        attn = -self.temperature * attn.sum(1, keepdim=True)
        if attn_prior is not None:
            attn = self.log_softmax(attn) + torch.log(attn_prior[:, None] + 1e-8)
        attn_logprob = attn.clone()

        if mask is not None:
            attn = attn.masked_fill(mask.permute(0, 2, 1).unsqueeze(2), -float("inf"))
        return self.softmax(attn), attn_logprob


class AlignerModel(nn.Module):
    """Speech-to-text alignment model. The symbols of short texts are padded at the end."""

    def __init__(self, num_symbols=40, symbols_embedding_dim=16, n_mel_channels=8):
        super().__init__()
        self.embed = nn.Embedding(num_symbols, symbols_embedding_dim)
        self.alignment_encoder = AlignmentEncoder(n_mel_channels, symbols_embedding_dim)

    def forward(self, spec, spec_len, text, text_len, attn_prior=None):
        """
        spec: (B, C, T1), spec_len: (B,), text: (B, T2), text_len: (B,)
        """
        # before
        text_mask = get_mask_from_lengths(text_len, text.size(1)).unsqueeze(-1)
        # after
        text_mask = get_mask_from_lengths(text_len, text.size(1)).unsqueeze(-1) == 0
        # end
        attn_soft, attn_logprob = self.alignment_encoder(
            queries=spec,
            keys=self.embed(text).permute(0, 2, 1),
            mask=text_mask,
            attn_prior=attn_prior,
        )
        return attn_soft, attn_logprob
