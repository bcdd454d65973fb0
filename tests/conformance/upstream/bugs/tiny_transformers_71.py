"""A tiny decoder whose parts are spelled out for interpretability."""

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class AttnConfig:
    d_model: int = 32
    n_heads: int = 4
    d_head: int = 8
    init_scale: float = 0.1
    max_len: int = 64


class CausalAttention(nn.Module):
    """Raw attention: the weights of all heads are kept as single tensors.

    Axes are named as follows: b(atch), q(uery position), k(ey position), h(ead), d(imension of a head),
    m(odel dimension).
    """

    def __init__(self, config: AttnConfig):
        super().__init__()
        self.config = config
        shape = (config.n_heads, config.d_model, config.d_head)
        self.w_q = nn.Parameter(torch.randn(shape) * config.init_scale)
        self.w_k = nn.Parameter(torch.randn(shape) * config.init_scale)
        self.w_v = nn.Parameter(torch.randn(shape) * config.init_scale)
        self.b_q = nn.Parameter(torch.zeros(config.n_heads, config.d_head))
        self.b_k = nn.Parameter(torch.zeros(config.n_heads, config.d_head))
        self.b_v = nn.Parameter(torch.zeros(config.n_heads, config.d_head))
        self.w_o = nn.Parameter(
            torch.randn(config.n_heads, config.d_head, config.d_model) * config.init_scale
        )

    def raw_attention(self, x: torch.Tensor) -> torch.Tensor:
        """Return how much each query looks for each key, before the mask and the softmax."""
        queries = torch.einsum("bqm,hmd->bhqd", x, self.w_q) + self.b_q[:, None]
        keys = torch.einsum("bkm,hmd->bhkd", x, self.w_k) + self.b_k[:, None]
        # before
        return torch.einsum("bhqd,bhkd->bhqk", queries, keys)
        # after
        return torch.einsum("bhqd,bhkd->bhqk", queries, keys) / self.config.d_head**0.5
        # end

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attention pattern, which is causal."""
        raw = self.raw_attention(x)
        length = x.shape[1]
        future = torch.triu(torch.ones(length, length, dtype=torch.bool, device=x.device), 1)
        return raw.masked_fill(future, torch.finfo(raw.dtype).min).softmax(dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = torch.einsum("bkm,hmd->bhkd", x, self.w_v) + self.b_v[:, None]
        heads = torch.einsum("bhqk,bhkd->bhqd", self.attention(x), values)
        return torch.einsum("bhqd,hdm->bqm", heads, self.w_o)
