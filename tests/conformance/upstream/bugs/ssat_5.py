"""Warps the makeup of one face to another: each place of the face takes the makeup of the places that look alike."""

import torch
import torch.nn.functional as F
from torch import nn


class SymmetryAttention(nn.Module):
    def __init__(self, dim, key_dim=64, alpha=10.0):
        super().__init__()
        self.alpha = alpha
        self.fa_conv = nn.Conv2d(dim, key_dim, kernel_size=1)
        self.fb_conv = nn.Conv2d(dim, key_dim, kernel_size=1)

    def forward(self, a, b, b_raw):
        """
        a, b: the features of both faces, of shape (n, dim, h, w).
        b_raw: what is warped from face b to face a, of shape (n, c, h, w).
        """
        n, raw_c, h, w = b_raw.size()
        fa = self.fa_conv(a).flatten(2)
        fb = self.fb_conv(b).flatten(2)
        fa = fa - fa.mean(dim=1, keepdim=True)
        fb = fb - fb.mean(dim=1, keepdim=True)
        fa = F.normalize(fa, dim=1)
        fb = F.normalize(fb, dim=1)

        # one row for each place of b, one column for each place of a
        energy_ab_T = torch.bmm(fb.transpose(-2, -1), fa) * self.alpha
        # before
        corr_ab_T = F.softmax(energy_ab_T, dim=2)
        # after
        corr_ab_T = F.softmax(energy_ab_T, dim=1)
        # end
        b_warp = torch.bmm(b_raw.view(n, raw_c, h * w), corr_ab_T)
        return b_warp.view(n, raw_c, h, w)
