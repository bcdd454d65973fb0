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
# It is easy to write an attention module with a subtle bug. It runs, its output has the right shape, and its loss
# decreases, because a model can learn to compensate for many errors. This notebook contains a typical first attempt
# at causal attention, and lets `heedful.check` examine it.
#
# The first cell is an experiment that precedes the class: a batch of two sequences with the same six tokens, and the
# dot product of every pair of tokens.

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
# The second cell defines the class. It has three bugs. Try to find them before you read on.


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
# The shape is correct, but is the rest? `check` finds out how to call the module, runs copies of it on small inputs,
# and tests its properties. Does an early output depend on a later token? Do the weights of each query sum to 1? Is
# any result computed but never used?

# %%
heedful.check(attention)

# %% [markdown]
# There are three findings, each with its line:
#
# * `attn_scores` is the matrix of the experiment above. It still exists in the notebook, so no error is raised.
#   `forward` itself computes `scores`.
# * `softmax(dim=1)` normalizes over the queries. The keys are the last dimension.
# * `masked_fill` returns a new tensor and does not change `scores`. `masked_fill_` would change them.
#
# Further consequences of these bugs are not reported: each bug leads to one finding.
#
# This is the corrected class:


# %%
class CorrectedAttention(CausalAttention):
    def forward(self, x):
        T = x.shape[1]
        keys, queries, values = self.W_key(x), self.W_query(x), self.W_value(x)
        scores = queries @ keys.transpose(1, 2)
        scores = scores.masked_fill(self.mask[:T, :T], -torch.inf)
        scaled = scores / keys.shape[-1] ** 0.5
        weights = torch.softmax(scaled, dim=-1)
        return self.dropout(weights) @ values


corrected = CorrectedAttention(d_in=3, d_out=4, context_length=6, dropout=0.0)
heedful.check(corrected)

# %% [markdown]
# The end of a report lists what else was found out about the module, such as that it is causal, and its scale. The
# report is also available as text, and `heedful check my.py:CausalAttention` prints it in a terminal.

# %%
print(heedful.check(corrected))
