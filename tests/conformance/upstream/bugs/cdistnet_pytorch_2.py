"""
Description: CDistNet, the fusion of visual, positional and semantic features for scene text
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledDotProductAttention(nn.Module):
    """Scaled Dot-Product Attention"""

    def __init__(self, d_k, attn_dropout=0.1):
        super().__init__()
        self.temperature = d_k**0.5
        self.dropout = nn.Dropout(attn_dropout)
        self.softmax = nn.Softmax(dim=2)

    def forward(self, q, k, v, mask=None):
        attn = torch.bmm(q, k.transpose(1, 2)) / self.temperature
        if mask is not None:
            attn = attn.masked_fill(mask, torch.finfo(attn.dtype).min)
        attn = self.dropout(self.softmax(attn))
        return torch.bmm(attn, v), attn


class MultiHeadAttention(nn.Module):
    """Multi-Head Attention module"""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k)
        self.w_ks = nn.Linear(d_model, n_head * d_k)
        self.w_vs = nn.Linear(d_model, n_head * d_v)
        self.attention = ScaledDotProductAttention(d_k)
        self.layer_norm = nn.LayerNorm(d_model)
        self.fc = nn.Linear(n_head * d_v, d_model)
        self.dropout = nn.Dropout(dropout)

    def _to_heads(self, x, dim):
        # (n_head * batch, length, dim)
        x = x.view(x.size(0), x.size(1), self.n_head, dim)
        return x.permute(2, 0, 1, 3).contiguous().view(-1, x.size(1), dim)

    def forward(self, q, k, v, mask=None):
        sz_b, len_q, _ = q.size()
        residual = q
        q = self._to_heads(self.w_qs(q), self.d_k)
        k = self._to_heads(self.w_ks(k), self.d_k)
        v = self._to_heads(self.w_vs(v), self.d_v)
        output, attn = self.attention(q, k, v, mask=mask)
        output = output.view(self.n_head, sz_b, len_q, self.d_v)
        output = output.permute(1, 2, 0, 3).contiguous().view(sz_b, len_q, -1)
        output = self.dropout(self.fc(output))
        return self.layer_norm(output + residual), attn


class TransformerUnit(nn.Module):
    def __init__(self, n_head=8, d_k=64, d_v=64, d_model=512, d_inner=2048, dropout=0.1):
        super().__init__()
        self.slf_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout)
        self.w_1 = nn.Linear(d_model, d_inner)
        self.w_2 = nn.Linear(d_inner, d_model)
        self.dropout = nn.Dropout(p=dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, query, key, value, mask=None):
        output, _ = self.slf_attn(query, key, value, mask=mask)
        return self.layer_norm(output + self.dropout(self.w_2(F.relu(self.w_1(output)))))


class MDCDP(nn.Module):
    """Multi-Domain Character Distance Perception

    pos_embedding: (batch, length, channel), the positions of the characters to be read
    vis_feature: (batch, height * width, channel)
    sem_embedding: (batch, length, channel), the characters read so far, shifted by one
    """

    def __init__(self, d_model, d_inner, n_head, d_k, d_v, dropout=0.1):
        super().__init__()
        self.sae = TransformerUnit(n_head, d_k, d_v, d_model, d_inner, dropout)
        self.cbi_v = TransformerUnit(n_head, d_k, d_v, d_model, d_inner, dropout)
        self.cbi_s = TransformerUnit(n_head, d_k, d_v, d_model, d_inner, dropout)
        self.conv = nn.Conv2d(d_model * 2, d_model, kernel_size=1, bias=False)
        self.active = nn.Sigmoid()

    def _generate_pos_mask(self, query, key):
        query_length = query.size(1)
        key_length = key.size(1)
        mask = torch.ones((query_length, key_length), dtype=torch.bool, device=query.device)
        # before
        mask = torch.tril(mask)
        # after
        mask = torch.triu(mask, diagonal=1)
        # end
        return mask

    def forward(self, pos_embedding, vis_feature, sem_embedding):
        # self attention enhancement
        pos_mask = self._generate_pos_mask(pos_embedding, pos_embedding)
        pos_feature = self.sae(pos_embedding, pos_embedding, pos_embedding, pos_mask)
        vis_feature = self.cbi_v(pos_feature, vis_feature, vis_feature)
        sem_mask = self._generate_pos_mask(pos_feature, sem_embedding)
        sem_embedding = self.cbi_s(pos_feature, sem_embedding, sem_embedding, sem_mask)
        # (batch_size, length, channel * 2)
        context = torch.cat([vis_feature, sem_embedding], dim=2)
        context = self.conv(context.permute(0, 2, 1).unsqueeze(2))
        context = self.active(context.squeeze(2).permute(0, 2, 1))
        return (1 - context) * vis_feature + context * sem_embedding
