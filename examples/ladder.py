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
# # The ladder of attention
#
# Attention answers one question for every token of a sequence: *what do the other tokens mean for me?* This notebook
# climbs, one idea per rung, to the form that language models use. Each rung is a short part of `heedful.textbook` in
# plain PyTorch, whose source you can open beside this page. `record` runs a part unchanged and lists what each line
# computes, under the names of the variables in the source.
#
# Six tokens with three features each represent the sentence *Your journey starts with one step*. Real embeddings have
# hundreds of features, but nothing below depends on their number.

# %%
import torch

from heedful.observation import record
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    causal,
    demonstrations,
    simplified,
)

tokens = torch.tensor(
    [
        [0.43, 0.15, 0.89],  # Your
        [0.55, 0.87, 0.66],  # journey
        [0.57, 0.85, 0.64],  # starts
        [0.22, 0.58, 0.33],  # with
        [0.77, 0.25, 0.10],  # one
        [0.05, 0.80, 0.55],  # step
    ]
)


def largest_difference(a, b):
    return (a - b).abs().max().item()


# %% [markdown]
# ## 1 Simplified attention: no weights, three steps
#
# Take one token, *journey*, as the **query**, and ask how closely it is related to each token. The dot product
# measures this: it is larger if two vectors point in the same direction. These dot products are the **scores**.

# %%
query = tokens[1]
scores = simplified.scores_of_one(query, tokens)
print(scores)

# %% [markdown]
# **Weights** are scores that have been made positive and sum to 1. Division by the sum achieves the second but not
# the first if a score is negative. Softmax achieves both: it computes exponentials and divides them by their sum.

# %%
print("by sum    ", simplified.weights_by_sum(scores))
print("by softmax", simplified.weights_by_naive_softmax(scores))

# %% [markdown]
# If softmax is implemented exactly as it is defined, it fails even for moderate scores, because their exponentials
# exceed the range of the dtype. Slightly above the limit, the weights are silently 0; further above, they are NaN.
# The remedy is to subtract the largest score from all scores first. Mathematically this changes nothing, but it
# prevents the overflow.

# %%
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    limits = demonstrations.range_of_naive_softmax(dtype)
    print(f"{dtype}: correct for scores from {limits.lowest:.1f} to {limits.highest:.1f}")
    print(f"    naive weights above: {limits.naive_just_above}, then {limits.naive_far_above}")
    print(f"    stable weights:      {limits.stable_far_above:.4f}")

# %% [markdown]
# The **context** of a token is the average of all tokens, weighted by its weights. If every token is the query in
# turn, the loops over dot products can be written as one matrix product, and so can the loops over averages. The
# recording below shows the whole mechanism. Row *i* of each matrix belongs to token *i* as the query.

# %%
loops, products = simplified.attend_by_loops(tokens), simplified.attend(tokens)
print("largest difference between loops and products:", largest_difference(loops, products))
record(simplified.attend, tokens)

# %% [markdown]
# ## 2 Self-attention: the comparison becomes trainable
#
# So far, the embeddings themselves are compared. Three matrices give each token three roles: a **query**, which
# describes what it looks for; a **key**, by which it can be found; and a **value**, which it passes on when found.
# The terms come from databases, where a query is matched against keys to retrieve values. Training adjusts the three
# matrices.
#
# The scores are now divided by √d, where d is the size of a key. This is the scaled dot-product attention of
# *Attention Is All You Need* (Vaswani et al., 2017).

# %%
torch.manual_seed(123)
with_parameters = SelfAttentionV1(d_in=3, d_out=2)
record(with_parameters, tokens)

# %% [markdown]
# `SelfAttentionV2` stores the same matrices in `nn.Linear`, which initializes them for training. A linear layer
# stores its matrix transposed. If the weights are copied, both modules compute the same function.

# %%
with_linear = SelfAttentionV2(d_in=3, d_out=2)
with torch.no_grad():
    for name in ("W_query", "W_key", "W_value"):
        getattr(with_parameters, name).copy_(getattr(with_linear, name).weight.T)
print(
    "largest difference between the modules:",
    largest_difference(with_parameters(tokens), with_linear(tokens)),
)

# %% [markdown]
# ### Why √d?
#
# The dot product of two random vectors is a sum of d random terms, so its variance is proportional to d. Division by
# √d restores a variance of 1 for any d.

# %%
torch.manual_seed(123)
for d in (10, 100, 1000):
    law = demonstrations.variance_of_dot_products(d)
    print(f"d = {d}: variance {law.variance:.1f}, after scaling {law.scaled_variance:.3f}")

# %% [markdown]
# Large scores are harmful because softmax sharpens them. Multiplied by 8, the five scores below concentrate their
# weight on about two keys (`keys_in_use` is the exponential of the entropy). Once a single key has all the weight, no
# gradient passes through the softmax, and the scores can no longer be learned.

# %%
five_scores = torch.tensor([0.12, -0.24, 0.36, -0.82, 0.45])
for factor in (1, 8, 64):
    sharpened = demonstrations.sharpness(five_scores, factor)
    rounded = [f"{weight:.4f}" for weight in sharpened.weights]
    print(f"times {factor}: {sharpened.keys_in_use:.1f} keys in use:", *rounded)

# %% [markdown]
# ## 3 Causal attention: no looking ahead
#
# A model that predicts the next token must not see it. There are two ways to hide it. The first computes the weights
# as before, multiplies them by a lower triangle of ones, and normalizes each row again. The second sets the scores of
# future keys to −∞ before the softmax, which gives them a weight of exactly 0.

