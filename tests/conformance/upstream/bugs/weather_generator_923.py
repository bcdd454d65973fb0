"""The self-attention of a model of the atmosphere, whose cells hold different numbers of observations."""

from functools import partial

import torch
import torch.nn.functional as F


def flash_attn_varlen_func(q, k, v, cu_seqlens, dropout_p=0.0, softcap=0.0):
    """Attention within each of the packed sequences. q, k, v: (tokens, heads, head_dim)."""
    outs = []
    for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        scores = torch.einsum("qhd,khd->hqk", q[start:stop], k[start:stop]) * q.shape[-1] ** -0.5
        if softcap > 0.0:
            scores = softcap * torch.tanh(scores / softcap)
        weights = F.dropout(scores.softmax(dim=-1), dropout_p)
        outs.append(torch.einsum("hqk,khd->qhd", weights, v[start:stop]))
    return torch.cat(outs)


class RMSNorm(torch.nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class MultiSelfAttentionHeadVarlen(torch.nn.Module):
    def __init__(
        self,
        dim_embed,
        num_heads,
        dim_head_proj=None,
        dropout_rate=0.0,
        with_residual=True,
        with_qk_lnorm=True,
        softcap=0.0,
        norm_type="LayerNorm",
        norm_eps=1e-5,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.with_residual = with_residual
        self.softcap = softcap

        assert dim_embed % num_heads == 0
        self.dim_head_proj = dim_embed // num_heads if dim_head_proj is None else dim_head_proj

        norm = partial(torch.nn.LayerNorm if norm_type == "LayerNorm" else RMSNorm, eps=norm_eps)
        self.lnorm = norm(dim_embed)
        self.proj_heads_q = torch.nn.Linear(dim_embed, num_heads * self.dim_head_proj, bias=False)
        self.proj_heads_k = torch.nn.Linear(dim_embed, num_heads * self.dim_head_proj, bias=False)
        self.proj_heads_v = torch.nn.Linear(dim_embed, num_heads * self.dim_head_proj, bias=False)
        self.proj_out = torch.nn.Linear(num_heads * self.dim_head_proj, dim_embed, bias=False)
        self.dropout = torch.nn.Dropout(p=dropout_rate)

        lnorm = norm if with_qk_lnorm else torch.nn.Identity
        self.lnorm_q = lnorm(self.dim_head_proj)
        self.lnorm_k = lnorm(self.dim_head_proj)

    def forward(self, x, x_lens):
        """
        x: packed tokens, (tokens, dim_embed)
        x_lens: the number of tokens of each cell, after a leading zero
        """
        x_in = x
        x = self.lnorm(x)

        s = [x.shape[0], self.num_heads, -1]
        qs = self.lnorm_q(self.proj_heads_q(x).reshape(s))
        ks = self.lnorm_k(self.proj_heads_k(x).reshape(s))
        vs = self.proj_heads_v(x).reshape(s)

        cum_x_lens = torch.cumsum(x_lens, 0, dtype=torch.int32)
        # before
        dropout_rate = self.dropout_rate
        # after
        # the kernel does not know whether the module trains
        dropout_rate = self.dropout_rate if self.training else 0.0
        # end
        outs = flash_attn_varlen_func(
            qs, ks, vs, cum_x_lens, dropout_p=dropout_rate, softcap=self.softcap
        )

        out = self.dropout(self.proj_out(outs.flatten(-2, -1)))
        return x_in + out if self.with_residual else out
