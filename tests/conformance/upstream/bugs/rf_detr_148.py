"""Attention within a few large windows of an image, as a detector's backbone has it."""

import torch.nn.functional as F
from torch import nn


class WindowedSelfAttention(nn.Module):
    """
    hidden_size: number of features
    num_windows: in how many windows each side of the image is divided
    """

    def __init__(self, hidden_size, num_heads, num_windows=2):
        super().__init__()
        self.num_heads = num_heads
        self.num_windows = num_windows
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], self.num_heads, -1).transpose(1, 2)

    def forward(self, pixel_tokens):
        """pixel_tokens: (batch, height, width, hidden_size), the sides multiples of num_windows"""
        batch_size, height, width, hidden_size = pixel_tokens.shape
        num_windows = self.num_windows
        num_h_patches_per_window = height // num_windows
        num_w_patches_per_window = width // num_windows

        windowed = pixel_tokens.reshape(
            batch_size,
            num_windows,
            num_h_patches_per_window,
            num_windows,
            # before
            num_h_patches_per_window,
            # after
            num_w_patches_per_window,
            # end
            -1,
        )
        windowed = windowed.permute(0, 1, 3, 2, 4, 5)
        windowed = windowed.reshape(batch_size * num_windows**2, -1, hidden_size)

        query, key = self.heads(self.query(windowed)), self.heads(self.key(windowed))
        value = self.heads(self.value(windowed))
        context = F.scaled_dot_product_attention(query, key, value)
        context = self.dense(context.transpose(1, 2).reshape(windowed.shape))

        context = context.reshape(
            batch_size,
            num_windows,
            num_windows,
            num_h_patches_per_window,
            num_w_patches_per_window,
            -1,
        )
        return context.permute(0, 1, 3, 2, 4, 5).reshape(batch_size, height, width, hidden_size)
