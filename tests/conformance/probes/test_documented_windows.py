"""A mask of windows serves the windows of several images, where a docstring says so."""

from __future__ import annotations

from attentions_with_caches import written

from heedful import check

WINDOWS = '''import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        """
        Args:
            x: windows with a shape of (num_windows*B, N, C)
            mask: (0/-inf) mask with a shape of (num_windows, N, N), or None
        """
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if mask is not None:
            mask = mask.unsqueeze(1)
            mask = mask.repeat(B_ // len(mask), 1, 1, 1)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(x.transpose(1, 2).reshape(B_, N, C))
'''
REPEATED = "            mask = mask.repeat(B_ // len(mask), 1, 1, 1)\n"


def test_a_mask_that_is_not_repeated_for_the_images_is_named(tmp_path):
    with written(tmp_path, WINDOWS.replace(REPEATED, "")) as attention:
        (bug,) = check(attention).bugs
    assert bug.name == "mask-broadcast"
    assert "scaled_dot_product_attention" in bug.place.source


def test_a_mask_that_is_repeated_is_right(tmp_path):
    with written(tmp_path, WINDOWS) as attention:
        assert check(attention).bugs == ()
