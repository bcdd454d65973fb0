"""Linear attention between the pixels of a feature map of a satellite image."""

import torch
from torch.nn import Conv2d, Module, Parameter


def l2_norm(x):
    return torch.einsum("bcn, bn->bcn", x, 1 / torch.norm(x, p=2, dim=-2))


class PositionLinearAttention(Module):
    """exp(q k) is replaced by 1 + q k of normalized queries and keys, so that the sums over pixels are shared."""

    def __init__(self, in_places, scale=2, eps=1e-6):
        super().__init__()
        self.gamma = Parameter(torch.zeros(1))
        self.in_places = in_places
        self.l2_norm = l2_norm
        self.eps = eps
        self.query_conv = Conv2d(
            in_channels=in_places, out_channels=in_places // scale, kernel_size=1
        )
        self.key_conv = Conv2d(
            in_channels=in_places, out_channels=in_places // scale, kernel_size=1
        )
        self.value_conv = Conv2d(in_channels=in_places, out_channels=in_places, kernel_size=1)

    def forward(self, x):
        """x: (batch, in_places, height, width)"""
        # Apply the feature map to the queries and keys
        # before
        batch_size, chnnels, width, height = x.shape
        # after
        batch_size, chnnels, height, width = x.shape
        # end
        Q = self.query_conv(x).view(batch_size, -1, width * height)
        K = self.key_conv(x).view(batch_size, -1, width * height)
        V = self.value_conv(x).view(batch_size, -1, width * height)

        Q = self.l2_norm(Q).permute(-3, -1, -2)
        K = self.l2_norm(K)

        tailor_sum = 1 / (
            width * height + torch.einsum("bnc, bc->bn", Q, torch.sum(K, dim=-1) + self.eps)
        )
        value_sum = torch.einsum("bcn->bc", V).unsqueeze(-1)
        value_sum = value_sum.expand(-1, chnnels, width * height)

        matrix = torch.einsum("bmn, bcn->bmc", K, V)
        matrix_sum = value_sum + torch.einsum("bnm, bmc->bcn", Q, matrix)

        weight_value = torch.einsum("bcn, bn->bcn", matrix_sum, tailor_sum)
        weight_value = weight_value.view(batch_size, chnnels, height, width)

        return (x + self.gamma * weight_value).contiguous()
