import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class MAB(nn.Module):
    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=False):
        super().__init__()
        self.dim_V = dim_V
        self.num_heads = num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        self.fc_o = nn.Linear(dim_V, dim_V)
        self.ln0 = nn.LayerNorm(dim_V) if ln else nn.Identity()
        self.ln1 = nn.LayerNorm(dim_V) if ln else nn.Identity()

    def forward(self, Q, K):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)
        d = self.dim_V // self.num_heads
        # heads are stacked along the batch
        Q_ = torch.cat(Q.split(d, 2), 0)
        K_ = torch.cat(K.split(d, 2), 0)
        V_ = torch.cat(V.split(d, 2), 0)
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(d), 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = self.ln0(O)
        return self.ln1(O + F.relu(self.fc_o(O)))


class PCAE(nn.Module):
    """Part capsules: a small network of its own for each, pooled by an attention map that it predicts too."""

    def __init__(self, num_capsules=24, num_feature_maps=24, hidden=128):
        super().__init__()
        self.capsules = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(1, hidden, 3, stride=2),
                    nn.ReLU(),
                    nn.Conv2d(hidden, hidden, 3, stride=2),
                    nn.ReLU(),
                    nn.Conv2d(hidden, hidden, 3, stride=1),
                    nn.ReLU(),
                    nn.Conv2d(hidden, num_feature_maps, 1, stride=1),
                )
                for _ in range(num_capsules)
            ]
        )
        # before
        self.soft_max = nn.Softmax(2)
        # after
        self.soft_max = nn.Softmax(1)
        # end
        self.relu = nn.ReLU()
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        temp = []
        for capsule in self.capsules:
            part_capsule = capsule(x)
            attention = part_capsule[:, -1, :, :]  # (B,h,w)
            attention_soft = self.soft_max(attention.reshape(attention.size(0), -1, 1))
            attention_soft = attention_soft.view_as(attention).unsqueeze(1)
            feature_maps = part_capsule[:, :-1, :, :]
            # (B,6+1+16)
            attention_pool = torch.sum(torch.sum(feature_maps * attention_soft, dim=-1), dim=-1)
            temp.append(attention_pool.unsqueeze(1))
        part_capsule_param = torch.cat(temp, dim=1)  # (B,M,23)

        presence = part_capsule_param[:, :, 6]
        if self.training:
            presence = presence + torch.empty_like(presence).uniform_(-2, 2)
        x_m = self.relu(part_capsule_param[:, :, :6])
        d_m = self.sigmoid(presence).unsqueeze(-1)
        c_z = self.relu(part_capsule_param[:, :, 7:])
        return x_m, d_m, c_z


class SCAE(nn.Module):
    def __init__(
        self,
        num_part_capsules=24,
        num_object_capsules=24,
        num_feature_maps=24,
        hidden=128,
        set_dim=16,
        set_heads=1,
        set_out=26,
    ):
        super().__init__()
        self.pcae = PCAE(num_part_capsules, num_feature_maps, hidden)
        self.embed = nn.Linear(num_feature_maps - 1, set_dim)
        self.sab = MAB(set_dim, set_dim, set_dim, set_heads, ln=True)
        self.S = nn.Parameter(torch.randn(1, num_object_capsules, set_dim) * set_dim**-0.5)
        self.pma = MAB(set_dim, set_dim, set_dim, set_heads, ln=True)
        self.fc_out = nn.Linear(set_dim, set_out)

    def forward(self, x):
        """x: (B,1,H,W). Returns the object capsules, (B,K,set_out), and the presence of the parts, (B,M,1)."""
        x_m, d_m, c_z = self.pcae(x)
        parts = self.embed(torch.cat([d_m, x_m, c_z], -1))
        parts = self.sab(parts, parts)
        objects = self.pma(self.S.expand(x.size(0), -1, -1), parts)
        return self.fc_out(objects), d_m