# %%
scaled_scores = record(with_linear, tokens)["scaled_scores"].value
renormalised = causal.weights_by_renormalising(scaled_scores)
from_minus_infinity = causal.weights_by_minus_infinity(scaled_scores)
print("largest difference between both:", largest_difference(renormalised, from_minus_infinity))
print(from_minus_infinity)

# %% [markdown]
# Use the second way. In the first, a future score that is much larger than the others leaves a row of zeros, which is
# then divided by its sum, zero.

# %%
far_larger = torch.tensor([[0.0, 1000.0], [0.0, 0.0]])
print("renormalised  ", causal.weights_by_renormalising(far_larger).tolist())
print("minus infinity", causal.weights_by_minus_infinity(far_larger).tolist())

# %% [markdown]
# During training, **dropout** sets some of the weights to zero at random, so that no token learns to rely on a single
# other token. The remaining weights are scaled by 1 / (1 − p), which preserves the expectation of each weight,
# although a single row no longer sums to 1. `drift` is the distance of the means of 1000 draws from the weights, in
# standard errors.

# %%
torch.manual_seed(123)
demonstrations.effect_of_dropout(from_minus_infinity, p=0.5)

# %% [markdown]
# `CausalAttention` combines these steps, for batches and for any number of tokens up to `context_length`. Its mask is
# a buffer, which is not trained but moves to a GPU with the module. True means *attend*, as everywhere in heedful.

# %%
torch.manual_seed(123)
causal_attention = CausalAttention(d_in=3, d_out=2, context_length=6, dropout=0.2)
record(causal_attention, tokens)

# %% [markdown]
# Whether a module is causal can be tested from outside: if the last token changes, no earlier context may change.

# %%
causal_attention.eval()
changed = tokens.clone()
changed[-1] += 1
differs = causal_attention(changed) != causal_attention(tokens)
print("contexts that changed:", differs.any(dim=-1).tolist())

# %% [markdown]
# ## 4 Multi-head attention: several points of view
#
# With one softmax, each token distributes its attention in one way. Several **heads**, each with its own matrices,
# allow it to follow several relations at once. Their contexts are concatenated. The wrapper runs its heads one by
# one.

# %%
torch.manual_seed(123)
one_by_one = MultiHeadAttentionWrapper(d_in=3, d_out=2, context_length=6, num_heads=3)
print("three heads of width 2 give", tuple(one_by_one(tokens).shape))

# %% [markdown]
# All heads can also be computed at once, with a single wide projection that is split into heads by a change of shape.
# Here, `d_out` counts all heads together. A final linear layer, the output projection, combines the results of the
# heads.

# %%
at_once = MultiHeadAttention(d_in=3, d_out=6, context_length=6, num_heads=3)
record(at_once, tokens)

# %% [markdown]
# A third way identifies the dimensions by letters. It does not require values to have the size of queries and keys,
# so `key_dim` may differ. If the weights of the heads are concatenated, all three agree (the second with the identity
# as its output projection).

# %%
by_einsum = EinsumMultiHeadAttention(d_in=3, d_out=6, context_length=6, num_heads=3)
side_by_side = {
    f"{name}.weight": torch.cat([getattr(head, name).weight for head in one_by_one.heads])
    for name in ("W_query", "W_key", "W_value")
}
by_einsum.load_state_dict(side_by_side)
at_once.load_state_dict(
    side_by_side | {"out_proj.weight": torch.eye(6), "out_proj.bias": torch.zeros(6)}
)
print("at once  :", largest_difference(one_by_one(tokens), at_once(tokens)))
print("by einsum:", largest_difference(one_by_one(tokens), by_einsum(tokens)))

# %% [markdown]
# ### The copy behind `.contiguous()`
#
# To concatenate the heads, the dimensions of heads and tokens are swapped. The swap itself moves nothing in memory.
# Flattening the last two dimensions then copies, unless there is a single head or a single token.

# %%
for heads, length in ((1, 6), (3, 1), (3, 6)):
    copied = demonstrations.contiguous_copies(heads=heads, tokens=length)
    print(f"{heads} heads, {length} tokens: {'copied' if copied else 'not copied'}")

# %% [markdown]
# Can the copy be avoided, and does `torch.compile` avoid it? The measurements below are for a context of 4096 bytes.
# Einsum copies just like the matrix product. Compilation replaces the call of `clone` by a generated loop, which
# copies as much. Only if an element-wise operation follows are the two merged into one loop. The copy is avoided by
# writing the product of each head directly to its place, or by PyTorch's fused kernel, whose result has the memory
# order of its queries.

# %%
weights, values = torch.rand(2, 4, 16, 16).softmax(dim=-1), torch.rand(2, 4, 16, 8)
projected = torch.rand(2, 16, 4, 8)


def merge_and_double(weights, values):
    return 2 * demonstrations.merge_by_matmul(weights, values)


eager, compiled = demonstrations.memory_use, demonstrations.compiled_memory_use
print("matmul            ", eager(demonstrations.merge_by_matmul, weights, values))
print("einsum            ", eager(demonstrations.merge_by_einsum, weights, values))
print("matmul, compiled  ", compiled(demonstrations.merge_by_matmul, weights, values))
print("doubled           ", eager(merge_and_double, weights, values))
print("doubled, compiled ", compiled(merge_and_double, weights, values))
print("written into place", eager(demonstrations.merge_in_place, weights, values))
print("fused kernel      ", eager(demonstrations.merge_by_fused_kernel, *[projected] * 3))
