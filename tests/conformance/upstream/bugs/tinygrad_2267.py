"""LLaMA, with keys and values of earlier calls kept in the attention."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_CONTEXT = 64


# https://github.com/facebookresearch/llama/blob/1076b9c51c77ad06e9d7ba8a4c6df775741732bd/llama/model.py#L47
def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    freqs = torch.arange(end).float().unsqueeze(1) * freqs.unsqueeze(0)
    return torch.stack([freqs.cos(), freqs.sin()], dim=-1).reshape(1, end, 1, dim // 2, 2)


# (a+i*b) * (c+i*d) = (ac-bd) + i*(ad+bc)
def complex_mult(A: Tensor, c: Tensor, d: Tensor) -> Tensor:
    a, b = A[..., 0:1], A[..., 1:2]
    return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq = xq.reshape(*xq.shape[0:-1], -1, 2)
    xk = xk.reshape(*xk.shape[0:-1], -1, 2)
    assert freqs_cis.shape[1] == xq.shape[1] == xk.shape[1], "freqs_cis shape mismatch"
    c, d = freqs_cis[..., 0:1], freqs_cis[..., 1:2]
    return complex_mult(xq, c, d).flatten(3), complex_mult(xk, c, d).flatten(3)


def repeat_kv(x: Tensor, n_rep: int) -> Tensor:
    bs, seqlen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x.unsqueeze(3)
        .expand(bs, seqlen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, seqlen, n_kv_heads * n_rep, head_dim)
    )


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor):
        return (x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()) * self.weight


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads if n_kv_heads is not None else n_heads
        self.head_dim = dim // n_heads
        self.n_rep = self.n_heads // self.n_kv_heads

        self.wq = nn.Linear(dim, self.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(self.n_heads * self.head_dim, dim, bias=False)
        self.cache_k: Optional[Tensor] = None
        self.cache_v: Optional[Tensor] = None

    def forward(
        self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Optional[Tensor]
    ) -> Tensor:
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.reshape(xq.shape[0], xq.shape[1], self.n_heads, self.head_dim)
        xk = xk.reshape(xk.shape[0], xk.shape[1], self.n_kv_heads, self.head_dim)
        xv = xv.reshape(xv.shape[0], xv.shape[1], self.n_kv_heads, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis)
        bsz, seqlen, n_heads, head_dim = xq.shape

        # create kv cache, a new sequence starts with a new one
        if start_pos == 0 or self.cache_k is None:
            # before
            self.cache_k = xk.new_zeros(bsz, MAX_CONTEXT, self.n_heads, self.head_dim)
            self.cache_v = xv.new_zeros(bsz, MAX_CONTEXT, self.n_heads, self.head_dim)
            # after
            self.cache_k = xk.new_zeros(bsz, MAX_CONTEXT, self.n_kv_heads, self.head_dim)
            self.cache_v = xv.new_zeros(bsz, MAX_CONTEXT, self.n_kv_heads, self.head_dim)
            # end

        keys = torch.cat([self.cache_k[:, :start_pos], xk], dim=1)
        values = torch.cat([self.cache_v[:, :start_pos], xv], dim=1)

        # update the cache
        end = start_pos + seqlen
        self.cache_k = torch.cat([keys, self.cache_k[:, end:]], dim=1).detach()
        self.cache_v = torch.cat([values, self.cache_v[:, end:]], dim=1).detach()

        keys, values = repeat_kv(keys, self.n_rep), repeat_kv(values, self.n_rep)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        attn = (
            F.scaled_dot_product_attention(xq, keys, values, mask)
            .transpose(1, 2)
            .reshape(bsz, seqlen, -1)
        )
        return self.wo(attn)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))  # SwiGLU [arxiv/2002.05202, eq (5)]


class TransformerBlock(nn.Module):
    def __init__(self, dim, hidden_dim, n_heads, n_kv_heads, norm_eps):
        super().__init__()
        self.attention = Attention(dim, n_heads, n_kv_heads)
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.attention_norm = RMSNorm(dim, norm_eps)
        self.ffn_norm = RMSNorm(dim, norm_eps)

    def forward(self, x: Tensor, start_pos: int, freqs_cis: Tensor, mask: Optional[Tensor]):
        h = x + self.attention(self.attention_norm(x), start_pos, freqs_cis, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(
        self,
        dim,
        hidden_dim,
        n_heads,
        n_layers,
        vocab_size,
        n_kv_heads=None,
        norm_eps=1e-5,
        rope_theta=10000,
    ):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                TransformerBlock(dim, hidden_dim, n_heads, n_kv_heads, norm_eps)
                for _ in range(n_layers)
            ]
        )
        self.norm = RMSNorm(dim, norm_eps)
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.register_buffer(
            "freqs_cis",
            precompute_freqs_cis(dim // n_heads, MAX_CONTEXT, rope_theta),
            persistent=False,
        )

    def forward(self, tokens: Tensor, start_pos: int = 0) -> Tensor:
        _bsz, seqlen = tokens.shape
        h = self.tok_embeddings(tokens)
        freqs_cis = self.freqs_cis[:, start_pos : start_pos + seqlen]
        mask = None
        if seqlen > 1:
            mask = torch.full(
                (1, 1, seqlen, start_pos + seqlen), float("-inf"), dtype=h.dtype, device=h.device
            ).triu(start_pos + 1)
        for layer in self.layers:
            h = layer(h, start_pos, freqs_cis, mask)
        return self.output(self.norm(h))
