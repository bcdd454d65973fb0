"""The layer of a moment retrieval model in which the frames of a video look at the words of a query."""

import torch
import torch.nn.functional as F
from torch import nn


class T2V_TransformerEncoderLayer(nn.Module):
    """Adds to each frame what it finds in the text. All inputs are of shape (batch, length, d_model)."""

    def __init__(self, d_model, nhead, dim_feedforward=64, dropout=0.1):
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.dropout = nn.Dropout(dropout)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.nhead = nhead

    def forward(self, src_vid, src_txt, txt_mask=None, pos_vid=None, pos_txt=None):
        """`txt_mask` of shape (batch, words) is 1 at the words and 0 at the padding."""
        query = src_vid if pos_vid is None else src_vid + pos_vid
        key = src_txt if pos_txt is None else src_txt + pos_txt

        attn_mask = None
        if txt_mask is not None:
            hidden = txt_mask == 0
            # one mask for each pair of a sample and a head, True where nothing is read
            attn_mask = hidden.unsqueeze(1).expand(-1, src_vid.shape[1], -1)
            # before
            attn_mask = attn_mask.repeat(self.nhead, 1, 1)
            # after
            attn_mask = attn_mask.repeat_interleave(self.nhead, dim=0)
            # end

        found, _ = self.cross_attn(
            query.transpose(0, 1),
            key.transpose(0, 1),
            src_txt.transpose(0, 1),
            attn_mask=attn_mask,
            need_weights=False,
        )
        src_vid = self.norm1(src_vid + self.dropout1(found.transpose(0, 1)))
        changed = self.linear2(self.dropout(F.relu(self.linear1(src_vid))))
        return self.norm2(src_vid + self.dropout2(changed))


class T2V_TransformerEncoder(nn.Module):
    def __init__(self, d_model, nhead, num_layers=1, dropout=0.1):
        super().__init__()
        self.layers = nn.ModuleList(
            T2V_TransformerEncoderLayer(d_model, nhead, 2 * d_model, dropout)
            for _ in range(num_layers)
        )

    def forward(self, src_vid, src_txt, txt_mask=None) -> torch.Tensor:
        for layer in self.layers:
            src_vid = layer(src_vid, src_txt, txt_mask)
        return src_vid
