"""The layers of the decoder of BEVFormer. The attention core follows the interface of paddle.nn.MultiHeadAttention."""

import torch
from torch import nn


def _convert_attention_mask(attn_mask, dtype):
    """
    Convert the attention mask to the target dtype we expect: a bool mask, False at positions that have no
    effect on the attention, becomes 0 and the lowest value. Other masks are added as they are.
    """
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zeros = torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device)
        return zeros.masked_fill(~attn_mask, torch.finfo(dtype).min)
    return attn_mask


class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def _reshape(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, query, key, value, attn_mask=None):
        q = self._reshape(self.q_proj(query))
        k = self._reshape(self.k_proj(key))
        v = self._reshape(self.v_proj(value))

        product = torch.matmul(q * self.head_dim**-0.5, k.transpose(-1, -2))
        attn_mask = _convert_attention_mask(attn_mask, product.dtype)
        if attn_mask is not None:
            product = product + attn_mask
        weights = self.dropout(torch.softmax(product, dim=-1))
        out = torch.matmul(weights, v).transpose(1, 2).flatten(2)
        return self.out_proj(out)


class MultiheadAttention(nn.Module):
    """A wrapper of MultiHeadAttention that adds the positional encodings and the identity connection.

    Args:
        embed_dims (int): The embedding dimension.
        num_heads (int): Parallel attention heads.
        attn_drop (float): A Dropout layer on attn_output_weights. Default: 0.0.
        proj_drop (float): A Dropout layer after the attention. Default: 0.0.
    """

    def __init__(self, embed_dims, num_heads, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.attn = MultiHeadAttention(embed_dims, num_heads, attn_drop)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, query, key=None, value=None, query_pos=None, key_pos=None, attn_mask=None):
        """
        Args:
            query (Tensor): [bs, num_queries, embed_dims].
            key (Tensor): [bs, num_keys, embed_dims]. If None, the `query` will be used.
            value (Tensor): as `key`. If None, the `key` will be used.
            query_pos (Tensor): The positional encoding for query, same shape as query.
            key_pos (Tensor): for key. If None and key is the query, query_pos is used.
            attn_mask (Tensor): bool mask with shape [num_queries, num_keys]. Same in
                `torch.nn.MultiheadAttention.forward`.
        """
        identity = query
        if key is None:
            key, key_pos = query, query_pos if key_pos is None else key_pos
        if value is None:
            value = key
        if query_pos is not None:
            query = query + query_pos
        if key_pos is not None:
            key = key + key_pos
        # before
        out = self.attn(query=query, key=key, value=value, attn_mask=attn_mask)
        # after
        if attn_mask is not None:
            attn_mask = torch.logical_not(attn_mask)
        out = self.attn(query=query, key=key, value=value, attn_mask=attn_mask)
        # end
        return identity + self.proj_drop(out)


class DetrTransformerDecoderLayer(nn.Module):
    """The object queries attend to each other, then to the features of the bird's eye view."""

    def __init__(self, embed_dims=256, num_heads=8, feedforward_channels=512, ffn_drop=0.0):
        super().__init__()
        self.self_attn = MultiheadAttention(embed_dims, num_heads)
        self.cross_attn = MultiheadAttention(embed_dims, num_heads)
        self.ffn = nn.Sequential(
            nn.Linear(embed_dims, feedforward_channels),
            nn.ReLU(),
            nn.Dropout(ffn_drop),
            nn.Linear(feedforward_channels, embed_dims),
        )
        self.norms = nn.ModuleList([nn.LayerNorm(embed_dims) for _ in range(3)])

    def forward(self, query, bev_feats, query_pos=None, attn_mask=None):
        """
        query: [bs, num_queries, embed_dims], bev_feats: [bs, bev_h * bev_w, embed_dims]
        attn_mask: [num_queries, num_queries], of the self attention. It keeps the denoising groups apart.
        """
        query = self.self_attn(query, query_pos=query_pos, attn_mask=attn_mask)
        query = self.norms[0](query)
        query = self.cross_attn(query, bev_feats, query_pos=query_pos)
        query = self.norms[1](query)
        return self.norms[2](query + self.ffn(query))
