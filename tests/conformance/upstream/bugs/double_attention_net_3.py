"""Double attention: gathers features of the whole image, then hands them out to every place."""

import torch.nn.functional as F
from torch import nn


class DoubleAtten(nn.Module):
    """
    A2-Nets: Double Attention Networks.

    in_c: channels of the input; c_m: channels of what is gathered; c_n: number of attention maps
    """

    def __init__(self, in_c, c_m=None, c_n=None):
        super().__init__()
        self.c_m = c_m or in_c // 2
        self.c_n = c_n or in_c // 2
        self.convA = nn.Conv2d(in_c, self.c_m, kernel_size=1)
        self.convB = nn.Conv2d(in_c, self.c_n, kernel_size=1)
        self.convV = nn.Conv2d(in_c, self.c_n, kernel_size=1)
        self.conv_reconstruct = nn.Conv2d(self.c_m, in_c, kernel_size=1)

    def forward(self, x):
        batch, _, h, w = x.size()
        tmpA = self.convA(x).view(batch, self.c_m, h * w)
        tmpB = self.convB(x)
        tmpV = self.convV(x).view(batch, self.c_n, h * w)

        # gather: every map picks places of the image
        # before
        softmaxB = F.softmax(tmpB, dim=1).view(batch, self.c_n, h * w).permute(0, 2, 1)
        # after
        softmaxB = F.softmax(tmpB.view(batch, self.c_n, h * w), dim=-1).permute(0, 2, 1)
        # end
        tmpG = tmpA.matmul(softmaxB)

        # distribute: every place picks from what the maps gathered
        softmaxV = F.softmax(tmpV, dim=1)
        tmpZ = tmpG.matmul(softmaxV).view(batch, self.c_m, h, w)
        return x + self.conv_reconstruct(tmpZ)
