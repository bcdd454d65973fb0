"""A non-local block: every pixel of a feature map attends to every other one."""

import torch
import torch.nn as nn


class NonLocalBlock(nn.Module):
    def __init__(self, channel):
        super().__init__()
        self.inter_channel = channel // 2
        self.conv_phi = nn.Conv2d(
            in_channels=channel,
            out_channels=self.inter_channel,
            kernel_size=1,
            stride=1,
            padding=0,
            bias=False,
        )
        self.conv_theta = nn.Conv2d(
            in_channels=channel,
            out_channels=self.inter_channel,
            kernel_size=1,
            stride=1,
            padding=0,
            bias=False,
        )
        self.conv_g = nn.Conv2d(
            in_channels=channel,
            out_channels=self.inter_channel,
            kernel_size=1,
            stride=1,
            padding=0,
            bias=False,
        )
        self.softmax = nn.Softmax(dim=-1)
        self.conv_mask = nn.Conv2d(
            in_channels=self.inter_channel,
            out_channels=channel,
            kernel_size=1,
            stride=1,
            padding=0,
            bias=False,
        )

    def forward(self, x):
        # [N, C, H, W]
        b, c, h, w = x.size()
        # before
        # [N, C/2, H * W]
        x_phi = self.conv_phi(x).view(b, c, -1)
        # [N, H * W, C/2]
        x_theta = self.conv_theta(x).view(b, c, -1).permute(0, 2, 1).contiguous()
        x_g = self.conv_g(x).view(b, c, -1).permute(0, 2, 1).contiguous()
        # after
        # [N, C/2, H * W]
        x_phi = self.conv_phi(x).view(b, c // 2, -1)
        # [N, H * W, C/2]
        x_theta = self.conv_theta(x).view(b, c // 2, -1).permute(0, 2, 1).contiguous()
        x_g = self.conv_g(x).view(b, c // 2, -1).permute(0, 2, 1).contiguous()
        # end
        # [N, H * W, H * W]
        mul_theta_phi = torch.matmul(x_theta, x_phi)
        mul_theta_phi = self.softmax(mul_theta_phi)
        # [N, H * W, C/2]
        mul_theta_phi_g = torch.matmul(mul_theta_phi, x_g)
        # [N, C/2, H, W]
        mul_theta_phi_g = mul_theta_phi_g.permute(0, 2, 1).contiguous()
        mul_theta_phi_g = mul_theta_phi_g.view(b, self.inter_channel, h, w)
        # [N, C, H , W]
        mask = self.conv_mask(mul_theta_phi_g)
        out = mask + x
        return out
