"""Multi-head attention with flash attention inside."""

from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

EfficientAttentionConfig = namedtuple(
    "EfficientAttentionConfig", ["enable_flash", "enable_math", "enable_mem_efficient"]
)


class FlashAttention(nn.Module):
    def __init__(self, dropout=0.0, causal=False):
        super().__init__()
        self.dropout = dropout
        self.causal = causal
        # flash attention where there is a device for it
        self.cpu_config = EfficientAttentionConfig(True, True, True)

    def forward(self, q, k, v):
        """q, k, v: (b, s, h, d) -> (b, s, h, d)"""
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return out.transpose(1, 2)


class FlashMHA(nn.Module):
    """Takes query, key and value like nn.MultiheadAttention with batch_first=True.

    query: (b, s, embed_dim), key and value: (b, t, embed_dim)
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        bias=True,
        batch_first=True,
        dropout=0.0,
        causal=False,
        device=None,
        dtype=None,
    ) -> None:
        assert batch_first
        factory_kwargs = {"device": device, "dtype": dtype}
        super().__init__()
        self.embed_dim = embed_dim
        self.causal = causal

        self.num_heads = num_heads
        assert self.embed_dim % num_heads == 0, "self.kdim must be divisible by num_heads"
        self.head_dim = self.embed_dim // num_heads
        assert self.head_dim % 8 == 0, "Only support head_dim divisible by 8"
        assert self.head_dim <= 128, "Only support head_dim <= 128"

        self.Wqkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias, **factory_kwargs)
        self.inner_attn = FlashAttention(dropout=dropout, causal=causal)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory_kwargs)

    def forward(self, query, key, value):
        # before
        q, k, v = self.Wqkv(query).chunk(3, dim=-1)
        # after
        weights = self.Wqkv.weight.chunk(3)
        biases = self.Wqkv.bias.chunk(3) if self.Wqkv.bias is not None else (None,) * 3
        q, k, v = map(F.linear, (query, key, value), weights, biases)
        # end
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)) for t in (q, k, v))
        context = self.inner_attn(q, k, v)
        return self.out_proj(context.flatten(2))


if __name__ == "__main__":
    mha = FlashMHA(64, 8)
    x = torch.randn(2, 10, 64)
    print(mha(x, x, x).shape)
