"""A block of a super-resolution network: each pixel of a window attends to a quarter as many permuted keys."""

import torch
import torch.nn as nn


def window_partition(x, window_size):
    """
    Args:
        x: (b, h, w, c)
        window_size (int): window size

    Returns:
        windows: (num_windows*b, window_size*window_size, c)
    """
    b, h, w, c = x.shape
    x = x.view(b, h // window_size, window_size, w // window_size, window_size, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window_size * window_size, c)


def window_reverse(windows, window_size, h, w):
    x = windows.view(
        -1, h // window_size, w // window_size, window_size, window_size, windows.shape[-1]
    )
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, windows.shape[-1])


def region_mask(h, w, window_size, shift_size):
    """Number the regions of a shifted feature map, and partition them into windows, of shape (windows, n)."""
    img_mask = torch.zeros((1, h, w, 1))
    slices = (
        slice(0, -window_size),
        slice(-window_size, -shift_size),
        slice(-shift_size, None),
    )
    cnt = 0
    for h_slice in slices:
        for w_slice in slices:
            img_mask[:, h_slice, w_slice, :] = cnt
            cnt += 1
    return window_partition(img_mask, window_size).squeeze(-1)


class PSA(nn.Module):
    """Permuted self-attention: the keys of 2 x 2 pixels become one, with channels from each."""

    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.permuted_window_size = window_size // 2
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        # compresses the channel dimension of KV
        self.kv = nn.Linear(dim, dim // 2, bias=qkv_bias)
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """x: (num_windows*b, n, c). mask: (0/-inf) mask of shape (num_windows, n, n//4) or None"""
        b_, n, c = x.shape
        p = self.permuted_window_size
        kv = self.kv(x).reshape(b_, p, 2, p, 2, 2, c // 4).permute(0, 1, 3, 5, 2, 4, 6)
        kv = kv.reshape(b_, n // 4, 2, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        q = self.q(x).reshape(b_, n, self.num_heads, c // self.num_heads).transpose(1, 2)
        attn = (q * self.scale) @ k.transpose(-2, -1)  # (num_windows*b, num_heads, n, n//4)
        if mask is not None:
            nw = mask.shape[0]
            attn = attn.view(b_ // nw, nw, self.num_heads, n, n // 4) + mask[None, :, None]
            attn = attn.view(-1, self.num_heads, n, n // 4)
        attn = attn.softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b_, n, c))


class PSA_Block(nn.Module):
    """x: a feature map, of shape (b, h, w, dim). h and w are multiples of the window size, and larger."""

    def __init__(self, dim, num_heads, window_size=4, shift_size=2):
        super().__init__()
        self.window_size = window_size
        self.permuted_window_size = window_size // 2
        self.shift_size = shift_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = PSA(dim, window_size, num_heads)

    def calculate_mask(self, h, w):
        mask_windows = region_mask(h, w, self.window_size, self.shift_size)
        # the feature map of the permuted keys has half the height and width
        permuted_size = (h // 2, w // 2, self.permuted_window_size)
        # before
        permuted_windows = region_mask(*permuted_size, self.shift_size)
        # after
        permuted_windows = region_mask(*permuted_size, self.shift_size // 2)
        # end
        attn_mask = mask_windows.unsqueeze(2) - permuted_windows.unsqueeze(1)
        hidden = torch.finfo(attn_mask.dtype).min
        return attn_mask.masked_fill(attn_mask != 0, hidden)

    def forward(self, x):
        b, h, w, c = x.shape
        shortcut = x
        x = self.norm1(x)
        attn_mask = None
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
            attn_mask = self.calculate_mask(h, w).to(x)
        windows = self.attn(window_partition(x, self.window_size), mask=attn_mask)
        x = window_reverse(windows, self.window_size, h, w)
        if self.shift_size > 0:
            x = torch.roll(x, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        return shortcut + x
