"""The emitter of a crowd generator: it denoises the origins and goals of the people who enter a scene."""

import math

import torch
import torch.nn as nn


class SinusoidalPosEmb(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half_dim = self.dim // 2
        emb = math.log(10000) / (half_dim - 1)
        emb = torch.exp(torch.arange(half_dim, device=t.device, dtype=t.dtype) * -emb)
        emb = t[:, None] * emb[None, :]
        return torch.cat((emb.sin(), emb.cos()), dim=-1)


def normalize_padding_origin_goal(origin_goal, lengths):
    """Scale the coordinates of the agents to [-1, 1], and set those of padded ones to 0.

    Returns the coordinates, of shape (batch, agents, 4), and a mask that is True where an agent is present.
    """
    agents = torch.arange(origin_goal.shape[1], device=origin_goal.device)
    mask = agents[None, :] < lengths[:, None]
    origin_goal = origin_goal * 2 - 1
    return origin_goal * mask.unsqueeze(-1), mask


class EmitterDenoiser(nn.Module):
    def __init__(self, d_model=32, num_heads=4, num_layers=1, point_dim=4, context_dim=16):
        super().__init__()
        self.point_embedding = nn.Linear(point_dim, d_model)
        self.context_embedding = nn.Linear(context_dim, d_model)
        self.time_embedding = nn.Sequential(
            SinusoidalPosEmb(d_model), nn.Linear(d_model, d_model), nn.SiLU()
        )
        layer = nn.TransformerEncoderLayer(
            d_model=d_model,
            nhead=num_heads,
            dim_feedforward=2 * d_model,
            dropout=0.1,
            batch_first=True,
            norm_first=True,
        )
        self.transformer_encoder = nn.TransformerEncoder(
            layer, num_layers=num_layers, enable_nested_tensor=False
        )
        self.linear = nn.Linear(d_model, point_dim)

    def forward(self, origin_goal, t, context, lengths):
        """
        Args:
            origin_goal: noisy origins and goals of the agents, of shape (batch, agents, 4), in [0, 1].
            t: the step of the diffusion, of shape (batch,).
            context: the features of the scene, of shape (batch, context_dim).
            lengths: how many agents there are in each scene, of shape (batch,).
        """
        x, mask = normalize_padding_origin_goal(origin_goal, lengths)
        h = self.point_embedding(x)
        h = h + self.context_embedding(context).unsqueeze(1)
        h = h + self.time_embedding(t.to(h.dtype)).unsqueeze(1)
        # before
        h = self.transformer_encoder(h, src_key_padding_mask=mask)
        # after
        h = self.transformer_encoder(h, src_key_padding_mask=~mask)
        # end
        return self.linear(h) * mask.unsqueeze(-1)
