"""Self-attention of the Graphormer that encodes molecules for the prediction of spectra."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiheadAttention(nn.Module):
    """Attention among the atoms of a molecule, with biases for how they are related."""

    def __init__(
        self,
        embed_dim,
        num_heads,
        dropout=0.0,
        bias=True,
        self_attention=False,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout

        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == self.embed_dim, (
            "embed_dim must be divisible by num_heads"
        )
        self.scaling = self.head_dim**-0.5

        self.self_attention = self_attention
        assert self.self_attention, "Only support self attention"

        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

        self.reset_parameters()

    def reset_parameters(self):
        # Smaller weights at first, as three projections work together
        for proj in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(proj.weight, gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.constant_(self.out_proj.bias, 0.0)

    def _split_heads(self, x: Tensor) -> Tensor:
        length, bsz, _ = x.size()
        # (length, batch, channel) -> (batch, heads, length, head_dim)
        return x.view(length, bsz, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def forward(
        self,
        query: Tensor,
        attn_bias: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
    ) -> Tensor:
        """Input shape: Time x Batch x Channel

        Args:
            attn_bias (Tensor, optional): what the distances and bonds add to the
                scores, of shape `(batch, num_heads, src_len, src_len)`.
            key_padding_mask (BoolTensor, optional): True at the padding of
                molecules with fewer atoms, of shape `(batch, src_len)`.
            attn_mask (Tensor, optional): is added to the scores of all
                molecules, of shape `(src_len, src_len)`.
        """
        tgt_len, bsz, embed_dim = query.size()
        assert embed_dim == self.embed_dim, f"query dim {embed_dim} != {self.embed_dim}"

        q = self._split_heads(self.q_proj(query))
        k = self._split_heads(self.k_proj(query))
        v = self._split_heads(self.v_proj(query))

        # One mask for the fused kernel: (batch, num_heads, tgt_len, src_len)
        fused_mask = None
        if attn_bias is not None:
            fused_mask = attn_bias
        if attn_mask is not None:
            fused_mask = attn_mask[None, None] if fused_mask is None else fused_mask + attn_mask
        if key_padding_mask is not None:
            if fused_mask is None:
                fused_mask = q.new_zeros(bsz, 1, tgt_len, tgt_len)
            padding = key_padding_mask[:, None, None, :].to(torch.bool)
            fused_mask = fused_mask.masked_fill(padding, float("-inf"))

        # before
        dropout_p = self.dropout
        # after
        dropout_p = self.dropout if self.training else 0.0
        # end
        attn_output = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=fused_mask,
            dropout_p=dropout_p,
            is_causal=False,
            scale=self.scaling,
        )

        # (batch, heads, length, head_dim) -> (length, batch, channel)
        attn = attn_output.permute(2, 0, 1, 3).reshape(tgt_len, bsz, self.embed_dim)
        return self.out_proj(attn)
