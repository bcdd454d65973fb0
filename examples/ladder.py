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
# Attention answers one question for every token of a sequence: *what do the other tokens mean for me?* This
# notebook climbs to the form that language models use, one idea a rung. Each rung is a short piece of
# `heedful.textbook`, in plain PyTorch; open its source beside this page. `record` runs a piece unchanged and lists
# what each line computed, under the names of the source's own variables.
#
# Six tokens, three features each, stand for the sentence *Your journey starts with one step*. Real embeddings have
# hundreds of features; nothing below depends on their number.

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


def largest_difference(one, other):
    return (one - other).abs().max().item()


# %% [markdown]
# ## 1 Simplified attention: no weights, three steps
#
# Take one token, *journey*, as the **query** and ask how much it has to do with each token. The dot product is a
# measure of that: it grows as two vectors point the same way. These are the **scores**.

# %%
query = tokens[1]
scores = simplified.scores_of_one(query, tokens)
print(scores)

# %% [markdown]
# Scores become **weights** when they are positive and add up to 1. Dividing by their sum does the second but not the
# first, as soon as a score is negative. Softmax does both: it takes exponentials and divides those by their sum.

# %%
print("by sum    ", simplified.weights_by_sum(scores))
print("by softmax", simplified.weights_by_naive_softmax(scores))

# %% [markdown]
# Written down as it is defined, softmax fails for scores that are not even large: their exponentials outgrow the
# numbers of the dtype. Shortly above the limit the weights are silently 0, further up they are NaN. Taking the largest
# score from all of them first changes nothing in mathematics, and everything in floating point.

# %%
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    found = demonstrations.range_of_naive_softmax(dtype)
    print(f"{dtype}: right for scores from {found.lowest:.1f} to {found.highest:.1f}")
    print(f"    naive weights above: {found.naive_just_above}, then {found.naive_far_above}")
    print(f"    the stable weights:  {found.stable_far_above:.4f}")

# %% [markdown]
# The **context** of a token is the average of all tokens under its weights. With every token as the query in turn,
# the loops over dot products become one matrix product, and so do the loops over averages. The recording below shows
# the whole mechanism; row *i* of each matrix belongs to token *i* as the query.

# %%
loops, products = simplified.attend_by_loops(tokens), simplified.attend(tokens)
print("largest difference between the routes:", largest_difference(loops, products))
record(simplified.attend, tokens)

# %% [markdown]
# ## 2 Self-attention: what is compared becomes learnable
#
# So far a token is compared as it is. Three matrices give it three parts to play: a **query**, what it looks for; a
# **key**, what it can be found by; a **value**, what it passes on when found. The words come from databases, where a
# query is matched against keys to retrieve values. Training adjusts the three matrices.
#
# The scores are now divided by √d, where d is the size of a key: this is the scaled dot-product attention of
# *Attention Is All You Need* (Vaswani et al., 2017).

# %%
torch.manual_seed(123)
with_parameters = SelfAttentionV1(d_in=3, d_out=2)
record(with_parameters, tokens)

# %% [markdown]
# `SelfAttentionV2` keeps the same matrices in `nn.Linear`, which starts them at values fit for training. A linear layer
# stores its matrix transposed; with the weights carried over, both modules are the same function.

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
# The dot product of two random vectors is a sum of d random terms, so its variance grows as d. Dividing by √d brings
# the variance back to 1, for any d.

# %%
torch.manual_seed(123)
for d in (10, 100, 1000):
    law = demonstrations.variance_of_dot_products(d)
    print(f"d = {d}: variance {law.variance:.1f}, after scaling {law.scaled_variance:.3f}")

# %% [markdown]
# Large scores are harmful because softmax sharpens them: multiplied by 8, the five scores below concentrate their
# weight on about two keys (`keys_in_use`, the exponential of the entropy). Once a single key has it all, softmax
# passes no gradient on to any score, and the scores can no longer be learned.

# %%
five_scores = torch.tensor([0.12, -0.24, 0.36, -0.82, 0.45])
for factor in (1, 8, 64):
    sharpened = demonstrations.sharpness(five_scores, factor)
    rounded = [f"{weight:.4f}" for weight in sharpened.weights]
    print(f"times {factor}: {sharpened.keys_in_use:.1f} keys in use:", *rounded)

