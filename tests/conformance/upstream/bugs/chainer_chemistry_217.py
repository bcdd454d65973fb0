"""Graph attention networks over molecules, with dense adjacency matrices."""

import torch
import torch.nn as nn
import torch.nn.functional as F

MAX_ATOMIC_NUM = 117


class GraphAttentionNetworks(nn.Module):
    """Graph Attention Networks (GAT)

    See: Veličković, Petar, et al. (2017). Graph Attention Networks.
        `arXiv:1701.10903 <https://arxiv.org/abs/1710.10903>`_

    Args:
        out_dim (int): dimension of output feature vector
        hidden_dim (int): dimension of feature vector associated to each atom
        heads (int): number of heads
        negative_slope (float): slope of leaky ReLU
        n_layers (int): number of layers
        n_atom_types (int): number of types of atoms
        dropout_ratio (float): dropout of the attention, none if it is negative
        concat_heads (bool): concatenate the heads, instead of taking their mean
        concat_hidden (bool): If set to True, readout is executed in each layer and the result is
            concatenated
        weight_tying (bool): enable weight_tying or not
    """

    def __init__(
        self,
        out_dim,
        hidden_dim=16,
        heads=2,
        negative_slope=0.2,
        n_layers=4,
        n_atom_types=MAX_ATOMIC_NUM,
        dropout_ratio=-1.0,
        concat_heads=False,
        concat_hidden=False,
        weight_tying=False,
    ):
        super().__init__()
        n_readout_layer = n_layers if concat_hidden else 1
        n_message_layer = 1 if weight_tying else n_layers
        self.embed = nn.Embedding(n_atom_types, hidden_dim, padding_idx=0)
        self.message_layers = nn.ModuleList(
            [nn.Linear(hidden_dim, heads * hidden_dim) for _ in range(n_message_layer)]
        )
        self.attention_layers = nn.ModuleList(
            [nn.Linear(hidden_dim * 2, 1) for _ in range(n_message_layer)]
        )
        self.concat_layers = nn.ModuleList(
            [nn.Linear(heads * hidden_dim, hidden_dim) for _ in range(n_message_layer)]
            if concat_heads
            else []
        )
        self.i_layers = nn.ModuleList(
            [nn.Linear(2 * hidden_dim, out_dim) for _ in range(n_readout_layer)]
        )
        self.j_layers = nn.ModuleList(
            [nn.Linear(hidden_dim, out_dim) for _ in range(n_readout_layer)]
        )
        self.heads = heads
        self.hidden_dim = hidden_dim
        self.n_layers = n_layers
        self.concat_heads = concat_heads
        self.concat_hidden = concat_hidden
        self.weight_tying = weight_tying
        self.negative_slope = negative_slope
        self.dropout_ratio = dropout_ratio

    def update(self, h, adj, step=0):
        step = 0 if self.weight_tying else step
        # (minibatch, atom, channel)
        mb, atom, _ = h.shape
        # (minibatch, atom, heads, out_dim)
        h = self.message_layers[step](h).view(mb, atom, self.heads, self.hidden_dim)

        # concat all pairs of atom
        # (minibatch, atom, atom, heads, out_dim)
        h_i = h[:, None, :].expand(mb, atom, atom, self.heads, self.hidden_dim)
        h_j = h[:, :, None].expand(mb, atom, atom, self.heads, self.hidden_dim)
        # (minibatch, heads, atom, atom, out_dim * 2)
        e = torch.cat([h_i, h_j], dim=4).permute(0, 3, 1, 2, 4)
        # (heads, minibatch, atom, atom)
        e = self.attention_layers[step](e).squeeze(4).transpose(0, 1)
        e = F.leaky_relu(e, self.negative_slope)

        cond = (adj != 0)[None].expand_as(e)
        e = e.masked_fill(~cond, torch.finfo(e.dtype).min)
        # (heads, minibatch, atom, atom)
        # before
        alpha = F.softmax(e, dim=1)
        # after
        alpha = F.softmax(e, dim=3)
        # end
        # atoms without a neighbor get no message
        alpha = alpha.masked_fill(~cond, 0.0)
        if self.dropout_ratio >= 0:
            alpha = F.dropout(alpha, p=self.dropout_ratio, training=self.training)

        # (heads, minibatch, atom, out_dim)
        h_new = torch.matmul(alpha, h.permute(2, 0, 1, 3))
        if self.concat_heads:
            h_new = h_new.permute(1, 2, 0, 3).reshape(mb, atom, -1)
            return self.concat_layers[step](h_new)
        return h_new.mean(dim=0)

    def readout(self, h, h0, step=0, is_real_node=None):
        index = step if self.concat_hidden else 0
        # h, h0: (minibatch, atom, ch)
        g = torch.sigmoid(self.i_layers[index](torch.cat((h, h0), dim=2))) * self.j_layers[index](h)
        if is_real_node is not None:
            g = g * is_real_node[:, :, None].to(g.dtype)
        return g.sum(dim=1)  # sum along atom's axis

    def forward(self, atom_array, adj):
        """Forward propagation

        Args:
            atom_array (torch.LongTensor): (minibatch, atom), IDs of the atoms of each molecule, and 0
                for padding
            adj (torch.Tensor): (minibatch, atom, atom), 1 for a bond, in both directions

        Returns:
            torch.Tensor: minibatch of fingerprint
        """
        h = self.embed(atom_array)  # (minibatch, max_num_atoms, ch)
        h0 = h.clone()
        is_real_node = atom_array != 0

        g_list = []
        for step in range(self.n_layers):
            h = self.update(h, adj, step)
            if self.concat_hidden:
                g_list.append(self.readout(h, h0, step, is_real_node))
        if self.concat_hidden:
            return torch.cat(g_list, dim=1)
        return self.readout(h, h0, 0, is_real_node)
