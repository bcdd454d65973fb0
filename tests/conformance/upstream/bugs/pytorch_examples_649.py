"""The transformer of a word language model, batches first."""

import torch
from torch import nn


def generate_square_subsequent_mask(sz):
    """Return what is added to the scores: zero at visible words, negative infinity at hidden ones."""
    # before
    mask = torch.triu(torch.ones(sz, sz)) == 1
    # after
    mask = (torch.triu(torch.ones(sz, sz)) == 1).transpose(0, 1)
    # end
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)


class TransformerModel(nn.Module):
    """One layer of the language model, on embedded words of shape (batch, length, ninp)."""

    def __init__(self, ninp, nhead, dropout=0.0):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(ninp, nhead, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(ninp)

    def forward(self, src, has_mask=True):
        src_mask = generate_square_subsequent_mask(src.size(1)).to(src) if has_mask else None
        src2 = self.self_attn(src, src, src, attn_mask=src_mask, need_weights=False)[0]
        return self.norm(src + src2)
