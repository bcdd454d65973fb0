"""An attention with a gap for an edit, and the lines that a check of a source blames."""

from attentions_with_caches import written

from heedful import check

SELF_ATTENTION = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        MADE

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        EDIT
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def self_attention(edit, made="pass"):
    return SELF_ATTENTION.replace("EDIT", edit).replace("MADE", made)


def bugs_in(folder, source):
    """Return the text of the line of each finding of level bug."""
    with written(folder, source) as target:
        return {it.name: it.place.source for it in check(target).bugs}
