"""The attention of an image model with a bias for each relative position, on a kernel of its own."""

import torch
from torch import nn


def sdpa_kernel(q, k, v, mask, scale):
    """Softmax attention. The kernel multiplies by the scale inside the exponent, which is the cheapest place."""
    scores = q @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    row_max = scores.amax(dim=-1, keepdim=True)
    weights = ((scores - row_max) * scale).exp()
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


def scaled_dot_product_attention(q, k, v, attn_mask=None, scale=None):
    """
    q, k, v: (batch, heads, tokens, head_dim). attn_mask: a float that is added to the scores.
    scale: factor of the products of queries and keys; 1 / sqrt(head_dim) if not given.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    # before
    return sdpa_kernel(q, k, v, attn_mask, scale)
    # after
    if attn_mask is not None:
        attn_mask = attn_mask / scale
    return sdpa_kernel(q, k, v, attn_mask, scale)
    # end


class BeitRelativePositionBias(nn.Module):
    """A learned bias per head for the distance of two patches, and for those to and from the class token."""

    def __init__(self, window_size, num_heads):
        super().__init__()
        h, w = window_size
        distances = (2 * h - 1) * (2 * w - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(distances + 3, num_heads))
        places = torch.cartesian_prod(torch.arange(h), torch.arange(w))
        offsets = places[:, None] - places
        index = torch.full((h * w + 1, h * w + 1), distances + 2)
        index[0, 1:] = distances
        index[1:, 0] = distances + 1
        index[1:, 1:] = (offsets[..., 0] + h - 1) * (2 * w - 1) + offsets[..., 1] + w - 1
        self.register_buffer("relative_position_index", index, persistent=False)

    def forward(self):
        return self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)


class BeitSdpaSelfAttention(nn.Module):
    """
    Args:
        hidden_size: size of a token
        num_attention_heads: number of heads
        window_size: rows and columns of patches
    """

    def __init__(self, hidden_size, num_attention_heads, window_size):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.relative_position_bias = BeitRelativePositionBias(window_size, num_attention_heads)

    def forward(self, hidden_states):
        """hidden_states: (batch, 1 + rows * columns, hidden_size), the class token first."""
        q, k, v = (
            project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        bias = self.relative_position_bias().unsqueeze(0)
        context = scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return context.transpose(1, 2).flatten(2)
