"""The transformer that lines up the coarse features of two images before they are matched."""

import copy
from typing import Optional

import torch
import torch.nn as nn


def elu_feature_map(x):
    return nn.functional.elu(x) + 1


class LinearAttention(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, queries, keys, values, q_mask=None, kv_mask=None):
        """queries: [N, L, H, D]; keys, values: [N, S, H, D]; q_mask: [N, L]; kv_mask: [N, S]"""
        Q, K = elu_feature_map(queries), elu_feature_map(keys)
        if q_mask is not None:
            Q = Q * q_mask[:, :, None, None]
        if kv_mask is not None:
            K = K * kv_mask[:, :, None, None]
        KV = torch.einsum("nshd,nshv->nhdv", K, values)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        return torch.einsum("nlhd,nhdv,nlh->nlhv", Q, KV, Z)


class FullAttention(nn.Module):
    def forward(self, queries, keys, values, q_mask=None, kv_mask=None):
        """queries: [N, L, H, D]; keys, values: [N, S, H, D]; q_mask: [N, L]; kv_mask: [N, S]"""
        QK = torch.einsum("nlhd,nshd->nlsh", queries, keys)
        if kv_mask is not None:
            QK = QK.masked_fill(~kv_mask[:, None, :, None], -1e9)
        softmax_temp = 1.0 / queries.size(3) ** 0.5
        A = torch.softmax(softmax_temp * QK, dim=2)
        return torch.einsum("nlsh,nshd->nlhd", A, values)


class LoFTREncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, attention="linear"):
        super().__init__()
        self.dim = d_model // nhead
        self.nhead = nhead

        # multi-head attention
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.attention = LinearAttention() if attention == "linear" else FullAttention()
        self.merge = nn.Linear(d_model, d_model, bias=False)

        # feed-forward network
        self.mlp = nn.Sequential(
            nn.Linear(d_model * 2, d_model * 2, bias=False),
            nn.ReLU(),
            nn.Linear(d_model * 2, d_model, bias=False),
        )

        # norm
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x, source, x_mask=None, source_mask=None):
        """x: [N, L, C]; source: [N, S, C]; x_mask: [N, L]; source_mask: [N, S]"""
        query = self.q_proj(x).unflatten(-1, (self.nhead, self.dim))
        key = self.k_proj(source).unflatten(-1, (self.nhead, self.dim))
        value = self.v_proj(source).unflatten(-1, (self.nhead, self.dim))
        message = self.attention(query, key, value, q_mask=x_mask, kv_mask=source_mask)
        message = self.norm1(self.merge(message.flatten(2)))
        message = self.norm2(self.mlp(torch.cat([x, message], dim=2)))
        return x + message


class LocalFeatureTransformer(nn.Module):
    """A Local Feature Transformer (LoFTR) module.

    Args:
        d_model: number of features
        nhead: number of heads
        layer_names: "self" or "cross" for each layer
        attention: "linear" or "full"
    """

    def __init__(self, d_model, nhead, layer_names=("self", "cross"), attention="linear"):
        super().__init__()
        self.d_model = d_model
        self.layer_names = layer_names
        encoder_layer = LoFTREncoderLayer(d_model, nhead, attention)
        self.layers = nn.ModuleList([copy.deepcopy(encoder_layer) for _ in layer_names])
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(
        self,
        feat0: torch.Tensor,
        feat1: torch.Tensor,
        mask0: Optional[torch.Tensor] = None,
        mask1: Optional[torch.Tensor] = None,
    ):
        """feat0: [N, L, C]; feat1: [N, S, C]; mask0: [N, L]; mask1: [N, S]"""
        assert self.d_model == feat0.size(2), (
            "the feature number of src and transformer must be equal"
        )
        for layer, name in zip(self.layers, self.layer_names):
            if name == "self":
                feat0 = layer(feat0, feat0, mask0, mask0)
                feat1 = layer(feat1, feat1, mask1, mask1)
            elif name == "cross":
                # before
                feat0 = layer(feat0, feat1, mask0, mask1)
                feat1 = layer(feat1, feat0, mask1, mask0)
                # after
                new_feat0 = layer(feat0, feat1, mask0, mask1)
                feat1 = layer(feat1, feat0, mask1, mask0)
                feat0 = new_feat0
                # end
            else:
                raise KeyError(name)
        return feat0, feat1
