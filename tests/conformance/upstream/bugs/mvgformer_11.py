import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.init import constant_, xavier_uniform_


class ProjAttn(nn.Module):
    """
    Projective Attention Module: the joints of a body, projected into each view, look around where they fall
    """

    def __init__(self, d_model=256, n_levels=4, n_heads=8, n_points=4):
        """
        :param d_model      hidden dimension
        :param n_levels     number of feature levels
        :param n_heads      number of attention heads
        :param n_points     number of sampling points per attention head per feature level
        """
        super().__init__()
        if d_model % n_heads != 0:
            raise ValueError(
                f"d_model must be divisible by n_heads, but got {d_model} and {n_heads}"
            )
        self.d_model = d_model
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = n_points

        # for each level from the features of that level, with the same weights
        self.sampling_offsets = nn.Linear(d_model, n_heads * n_points * 2)
        self.attention_weights = nn.Linear(d_model, n_heads * n_points)
        self.value_proj = nn.Linear(d_model, d_model)
        self.output_proj = nn.Linear(d_model, d_model)
        self._reset_parameters()

    def _reset_parameters(self):
        xavier_uniform_(self.sampling_offsets.weight.data, gain=0.1)
        # each head starts in a direction of its own, each point one step further
        thetas = torch.arange(self.n_heads, dtype=torch.float32) * (2.0 * math.pi / self.n_heads)
        grid_init = torch.stack([thetas.cos(), thetas.sin()], -1)
        grid_init = grid_init / grid_init.abs().max(-1, keepdim=True)[0]
        grid_init = grid_init.view(self.n_heads, 1, 2).repeat(1, self.n_points, 1)
        for i in range(self.n_points):
            grid_init[:, i, :] *= i + 1
        with torch.no_grad():
            self.sampling_offsets.bias.copy_(grid_init.view(-1))
        xavier_uniform_(self.attention_weights.weight.data)
        constant_(self.attention_weights.bias.data, 0.0)
        xavier_uniform_(self.value_proj.weight.data)
        constant_(self.value_proj.bias.data, 0.0)
        xavier_uniform_(self.output_proj.weight.data)
        constant_(self.output_proj.bias.data, 0.0)

    def forward(self, query, reference_points, src_views):
        """
        :param query                (n_views, Length_{query}, C)
        :param reference_points     (n_views, Length_{query}, n_levels, 2), range in [0, 1],
                                    top-left (0, 0), bottom-right (1, 1)
        :param src_views            list of (n_views, C, H, W), size n_levels

        :return output              (n_views, Length_{query}, C)
        """
        n_views, Len_q, _ = query.shape
        feat_lvls = len(src_views)
        assert feat_lvls == self.n_levels

        # the features under the projected joints
        sample_grid = torch.clamp(reference_points * 2.0 - 1.0, -1.1, 1.1)
        ref_point_feats = [
            F.grid_sample(src, sample_grid[:, :, lvl : lvl + 1], align_corners=False)
            .squeeze(-1)
            .permute(0, 2, 1)
            for lvl, src in enumerate(src_views)
        ]

        # combine the view-specific ref point feature and the joint-specific query feature
        feats = torch.stack(ref_point_feats, dim=2) + query.unsqueeze(2)
        # before
        sampling_offsets = self.sampling_offsets(feats).view(
            n_views, Len_q, self.n_heads, feat_lvls, self.n_points, 2
        )
        attention_weights = self.attention_weights(feats).view(
            n_views, Len_q, self.n_heads, feat_lvls * self.n_points
        )
        # after
        sampling_offsets = (
            self.sampling_offsets(feats)
            .view(n_views, Len_q, feat_lvls, self.n_heads, self.n_points, 2)
            .transpose(2, 3)
        )
        attention_weights = (
            self.attention_weights(feats)
            .view(n_views, Len_q, feat_lvls, self.n_heads, self.n_points)
            .transpose(2, 3)
            .flatten(3)
        )
        # end
        attention_weights = F.softmax(attention_weights, -1).view(
            n_views, Len_q, self.n_heads, feat_lvls, self.n_points
        )

        output = 0
        for lvl, src in enumerate(src_views):
            H, W = src.shape[-2:]
            value = self.value_proj(src.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            value = value.reshape(n_views * self.n_heads, -1, H, W)
            # offsets are in pixels of the level
            locations = reference_points[:, :, None, lvl, None]
            locations = locations + sampling_offsets[:, :, :, lvl] / query.new_tensor([W, H])
            locations = locations.transpose(1, 2).flatten(0, 1) * 2.0 - 1.0
            sampled = F.grid_sample(value, locations, align_corners=False)
            weights = attention_weights[:, :, :, lvl].transpose(1, 2).flatten(0, 1)
            output = output + (sampled * weights.unsqueeze(1)).sum(-1)
        output = output.view(n_views, self.d_model, Len_q).transpose(1, 2)
        return self.output_proj(output)
