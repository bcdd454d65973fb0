"""Criss-cross attention over volumes: a voxel attends to those on the three lines through it."""

import torch
import torch.nn as nn


def inf_3d(n, like):
    """-inf on the diagonal"""
    return torch.zeros(n, n, dtype=like.dtype, device=like.device).fill_diagonal_(float("-inf"))


class CrissCrossAttention3D(nn.Module):
    """Criss-cross attention for the volumes of medical images"""

    def __init__(self, in_dim, reduction=8):
        super().__init__()
        self.query_conv = nn.Conv3d(
            in_channels=in_dim, out_channels=in_dim // reduction, kernel_size=1
        )
        self.key_conv = nn.Conv3d(
            in_channels=in_dim, out_channels=in_dim // reduction, kernel_size=1
        )
        self.value_conv = nn.Conv3d(in_channels=in_dim, out_channels=in_dim, kernel_size=1)
        self.softmax = nn.Softmax(dim=4)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        b, _, height, width, depth = x.size()

        # one row of the batch for each line of voxels
        proj_query = self.query_conv(x)
        proj_query_H = (
            proj_query.permute(0, 3, 4, 2, 1).contiguous().view(b * width * depth, height, -1)
        )
        proj_query_W = (
            proj_query.permute(0, 2, 4, 3, 1).contiguous().view(b * height * depth, width, -1)
        )
        proj_query_D = (
            proj_query.permute(0, 2, 3, 4, 1).contiguous().view(b * height * width, depth, -1)
        )

        proj_key = self.key_conv(x)
        proj_key_H = (
            proj_key.permute(0, 3, 4, 1, 2).contiguous().view(b * width * depth, -1, height)
        )
        proj_key_W = (
            proj_key.permute(0, 2, 4, 1, 3).contiguous().view(b * height * depth, -1, width)
        )
        proj_key_D = (
            proj_key.permute(0, 2, 3, 1, 4).contiguous().view(b * height * width, -1, depth)
        )

        proj_value = self.value_conv(x)
        proj_value_H = (
            proj_value.permute(0, 3, 4, 1, 2).contiguous().view(b * width * depth, -1, height)
        )
        proj_value_W = (
            proj_value.permute(0, 2, 4, 1, 3).contiguous().view(b * height * depth, -1, width)
        )
        proj_value_D = (
            proj_value.permute(0, 2, 3, 1, 4).contiguous().view(b * height * width, -1, depth)
        )

        # a voxel is on each of its lines, and is counted on the last one only
        energy_H = torch.bmm(proj_query_H, proj_key_H) + inf_3d(height, x)
        energy_H = energy_H.view(b, width, depth, height, height).permute(0, 3, 1, 2, 4)
        energy_W = torch.bmm(proj_query_W, proj_key_W) + inf_3d(width, x)
        energy_W = energy_W.view(b, height, depth, width, width).permute(0, 1, 3, 2, 4)
        energy_D = torch.bmm(proj_query_D, proj_key_D).view(b, height, width, depth, depth)

        # b, height, width, depth, all voxels of the three lines
        concate = self.softmax(torch.cat([energy_H, energy_W, energy_D], 4))

        att_H = concate[:, :, :, :, 0:height].permute(0, 2, 3, 1, 4)
        att_H = att_H.contiguous().view(b * width * depth, height, height)
        # before
        att_W = concate[:, :, :, :, height : height + width].permute(0, 1, 4, 2, 3)
        # after
        att_W = concate[:, :, :, :, height : height + width].permute(0, 1, 3, 2, 4)
        # end
        att_W = att_W.contiguous().view(b * height * depth, width, width)
        att_D = concate[:, :, :, :, height + width :]
        att_D = att_D.contiguous().view(b * height * width, depth, depth)

        out_H = torch.bmm(proj_value_H, att_H.permute(0, 2, 1))
        out_H = out_H.view(b, width, depth, -1, height).permute(0, 3, 4, 1, 2)
        out_W = torch.bmm(proj_value_W, att_W.permute(0, 2, 1))
        out_W = out_W.view(b, height, depth, -1, width).permute(0, 3, 1, 4, 2)
        out_D = torch.bmm(proj_value_D, att_D.permute(0, 2, 1))
        out_D = out_D.view(b, height, width, -1, depth).permute(0, 3, 1, 2, 4)

        return self.gamma * (out_H + out_W + out_D) + x
