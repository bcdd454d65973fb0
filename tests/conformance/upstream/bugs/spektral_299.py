"""Graph attention on dense batches of graphs."""

import torch
from torch import nn
from torch.nn import functional as F


class GATConv(nn.Module):
    r"""
    A Graph Attention layer (GAT).

    **Mode**: batch. This layer expects a dense adjacency matrix.

    **Input**

    - Node features of shape `(batch, n_nodes, n_node_features)`;
    - Adjacency matrix of shape `(batch, n_nodes, n_nodes)`, binary or weighted. Only whether there is an edge counts.

    **Output**

    - Node features with the same shape as the input, but with the last dimension changed to `channels`
      (times `attn_heads` if the heads are concatenated);
    - if `return_attn_coef=True`, the attention coefficients, `(batch, n_nodes, attn_heads, n_nodes)`.

    **Arguments**

    - `channels`: number of output channels;
    - `attn_heads`: number of attention heads to use;
    - `concat_heads`: bool, whether to concatenate the output of the attention heads instead of averaging;
    - `dropout_rate`: internal dropout rate for attention coefficients;
    - `add_self_loops`: if `True`, add self loops to the adjacency matrix.
    """

    def __init__(
        self,
        in_channels,
        channels,
        attn_heads=1,
        concat_heads=True,
        dropout_rate=0.5,
        return_attn_coef=False,
        add_self_loops=True,
        activation=None,
        use_bias=True,
    ):
        super().__init__()
        self.channels = channels
        self.attn_heads = attn_heads
        self.concat_heads = concat_heads
        self.dropout_rate = dropout_rate
        self.return_attn_coef = return_attn_coef
        self.add_self_loops = add_self_loops
        self.activation = activation
        self.output_dim = channels * attn_heads if concat_heads else channels

        self.kernel = nn.Parameter(torch.empty(in_channels, attn_heads, channels))
        self.attn_kernel_self = nn.Parameter(torch.empty(channels, attn_heads, 1))
        self.attn_kernel_neighs = nn.Parameter(torch.empty(channels, attn_heads, 1))
        self.bias = nn.Parameter(torch.zeros(self.output_dim)) if use_bias else None
        self.dropout = nn.Dropout(dropout_rate)
        for weight in (self.kernel, self.attn_kernel_self, self.attn_kernel_neighs):
            nn.init.normal_(weight, std=weight.shape[0] ** -0.5)

    def forward(self, inputs, mask=None):
        x, a = inputs
        output, attn_coef = self._call_dense(x, a)

        output = output.flatten(-2) if self.concat_heads else output.mean(dim=-2)
        if self.bias is not None:
            output = output + self.bias
        if self.activation is not None:
            output = self.activation(output)
        if mask is not None:
            output = output * mask[..., None]

        if self.return_attn_coef:
            return output, attn_coef
        return output

    def _call_dense(self, x, a):
        if self.add_self_loops:
            loops = torch.eye(a.shape[-1], dtype=torch.bool, device=a.device)
            a = torch.where(loops, torch.ones_like(a), a)
        x = torch.einsum("...ni,iho->...nho", x, self.kernel)
        attn_for_self = torch.einsum("...nhi,iho->...nho", x, self.attn_kernel_self)
        attn_for_neighs = torch.einsum("...nhi,iho->...nho", x, self.attn_kernel_neighs)
        attn_for_neighs = attn_for_neighs.transpose(-3, -1)

        attn_coef = attn_for_self + attn_for_neighs
        attn_coef = F.leaky_relu(attn_coef, negative_slope=0.2)

        # before
        mask = -10e9 * (1.0 - a)
        # after
        mask = torch.where(a == 0.0, -10e9, 0.0).to(x.dtype)
        # end
        attn_coef = attn_coef + mask[..., None, :]
        attn_coef = attn_coef.softmax(dim=-1)
        attn_coef_drop = self.dropout(attn_coef)

        output = torch.einsum("...nhm,...mhi->...nhi", attn_coef_drop, x)
        return output, attn_coef


class GATNet(nn.Module):
    """Two layers of graph attention, as in the examples on node classification."""

    def __init__(self, n_node_features, n_labels, channels=8, attn_heads=4, dropout_rate=0.5):
        super().__init__()
        self.dropout = nn.Dropout(dropout_rate)
        self.conv1 = GATConv(
            n_node_features, channels, attn_heads, dropout_rate=dropout_rate, activation=F.elu
        )
        self.conv2 = GATConv(
            channels * attn_heads, n_labels, 1, concat_heads=False, dropout_rate=dropout_rate
        )

    def forward(self, inputs):
        x, a = inputs
        x = self.conv1([self.dropout(x), a])
        return self.conv2([self.dropout(x), a])
