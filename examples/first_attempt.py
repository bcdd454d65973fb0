# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Three bugs in a first attempt
#
# Attention is easily written subtly wrong. It runs, its output has the right shape, its loss falls: a model learns
# around much. This notebook writes causal attention as one does the first time, and lets `heedful.check` read it.
#
# First the experiment that comes before the class: six tokens, twice, and every token's dot product with every other.

# %%
import torch
from torch import nn

import heedful

torch.manual_seed(123)
inputs = torch.rand(6, 3)
batch = torch.stack((inputs, inputs))
attn_scores = batch @ batch.transpose(1, 2)
print(attn_scores.shape)

# %% [markdown]
# Then the class. It has three bugs; try to see them before you read on.


# %%
class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        mask = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", mask.bool())

    def forward(self, x):
        T = x.shape[1]
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        scores = queries @ keys.transpose(1, 2)
        scores.masked_fill(self.mask[:T, :T], -torch.inf)
        scaled = attn_scores / keys.shape[-1] ** 0.5
        weights = torch.softmax(scaled, dim=1)
        return self.dropout(weights) @ values


attention = CausalAttention(d_in=3, d_out=4, context_length=6, dropout=0.0)
print(attention(batch).shape)

# %% [markdown]
# The shape is right. Is the rest? `check` finds out how to call the module, runs copies of it on small inputs, and puts
# its questions: does an early output change with a late token, do a query's weights sum to 1, is anything that was
# computed used by nothing?

# %%
heedful.check(attention)

# %% [markdown]
# Three findings, one line each:
#
# * `attn_scores` is the matrix of the experiment above. The notebook still holds it, so that nothing fails; what
#   forward computed itself is `scores`.
# * `softmax(dim=1)` sums over the queries. The keys are the last dimension.
# * `masked_fill` returns a new tensor and leaves `scores` as they were; `masked_fill_` would write into them.
#
# What these bring about besides is not reported: one bug is one finding.
#
# Mended:


# %%
class MendedAttention(CausalAttention):
    def forward(self, x):
        T = x.shape[1]
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        scores = queries @ keys.transpose(1, 2)
        scores = scores.masked_fill(self.mask[:T, :T], -torch.inf)
        scaled = scores / keys.shape[-1] ** 0.5
        weights = torch.softmax(scaled, dim=-1)
        return self.dropout(weights) @ values


mended = MendedAttention(d_in=3, d_out=4, context_length=6, dropout=0.0)
heedful.check(mended)

# %% [markdown]
# Below a report stands what was learnt of the module besides: that it is causal, what its scale equals. As text it is
# the same, and `heedful check my.py:CausalAttention` prints it in a terminal.

# %%
print(heedful.check(mended))
