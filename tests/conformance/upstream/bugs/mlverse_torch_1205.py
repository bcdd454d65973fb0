"""Multi-head attention as in torch for R, functions and module."""

import torch
from torch import nn
from torch.nn import functional as nnf


def nnf_multi_head_attention_forward(
    query,
    key,
    value,
    embed_dim_to_check,
    num_heads,
    in_proj_weight,
    in_proj_bias,
    bias_k,
    bias_v,
    add_zero_attn,
    dropout_p,
    out_proj_weight,
    out_proj_bias,
    training=True,
    key_padding_mask=None,
    need_weights=True,
    attn_mask=None,
    avg_weights=True,
):
    tgt_len, bsz, embed_dim = query.shape
    assert embed_dim == embed_dim_to_check
    head_dim = embed_dim // num_heads
    scaling = head_dim**-0.5

    w_q, w_k, w_v = in_proj_weight.chunk(3)
    b_q, b_k, b_v = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q = nnf.linear(query, w_q, b_q) * scaling
    k = nnf.linear(key, w_k, b_k)
    v = nnf.linear(value, w_v, b_v)

    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.repeat(1, bsz, 1)])
        v = torch.cat([v, bias_v.repeat(1, bsz, 1)])
        if attn_mask is not None:
            attn_mask = nnf.pad(attn_mask, (0, 1))
        if key_padding_mask is not None:
            key_padding_mask = nnf.pad(key_padding_mask, (0, 1))

    q = q.contiguous().view(tgt_len, bsz * num_heads, head_dim).transpose(0, 1)
    k = k.contiguous().view(-1, bsz * num_heads, head_dim).transpose(0, 1)
    v = v.contiguous().view(-1, bsz * num_heads, head_dim).transpose(0, 1)

    if add_zero_attn:
        k = torch.cat([k, k.new_zeros(k.shape[0], 1, head_dim)], dim=1)
        v = torch.cat([v, v.new_zeros(v.shape[0], 1, head_dim)], dim=1)
        if attn_mask is not None:
            attn_mask = nnf.pad(attn_mask, (0, 1))
        if key_padding_mask is not None:
            key_padding_mask = nnf.pad(key_padding_mask, (0, 1))
    src_len = k.shape[1]

    attn_output_weights = torch.bmm(q, k.transpose(1, 2))

    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_output_weights = attn_output_weights.masked_fill(attn_mask, float("-inf"))
        else:
            attn_output_weights = attn_output_weights + attn_mask

    if key_padding_mask is not None:
        attn_output_weights = attn_output_weights.view(bsz, num_heads, tgt_len, src_len)
        # before
        attn_output_weights = attn_output_weights.masked_fill(
            key_padding_mask.unsqueeze(1).unsqueeze(2) > 0, float("-inf")
        )
        # after
        if key_padding_mask.is_floating_point():
            attn_output_weights = attn_output_weights + key_padding_mask.unsqueeze(1).unsqueeze(2)
        else:
            attn_output_weights = attn_output_weights.masked_fill(
                key_padding_mask.unsqueeze(1).unsqueeze(2) > 0, float("-inf")
            )
        # end
        attn_output_weights = attn_output_weights.view(bsz * num_heads, tgt_len, src_len)

    attn_output_weights = nnf.softmax(attn_output_weights, dim=-1)
    attn_output_weights = nnf.dropout(attn_output_weights, p=dropout_p, training=training)

    attn_output = torch.bmm(attn_output_weights, v)
    attn_output = attn_output.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
    attn_output = nnf.linear(attn_output, out_proj_weight, out_proj_bias)

    if not need_weights:
        return attn_output, None
    attn_output_weights = attn_output_weights.view(bsz, num_heads, tgt_len, src_len)
    if avg_weights:
        attn_output_weights = attn_output_weights.mean(dim=1)
    return attn_output, attn_output_weights


class nn_multihead_attention(nn.Module):
    """MultiHead attention.

    Parameters
    ----------
    embed_dim : total dimension of the model.
    num_heads : parallel attention heads.
    dropout : a Dropout layer on attn_output_weights. Default: 0.0.
    bias : add bias as module parameter. Default: True.
    add_bias_kv : add bias to the key and value sequences at dim=0.
    add_zero_attn : add a new batch of zeros to the key and value sequences at dim=1.

    Shape of the inputs
    -------------------
    query : (L, N, E), key and value : (S, N, E)
    key_padding_mask : (N, S). If a boolean or byte tensor is provided, the non-zero positions are ignored. If a float
        tensor is provided, it is added to the attention weights (-Inf where a key is to be ignored).
    attn_mask : (L, S), boolean (True is not allowed to attend) or float (added to the attention weights).
    """

    def __init__(
        self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False
    ):
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.bias_k = nn.Parameter(torch.empty(1, 1, embed_dim)) if add_bias_kv else None
        self.bias_v = nn.Parameter(torch.empty(1, 1, embed_dim)) if add_bias_kv else None
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.bias_k is not None:
            nn.init.xavier_normal_(self.bias_k)
            nn.init.xavier_normal_(self.bias_v)

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        avg_weights=True,
    ):
        return nnf_multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            avg_weights=avg_weights,
        )
