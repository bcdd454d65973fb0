"""The invariant point attention of a protein folding model: scores of scalars, of points in space and of pairs."""

import torch
import torch.nn.functional as F
from torch import einsum, nn


def exists(val):
    return val is not None


def split_heads(t, h, *last):
    """(b, n, h * d) --> (b, h, n, *last)"""
    return t.unflatten(-1, (h, *last)).transpose(1, 2)


class InvariantPointAttention(nn.Module):
    def __init__(
        self,
        *,
        dim,
        heads=8,
        scalar_key_dim=16,
        scalar_value_dim=16,
        point_key_dim=4,
        point_value_dim=4,
        eps=1e-8,
    ):
        super().__init__()
        self.eps = eps
        self.heads = heads

        # scale of each of the three terms, so that their sum has unit variance
        num_attn_logits = 3
        self.scalar_attn_logits_scale = (num_attn_logits * scalar_key_dim) ** -0.5
        self.point_attn_logits_scale = ((num_attn_logits * point_key_dim) * (9 / 2)) ** -0.5
        self.pairwise_attn_logits_scale = num_attn_logits**-0.5

        self.to_scalar_q = nn.Linear(dim, scalar_key_dim * heads, bias=False)
        self.to_scalar_k = nn.Linear(dim, scalar_key_dim * heads, bias=False)
        self.to_scalar_v = nn.Linear(dim, scalar_value_dim * heads, bias=False)
        point_weight_init_value = torch.log(torch.exp(torch.full((heads,), 1.0)) - 1.0)
        self.point_weights = nn.Parameter(point_weight_init_value)
        self.to_point_q = nn.Linear(dim, point_key_dim * heads * 3, bias=False)
        self.to_point_k = nn.Linear(dim, point_key_dim * heads * 3, bias=False)
        self.to_point_v = nn.Linear(dim, point_value_dim * heads * 3, bias=False)
        self.to_pairwise_attn_bias = nn.Linear(dim, heads)
        self.to_out = nn.Linear(heads * (scalar_value_dim + point_value_dim * 4 + dim), dim)

    def forward(self, single_repr, pairwise_repr, rotations, translations, mask=None):
        """
        single_repr: (b, n, dim). pairwise_repr: (b, n, n, dim). mask: True at residues, (b, n)
        rotations: (b, n, 3, 3). translations: (b, n, 3). They take a point of a residue to the global frame.
        """
        x, h, eps = single_repr, self.heads, self.eps
        q_scalar = split_heads(self.to_scalar_q(x), h, -1)
        k_scalar = split_heads(self.to_scalar_k(x), h, -1)
        v_scalar = split_heads(self.to_scalar_v(x), h, -1)

        # points go to the global frame
        q_point, k_point, v_point = (
            einsum("b h n d c, b n c r -> b h n d r", split_heads(proj(x), h, -1, 3), rotations)
            + translations[:, None, :, None, :]
            for proj in (self.to_point_q, self.to_point_k, self.to_point_v)
        )

        # scalars
        attn_logits_scalar = einsum("b h i d, b h j d -> b h i j", q_scalar, k_scalar)
        attn_logits_scalar = attn_logits_scalar * self.scalar_attn_logits_scale

        # points
        point_qk_diff = q_point[:, :, :, None] - k_point[:, :, None]
        point_dist = (point_qk_diff**2).sum(dim=(-1, -2))
        point_weights = F.softplus(self.point_weights)[None, :, None, None]
        # before
        attn_logits_points = -0.5 * (point_dist * point_weights)
        # after
        attn_logits_points = -0.5 * (point_dist * point_weights * self.point_attn_logits_scale)
        # end

        # pairs
        attn_logits_pairwise = self.to_pairwise_attn_bias(pairwise_repr).permute(0, 3, 1, 2)
        attn_logits_pairwise = attn_logits_pairwise * self.pairwise_attn_logits_scale

        attn_logits = attn_logits_scalar + attn_logits_points + attn_logits_pairwise
        if exists(mask):
            mask = mask[:, None, :, None] & mask[:, None, None, :]
            attn_logits = attn_logits.masked_fill(~mask, -torch.finfo(attn_logits.dtype).max)
        attn = attn_logits.softmax(dim=-1)

        results_scalar = einsum("b h i j, b h j d -> b h i d", attn, v_scalar)
        results_pairwise = einsum("b h i j, b i j d -> b h i d", attn, pairwise_repr)
        results_points = einsum("b h i j, b h j d c -> b h i d c", attn, v_point)

        # and back to the local frames
        results_points = results_points - translations[:, None, :, None, :]
        results_points = einsum("b h n d c, b n r c -> b h n d r", results_points, rotations)
        norm = torch.sqrt((results_points**2).sum(dim=-1) + eps)

        results = (results_scalar, results_points.flatten(-2), norm, results_pairwise)
        return self.to_out(torch.cat([r.transpose(1, 2).flatten(2) for r in results], dim=-1))
