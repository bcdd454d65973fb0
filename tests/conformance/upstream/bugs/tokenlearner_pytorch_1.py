"""Learns a few tokens of an image, attends among them and puts them back on the image."""

import torch
import torch.nn as nn


class SpatialAttention(nn.Module):
    """One weight map of an image, from the maximum and the mean of its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel_size=(1, 1), stride=1)

    def forward(self, x):
        # x: (B, C, H, W)
        mx = torch.max(x, dim=1, keepdim=True)[0]
        avg = torch.mean(x, dim=1, keepdim=True)
        weight_map = torch.sigmoid(self.conv(torch.cat([mx, avg], dim=1)))
        return (x * weight_map).mean(dim=(-2, -1))  # (B, C)


class TokenLearner(nn.Module):
    def __init__(self, S) -> None:
        super().__init__()
        self.S = S
        self.tokenizers = nn.ModuleList([SpatialAttention() for _ in range(S)])

    def forward(self, x):
        x = x.permute(0, 3, 1, 2)
        return torch.stack([tokenizer(x) for tokenizer in self.tokenizers], dim=1)  # (B, S, C)


class TokenFuser(nn.Module):
    def __init__(self, C, S) -> None:
        super().__init__()
        self.projection = nn.Linear(S, S, bias=False)
        self.Bi = nn.Linear(C, S)

    def forward(self, y, x):
        # y: (B, S, C), x: (B, H, W, C)
        Y = self.projection(y.transpose(1, 2)).transpose(1, 2)
        Bw = torch.sigmoid(self.Bi(x))  # (B, H, W, S)
        return torch.einsum("bhws,bsc->bhwc", Bw, Y)


class TokenLearnerBlock(nn.Module):
    """
    S: number of tokens
    C: number of channels
    """

    def __init__(self, S=8, C=16, num_heads=2) -> None:
        super().__init__()
        self.tklr = TokenLearner(S=S)
        self.mhsa = nn.MultiheadAttention(embed_dim=C, num_heads=num_heads)
        self.tkfsr = TokenFuser(C=C, S=S)

    def forward(self, x):
        """x: images with the channels last, (B, H, W, C)"""
        y = self.tklr(x)  # (B, S, C)
        B, S, C = y.shape
        # before
        y = y.view(S, B, C)
        # after
        y = y.transpose(0, 1)  # (S, B, C)
        # end
        y, _ = self.mhsa(y, y, y)  # ignore attn weights
        # before
        y = y.view(B, S, C)
        # after
        y = y.transpose(0, 1)  # (B, S, C)
        # end
        return self.tkfsr(y, x)  # (B, H, W, C)
