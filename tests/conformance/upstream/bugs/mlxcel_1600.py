"""A layer of a vision encoder that sorts the patches into windows before it attends, and back afterwards."""

import torch
from torch import nn


def get_window_index(height, width, window):
    """Return the patches window by window, and where each window ends; windows at the edge are smaller."""
    index = torch.arange(height * width).view(height, width)
    order, ends = [], [0]
    for top in range(0, height, window):
        for left in range(0, width, window):
            block = index[top : top + window, left : left + window].flatten()
            order.append(block)
            ends.append(ends[-1] + len(block))
    return torch.cat(order), ends


def reverse_window_indices(window_index):
    """Return what brings patches in window order back to the order of the image."""
    # before
    ranked = sorted((int(value), position) for position, value in enumerate(window_index))
    reverse = torch.empty_like(window_index)
    for rank, (_, position) in enumerate(ranked):
        reverse[position] = rank
    return reverse
    # after
    return torch.argsort(window_index)
    # end


class WindowAttention(nn.Module):
    """Self-attention within consecutive pieces of a sequence."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (hidden_size // num_heads) ** -0.5
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, ends):
        length = x.shape[1]
        window_of = torch.zeros(length, dtype=torch.long, device=x.device)
        for end in ends[1:-1]:
            window_of[end:] += 1
        mask = window_of[:, None] == window_of[None, :]
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = (q * self.scale) @ k.transpose(-1, -2)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class VisionBlock(nn.Module):
    """
    hidden_size: size of a patch.
    num_heads: number of heads.
    height, width: patches of an image.
    window: patches on a side of a window.
    """

    def __init__(self, hidden_size=32, num_heads=4, height=4, width=6, window=2):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size)
        self.attn = WindowAttention(hidden_size, num_heads)
        self.norm2 = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size),
            nn.GELU(),
            nn.Linear(2 * hidden_size, hidden_size),
        )
        window_index, self.ends = get_window_index(height, width, window)
        self.register_buffer("window_index", window_index, persistent=False)
        self.register_buffer(
            "reverse_index", reverse_window_indices(window_index), persistent=False
        )

    def forward(self, patches):
        """patches: row by row, of shape (images, height * width, hidden_size)."""
        h = patches[:, self.window_index]
        h = h + self.attn(self.norm1(h), self.ends)
        h = h + self.mlp(self.norm2(h))
        return h[:, self.reverse_index]
