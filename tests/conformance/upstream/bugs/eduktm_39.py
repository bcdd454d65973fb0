"""Context-aware attentive knowledge tracing (AKT): attention that forgets what is long ago."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    """
    Attention whose scores decay with the distance between two exercises; the decay is learned for each head.

    kq_same: whether keys and queries share a projection
    """

    def __init__(self, n_feat, d_k=None, n_heads=8, dropout=0.1, kq_same=True, bias=True):
        super().__init__()
        self.d_model = n_feat
        self.d_k = d_k or n_feat // n_heads
        self.h = n_heads
        self.kq_same = kq_same

        self.v_linear = nn.Linear(n_feat, n_feat, bias=bias)
        self.k_linear = nn.Linear(n_feat, n_feat, bias=bias)
        if not kq_same:
            self.q_linear = nn.Linear(n_feat, n_feat, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(n_feat, n_feat, bias=bias)
        self.gammas = nn.Parameter(torch.zeros(n_heads, 1, 1))
        nn.init.xavier_uniform_(self.gammas)

    def forward(self, q, k, v, mask, zero_pad=False):
        """
        mask: 1 where an exercise is seen, 0 where not
        zero_pad: whether the first exercise attends to nothing
        """
        bs = q.size(0)

        k = self.k_linear(k).view(bs, -1, self.h, self.d_k)
        project_q = self.k_linear if self.kq_same else self.q_linear
        q = project_q(q).view(bs, -1, self.h, self.d_k)
        v = self.v_linear(v).view(bs, -1, self.h, self.d_k)

        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # bs * h * sl * d_k
        scores = attention(q, k, v, self.d_k, mask, self.dropout, zero_pad, self.gammas)

        concat = scores.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.out_proj(concat)


def attention(q, k, v, d_k, mask, dropout, zero_pad, gamma):
    """Return the values, summed with weights that decay."""
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)  # bs * h * sl * sl
    bs, head, seqlen = scores.size(0), scores.size(1), scores.size(2)

    steps = torch.arange(seqlen, device=q.device)
    position_effect = torch.abs(steps[None, :] - steps[:, None]).type_as(scores)

    with torch.no_grad():
        scores_ = scores.masked_fill(mask == 0, -1e32)
        scores_ = F.softmax(scores_, dim=-1) * mask.type_as(scores)
        distcum_scores = torch.cumsum(scores_, dim=-1)
        disttotal_scores = torch.sum(scores_, dim=-1, keepdim=True)
        dist_scores = torch.clamp((disttotal_scores - distcum_scores) * position_effect, min=0.0)
        dist_scores = dist_scores.sqrt().detach()

    gamma = -1.0 * F.softplus(gamma).unsqueeze(0)
    total_effect = torch.clamp((dist_scores * gamma).exp(), min=1e-5, max=1e5)
    scores = scores * total_effect

    # before
    scores.masked_fill(mask == 0, -1e32)
    # after
    scores.masked_fill_(mask == 0, -1e32)
    # end
    scores = F.softmax(scores, dim=-1)
    if zero_pad:
        pad_zero = torch.zeros(bs, head, 1, seqlen, dtype=scores.dtype, device=scores.device)
        scores = torch.cat([pad_zero, scores[:, :, 1:, :]], dim=2)
    scores = dropout(scores)
    return torch.matmul(scores, v)
