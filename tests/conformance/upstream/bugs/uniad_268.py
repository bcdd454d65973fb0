"""The attention of a bird's eye view to itself and to the view of the frame before."""

import torch
import torch.nn.functional as F
from torch import nn


def bev_grid(h, w, device, dtype):
    """Return the middle of each cell as (x, y) in [0, 1], of shape (h * w, 2)."""
    ys = (torch.arange(h, device=device, dtype=dtype) + 0.5) / h
    xs = (torch.arange(w, device=device, dtype=dtype) + 0.5) / w
    ys, xs = torch.meshgrid(ys, xs, indexing="ij")
    return torch.stack([xs.flatten(), ys.flatten()], dim=-1)


class TemporalSelfAttention(nn.Module):
    """Deformable attention: each cell reads a few points of both views.

    Args:
        embed_dims (int): Channels of the view.
        bev_h (int): Rows of the view.
        bev_w (int): Columns of the view.
        num_heads (int): Number of heads.
        num_points (int): Points read per head and view.
        num_bev_queue (int): Views, which are the previous and the current one.
    """

    def __init__(self, embed_dims=32, bev_h=4, bev_w=4, num_heads=4, num_points=2, num_bev_queue=2):
        super().__init__()
        self.embed_dims = embed_dims
        self.bev_h, self.bev_w = bev_h, bev_w
        self.num_heads = num_heads
        self.num_points = num_points
        self.num_bev_queue = num_bev_queue
        self.sampling_offsets = nn.Linear(
            embed_dims * num_bev_queue, num_bev_queue * num_heads * num_points * 2
        )
        self.attention_weights = nn.Linear(
            embed_dims * num_bev_queue, num_bev_queue * num_heads * num_points
        )
        self.value_proj = nn.Linear(embed_dims, embed_dims)
        self.output_proj = nn.Linear(embed_dims, embed_dims)

    def sample(self, value, locations, weights):
        """
        value: (N, S, M, D). locations: (N, Lq, M, P, 2). weights: (N, Lq, M, P)
        """
        n, _, m, d = value.shape
        lq = locations.shape[1]
        maps = value.permute(0, 2, 3, 1).reshape(n * m, d, self.bev_h, self.bev_w)
        grids = (2 * locations - 1).transpose(1, 2).flatten(0, 1)
        read = F.grid_sample(maps, grids, padding_mode="zeros", align_corners=False)
        weights = weights.transpose(1, 2).reshape(n * m, 1, lq, self.num_points)
        return (read * weights).sum(-1).view(n, m * d, lq).transpose(1, 2)

    def forward(self, query, prev_bev=None):
        """
        query: (bs, bev_h * bev_w, embed_dims). prev_bev: the view of the frame before, likewise; none at first.
        """
        bs, len_bev, c = query.shape
        identity = query
        prev_bev = query if prev_bev is None else prev_bev
        value = torch.stack([prev_bev, query], 1).reshape(bs * 2, len_bev, c)

        # before
        query = torch.cat([value[:bs], query], -1)
        # after
        query = torch.cat([value[0::2], query], -1)
        # end
        value = self.value_proj(value).view(bs * 2, len_bev, self.num_heads, -1)

        shape = (bs, len_bev, self.num_heads, self.num_bev_queue, self.num_points)
        offsets = self.sampling_offsets(query).view(*shape, 2)
        weights = self.attention_weights(query).view(*shape).softmax(-1)
        # views first, as in value
        offsets = offsets.permute(0, 3, 1, 2, 4, 5).reshape(bs * 2, len_bev, self.num_heads, -1, 2)
        weights = weights.permute(0, 3, 1, 2, 4).reshape(bs * 2, len_bev, self.num_heads, -1)

        points = bev_grid(self.bev_h, self.bev_w, query.device, query.dtype)
        normalizer = query.new_tensor([self.bev_w, self.bev_h])
        locations = points[None, :, None, None] + offsets / normalizer
        output = self.sample(value, locations, weights)

        # the mean over the two views
        output = output.view(bs, self.num_bev_queue, len_bev, c).mean(1)
        return self.output_proj(output) + identity
