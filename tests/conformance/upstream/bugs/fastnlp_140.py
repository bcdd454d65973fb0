"""Words attend to their neighbors and to a relay node, and the relay node attends to all words (Star-Transformer)."""

import math

import torch
from torch import nn


class _MSA1(nn.Module):
    """Attention of each word to the word before it, to itself, to the next word, to its embedding and to the relay."""

    def __init__(self, nhid, nhead, head_dim):
        super().__init__()
        self.nhead, self.head_dim = nhead, head_dim
        self.WQ = nn.Linear(nhid, nhead * head_dim)
        self.WK = nn.Linear(nhid, nhead * head_dim)
        self.WV = nn.Linear(nhid, nhead * head_dim)
        self.WO = nn.Linear(nhead * head_dim, nhid)

    def forward(self, x, ax, relay, mask):
        """x, ax: (batch, length, nhid). relay: (batch, 1, nhid). mask: true at words, (batch, length)."""
        B, L, H = x.size()
        empty = x.new_zeros(B, 1, H)
        left, right = torch.cat([empty, x[:, :-1]], 1), torch.cat([x[:, 1:], empty], 1)
        around = torch.stack([left, x, right, ax, relay.expand(B, L, H)], dim=2)  # B L 5 H
        none = mask.new_zeros(B, 1)
        has_left, has_right = torch.cat([none, mask[:, :-1]], 1), torch.cat([mask[:, 1:], none], 1)
        always = torch.ones_like(mask)
        seen = torch.stack([has_left, always, has_right, always, always], dim=2)  # B L 5

        q = self.WQ(x).view(B, L, self.nhead, 1, self.head_dim)
        k = self.WK(around).view(B, L, 5, self.nhead, self.head_dim).permute(0, 1, 3, 4, 2)
        v = self.WV(around).view(B, L, 5, self.nhead, self.head_dim).permute(0, 1, 3, 2, 4)
        pre_a = torch.matmul(q, k) / math.sqrt(self.head_dim)  # B L N 1 5
        pre_a = pre_a.masked_fill(~seen[:, :, None, None, :], -float("inf"))
        att = torch.matmul(torch.softmax(pre_a, -1), v).view(B, L, -1)
        return self.WO(att)


class _MSA2(nn.Module):
    """Attention of the relay to itself and to all words."""

    def __init__(self, nhid, nhead, head_dim):
        super().__init__()
        self.nhead, self.head_dim = nhead, head_dim
        self.WQ = nn.Linear(nhid, nhead * head_dim)
        self.WK = nn.Linear(nhid, nhead * head_dim)
        self.WV = nn.Linear(nhid, nhead * head_dim)
        self.WO = nn.Linear(nhead * head_dim, nhid)

    def forward(self, x, y, mask):
        """x: (batch, 1, nhid). y: (batch, length, nhid). mask: true where y is seen, (batch, length)."""
        B, L, _ = y.size()
        q, k, v = self.WQ(x), self.WK(y), self.WV(y)
        q = q.view(B, 1, self.nhead, self.head_dim).transpose(1, 2)  # B N 1 h
        # before
        k = k.view(B, L, self.nhead, self.head_dim).transpose(1, 2)
        v = k.view(B, self.nhead, L, self.head_dim)  # B N L h
        # after
        k = k.view(B, L, self.nhead, self.head_dim).transpose(1, 2)
        v = v.view(B, L, self.nhead, self.head_dim).transpose(1, 2)  # B N L h
        # end
        pre_a = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_dim)
        pre_a = pre_a.masked_fill(~mask[:, None, None, :], -float("inf"))
        att = torch.matmul(torch.softmax(pre_a, 3), v)
        return self.WO(att.transpose(1, 2).reshape(B, 1, -1))


class StarTransformer(nn.Module):
    """
    :param int hidden_size: size of a word
    :param int num_layers: number of layers
    :param int num_head: number of heads
    :param int head_dim: size of a head
    """

    def __init__(self, hidden_size, num_layers, num_head, head_dim):
        super().__init__()
        self.iters = num_layers
        sizes = (hidden_size, num_head, head_dim)
        self.norm = nn.ModuleList([nn.LayerNorm(hidden_size) for _ in range(num_layers)])
        self.ring_att = nn.ModuleList([_MSA1(*sizes) for _ in range(num_layers)])
        self.star_att = nn.ModuleList([_MSA2(*sizes) for _ in range(num_layers)])

    def forward(self, data, mask):
        """
        :param FloatTensor data: (batch, length, hidden_size)
        :param ByteTensor mask: 1 at words, 0 at padding, (batch, length)
        :return: the words, of the shape of data, and the relay, (batch, hidden_size)
        """
        mask = mask.bool()
        embs = data.masked_fill(~mask.unsqueeze(-1), 0)
        nodes = embs
        relay = embs.sum(1, keepdim=True) / mask.sum(1).view(-1, 1, 1)
        r_mask = torch.cat([mask.new_ones(mask.size(0), 1), mask], 1)
        for i in range(self.iters):
            nodes = self.ring_att[i](self.norm[i](nodes), embs, relay, mask)
            nodes = nn.functional.leaky_relu(nodes).masked_fill(~mask.unsqueeze(-1), 0)
            relay = self.star_att[i](relay, torch.cat([relay, nodes], 1), r_mask)
            relay = nn.functional.leaky_relu(relay)
        return nodes, relay.squeeze(1)
