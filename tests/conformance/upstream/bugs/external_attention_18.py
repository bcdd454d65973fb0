"""Selective kernels: every channel chooses between convolutions of several sizes by attention."""

from collections import OrderedDict

import torch
from torch import nn


class SKAttention(nn.Module):
    def __init__(self, channel=512, kernels=(1, 3, 5, 7), reduction=16, group=1, L=32):
        super().__init__()
        self.d = max(L, channel // reduction)
        self.convs = nn.ModuleList([])
        for k in kernels:
            self.convs.append(
                nn.Sequential(
                    OrderedDict(
                        [
                            (
                                "conv",
                                nn.Conv2d(
                                    channel, channel, kernel_size=k, padding=k // 2, groups=group
                                ),
                            ),
                            ("bn", nn.BatchNorm2d(channel)),
                            ("relu", nn.ReLU()),
                        ]
                    )
                )
            )
        self.fc = nn.Linear(channel, self.d)
        self.fcs = nn.ModuleList([nn.Linear(self.d, channel) for _ in kernels])
        # before
        self.softmax = nn.Softmax(dim=1)
        # after
        self.softmax = nn.Softmax(dim=0)
        # end

    def forward(self, x):
        """x: feature maps, of shape (bs, channel, h, w)"""
        bs, c, _, _ = x.size()

        # split
        conv_outs = [conv(x) for conv in self.convs]
        feats = torch.stack(conv_outs, 0)  # k, bs, channel, h, w

        # fuse
        U = sum(conv_outs)  # bs, c, h, w
        S = U.mean(-1).mean(-1)  # bs, c
        Z = self.fc(S)  # bs, d

        # one weight for each kernel and channel
        weights = [fc(Z).view(bs, c, 1, 1) for fc in self.fcs]
        attention_weights = torch.stack(weights, 0)  # k, bs, channel, 1, 1
        attention_weights = self.softmax(attention_weights)

        # select
        V = (attention_weights * feats).sum(0)
        return V
