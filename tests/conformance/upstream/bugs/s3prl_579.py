"""Pools the frames of an utterance, of which some are padding."""

import torch
from torch import nn


class AttentivePoolingModule(nn.Module):
    """The attention of an utterance to its frames."""

    def __init__(self, input_dim, activation="ReLU", **kwargs):
        super().__init__()
        self.W_a = nn.Linear(input_dim, input_dim)
        self.W = nn.Linear(input_dim, 1)
        self.act_fn = getattr(nn, activation)()
        self.softmax = nn.functional.softmax

    def forward(self, batch_rep, att_mask):
        """
        input:
            batch_rep : size (B, T, H), B: batch size, T: sequence length, H: Hidden dimension
            att_mask: size (B, T), True at the frames that are no padding
        """
        att_logits = self.W(self.act_fn(self.W_a(batch_rep))).squeeze(-1)
        # before
        att_logits = att_mask + att_logits
        # after
        att_logits = att_logits.masked_fill(~att_mask, float("-inf"))
        # end
        att_w = self.softmax(att_logits, dim=-1).unsqueeze(-1)
        utter_rep = torch.sum(batch_rep * att_w, dim=1)
        return utter_rep, att_w


class AttentivePooling(nn.Module):
    """features_len: the number of frames of each utterance, of shape (B,)."""

    def __init__(self, input_dim, output_dim, activation="ReLU", **kwargs):
        super().__init__()
        self.projector = nn.Linear(input_dim, input_dim)
        self.pooling = AttentivePoolingModule(input_dim, activation)
        self.model = nn.Linear(input_dim, output_dim)

    def forward(self, features, features_len):
        features = self.projector(features)
        att_mask = torch.arange(features.size(1), device=features.device) < features_len[:, None]
        pooled, _ = self.pooling(features, att_mask)
        return self.model(pooled)
