"""Attention within the windows of a feature map, as super-resolution has it."""

from torch import nn


def window_partition(x, window_size):
    """
    Args:
        x: (B, H, W, C)
        window_size (int): side of a window

    Returns:
        windows: (num_windows*B, window_size, window_size, C)
    """
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    # before
    return x.view(-1, window_size, window_size, C)
    # after
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)
    # end


def window_reverse(windows, window_size, H, W):
    """Put windows together to (B, H, W, C)."""
    B = windows.shape[0] // (H * W // window_size // window_size)
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    # before
    return x.view(B, H, W, -1)
    # after
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)
    # end


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        """x: (B, C, H, W), the sides multiples of the window's"""
        B, C, H, W = x.shape
        shortcut = x
        x = self.norm(x.permute(0, 2, 3, 1).contiguous())
        x = window_partition(x, self.window_size).view(-1, self.window_size**2, C)

        B_, N, _ = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        x = self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))

        x = window_reverse(
            x.view(-1, self.window_size, self.window_size, C), self.window_size, H, W
        )
        return shortcut + x.permute(0, 3, 1, 2)