# %% [markdown]
# ## 3 Causal attention: no looking ahead
#
# A model that predicts the next token must not see it. Two routes lead there. One computes the weights as before,
# multiplies them by a lower triangle of ones, and makes each row add up to 1 again. The other sets the scores of
# future keys to −∞ before the softmax, which gives them a weight of exactly 0.

# %%
scaled_scores = record(with_linear, tokens)["scaled_scores"].value
renormalised = causal.weights_by_renormalising(scaled_scores)
from_minus_infinity = causal.weights_by_minus_infinity(scaled_scores)
print(
    "largest difference between the routes:", largest_difference(renormalised, from_minus_infinity)
)
print(from_minus_infinity)

# %% [markdown]
# The second route is the one to use: in the first, a future score that is far larger than the others leaves a row of
# zeros to be divided by its sum, zero.

# %%
far_larger = torch.tensor([[0.0, 1000.0], [0.0, 0.0]])
print("renormalised  ", causal.weights_by_renormalising(far_larger).tolist())
print("minus infinity", causal.weights_by_minus_infinity(far_larger).tolist())

# %% [markdown]
# In training, **dropout** zeroes some of the weights at random, so that no token learns to rely on a single other
# one. The survivors grow by 1 / (1 − p), which keeps each weight's expectation; a single row no longer adds up to 1.
# `drift` says how far the means of 1000 draws lie from the weights, in standard errors.

# %%
torch.manual_seed(123)
demonstrations.effect_of_dropout(from_minus_infinity, p=0.5)

# %% [markdown]
# `CausalAttention` puts these together, for batches and for any number of tokens up to `context_length`. Its mask is a
# buffer: no parameter, yet it moves to a GPU along with the module. True means *attend*, as everywhere in heedful.

# %%
torch.manual_seed(123)
causal_attention = CausalAttention(d_in=3, d_out=2, context_length=6, dropout=0.2)
record(causal_attention, tokens)

# %% [markdown]
# Whether a module is causal can be seen from outside: change the last token, and no earlier context may move.

# %%
causal_attention.eval()
changed = tokens.clone()
changed[-1] += 1
moved = causal_attention(changed) != causal_attention(tokens)
print("contexts that moved:", moved.any(dim=-1).tolist())

# %% [markdown]
# ## 4 Multi-head attention: several points of view
#
# One softmax gives each token one way to divide its attention. Several **heads**, each with matrices of its own, let
# it follow several relations at once; their contexts are put side by side. The wrapper runs its heads one by one.

# %%
torch.manual_seed(123)
one_by_one = MultiHeadAttentionWrapper(d_in=3, d_out=2, context_length=6, num_heads=3)
print("three heads of width 2 give", tuple(one_by_one(tokens).shape))

# %% [markdown]
# The same can be had in one go: a single wide projection, cut into heads by a change of shape. Here `d_out` counts
# all heads together. A last linear layer, the output projection, lets the heads' findings mix.

# %%
at_once = MultiHeadAttention(d_in=3, d_out=6, context_length=6, num_heads=3)
record(at_once, tokens)

# %% [markdown]
# A third way names its dimensions by letters. Nothing in it asks that values be of the same size as queries and keys,
# so `key_dim` may differ. With the heads' weights laid side by side all three agree (the second with the identity as
# its output projection).

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
# Putting heads side by side exchanges heads and tokens. That alone moves nothing in memory; joining the two last
# dimensions into one does, unless there is a single head or a single token.

# %%
for heads, length in ((1, 6), (3, 1), (3, 6)):
    copied = demonstrations.contiguous_copies(heads=heads, tokens=length)
    print(f"{heads} heads, {length} tokens: {'copied' if copied else 'not copied'}")

# %% [markdown]
# Can the copy be avoided, and does `torch.compile` do so? Measured for a context of 4096 bytes: einsum copies just as
# the matrix product does. Compiling replaces the call of `clone` by a loop of its own, which copies as much. Only where
# something element-wise follows do copy and successor become one loop. What does avoid it is to write each
# head's product where it belongs, or PyTorch's fused kernel, which lays out its result as it finds its queries.

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
