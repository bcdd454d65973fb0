"""The non-local block of a stereo network, which lets every place of every view look at all the others."""

from torch import nn


class SpaceTimeNonlocalBlock(nn.Module):
    """Embedded Gaussian non-local block over space and views.

    Args:
        in_channels: channels of the feature maps
        inter_channels: channels of the embeddings, half of in_channels if not given

    Input and output: (batchsize, in_channels, imgNum, height, width)
    """

    def __init__(self, in_channels, inter_channels=None):
        super().__init__()
        self.inter_channels = inter_channels or in_channels // 2
        self.theta = nn.Conv3d(in_channels, self.inter_channels, kernel_size=1)
        self.phi = nn.Conv3d(in_channels, self.inter_channels, kernel_size=1)
        self.g = nn.Conv3d(in_channels, self.inter_channels, kernel_size=1)
        self.out = nn.Conv3d(self.inter_channels, in_channels, kernel_size=1)

    def forward(self, x):
        batchsize, _, img_num, height, width = x.shape
        num = img_num * height * width

        g_x = self.g(x).view(batchsize, self.inter_channels, num).transpose(1, 2)
        theta_x = self.theta(x).view(batchsize, self.inter_channels, num).transpose(1, 2)
        phi_x = self.phi(x).view(batchsize, self.inter_channels, num)

        theta = theta_x.matmul(phi_x)  # (batchsize, num, num)
        # before
        theta = theta.reshape(batchsize, -1)
        theta = theta.softmax(dim=-1)
        theta = theta.view(batchsize, num, num)
        # after
        theta = theta.softmax(dim=-1)
        # end

        y = theta.matmul(g_x).transpose(1, 2)
        y = y.reshape(batchsize, self.inter_channels, img_num, height, width)
        return self.out(y) + x


class NonLocalGroupBlock(nn.Module):
    """Non-local blocks one after the other."""

    def __init__(self, in_channels, num_blocks=3):
        super().__init__()
        self.blocks = nn.ModuleList(SpaceTimeNonlocalBlock(in_channels) for _ in range(num_blocks))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
