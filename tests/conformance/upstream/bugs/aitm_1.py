"""Adaptive information transfer between the stages of a customer's journey: impression, click, purchase."""

import torch
import torch.nn as nn


class Tower(nn.Module):
    def __init__(self, input_dim: int, dims=(128, 64, 32), drop_prob=(0.1, 0.3, 0.3)):
        super().__init__()
        self.dims = dims
        layers = []
        for dim, prob in zip(dims, drop_prob):
            layers += [nn.Linear(input_dim, dim), nn.ReLU(), nn.Dropout(prob)]
            input_dim = dim
        self.layer = nn.Sequential(*layers)

    def forward(self, x):
        return self.layer(torch.flatten(x, start_dim=1))


class Attention(nn.Module):
    """
    Weighs what a stage knows against what the stage before it passes on, and adds them up.

    AIT module, https://arxiv.org/abs/2105.08489
    """

    def __init__(self, dim=32):
        super().__init__()
        self.dim = dim
        self.q_layer = nn.Linear(dim, dim, bias=False)
        self.k_layer = nn.Linear(dim, dim, bias=False)
        self.v_layer = nn.Linear(dim, dim, bias=False)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, inputs):
        # inputs: (batch, 2, dim)
        Q = self.q_layer(inputs)
        K = self.k_layer(inputs)
        V = self.v_layer(inputs)
        # before
        a = torch.sum(torch.mul(Q, V), -1) / torch.sqrt(torch.tensor(self.dim))
        # after
        a = torch.sum(torch.mul(Q, K), -1) / torch.sqrt(torch.tensor(self.dim))
        # end
        a = self.softmax(a)
        outputs = torch.sum(torch.mul(torch.unsqueeze(a, -1), V), dim=1)
        return outputs


class AITM(nn.Module):
    def __init__(self, input_dim: int, tower_dims=(128, 64, 32), drop_prob=(0.1, 0.3, 0.3)):
        super().__init__()
        out_dim = tower_dims[-1]
        self.click_tower = Tower(input_dim, tower_dims, drop_prob)
        self.conversion_tower = Tower(input_dim, tower_dims, drop_prob)
        self.attention_layer = Attention(out_dim)
        self.info_layer = nn.Sequential(nn.Linear(out_dim, out_dim), nn.ReLU())
        self.click_layer = nn.Sequential(nn.Linear(out_dim, 1), nn.Sigmoid())
        self.conversion_layer = nn.Sequential(nn.Linear(out_dim, 1), nn.Sigmoid())

    def forward(self, feature_embedding):
        tower_click = self.click_tower(feature_embedding)
        tower_conversion = torch.unsqueeze(self.conversion_tower(feature_embedding), 1)
        info = torch.unsqueeze(self.info_layer(tower_click), 1)
        ait = self.attention_layer(torch.cat([tower_conversion, info], 1))
        click = torch.squeeze(self.click_layer(tower_click), dim=1)
        conversion = torch.squeeze(self.conversion_layer(ait), dim=1)
        return click, conversion
