"""How the agents of a trajectory forecaster read the map: road segments are points, then segments are attended."""

import torch
import torch.nn as nn


class MapEncoderPts(nn.Module):
    """Encode each road segment, a polyline of points, with one learned query.

    roads: (batch, segments, points, map_attr + 1). The last attribute is 1 at existing points, else 0.
    """

    def __init__(self, d_k, map_attr=2, num_heads=2, dropout=0.0):
        super().__init__()
        self.map_attr = map_attr
        self.map_seeds = nn.Parameter(torch.randn(1, 1, d_k))
        self.road_pts_lin = nn.Linear(map_attr, d_k)
        self.road_pts_attn_layer = nn.MultiheadAttention(d_k, num_heads=num_heads, dropout=dropout)
        self.norm1 = nn.LayerNorm(d_k, eps=1e-5)

    def get_road_pts_mask(self, roads):
        road_segment_mask = torch.sum(roads[:, :, :, -1], dim=2) == 0
        road_pts_mask = (1.0 - roads[:, :, :, -1]).to(torch.bool).view(-1, roads.shape[2])
        # a segment with no points sees its first one, or its softmax would be over nothing
        road_pts_mask[:, 0][road_pts_mask.sum(-1) == roads.shape[2]] = False
        return road_segment_mask, road_pts_mask

    def forward(self, roads):
        B, S, P, _ = roads.shape
        road_segment_mask, road_pts_mask = self.get_road_pts_mask(roads)
        road_pts_feats = self.road_pts_lin(roads[:, :, :, : self.map_attr])
        road_pts_feats = road_pts_feats.view(B * S, P, -1).permute(1, 0, 2)
        map_seeds = self.map_seeds.repeat(1, B * S, 1)
        road_seg_emb = self.road_pts_attn_layer(
            query=map_seeds,
            key=road_pts_feats,
            value=road_pts_feats,
            key_padding_mask=road_pts_mask,
        )[0]
        road_seg_emb = self.norm1(road_seg_emb).view(B, S, -1)
        return road_seg_emb.permute(1, 0, 2), road_segment_mask


class MapAwareDecoderLayer(nn.Module):
    def __init__(self, d_k, map_attr=2, num_heads=2, dropout=0.0):
        super().__init__()
        self.map_encoder = MapEncoderPts(d_k, map_attr, num_heads, dropout)
        self.map_attn_layer = nn.MultiheadAttention(d_k, num_heads=num_heads, dropout=dropout)
        self.norm = nn.LayerNorm(d_k, eps=1e-5)

    def forward(self, agents, roads):
        """
        :param agents: [B, T, d_k] features of the agent at each time step.
        :param roads: [B, segments, points, map_attr + 1] the map around the agent.
        :return: [B, T, d_k]
        """
        map_features, road_segment_mask = self.map_encoder(roads)
        query = agents.permute(1, 0, 2)
        # before
        out = self.map_attn_layer(
            query=query,
            key=map_features,
            value=map_features,
            key_padding_mask=road_segment_mask,
        )[0]
        # after
        road_segment_mask[torch.all(road_segment_mask, dim=-1), 0] = False
        out = self.map_attn_layer(
            query=query,
            key=map_features,
            value=map_features,
            key_padding_mask=road_segment_mask,
        )[0]
        # end
        return self.norm(query + out).permute(1, 0, 2)
