"""What PyTorch gives for the settings of the view "what if", for the tests of viewer/, which run without Python.

python tests/viewer/expected.py   # writes viewer/test/expected.json
"""

import json
from pathlib import Path
from typing import Any

import torch

from heedful.dropout import kept
from heedful.textbook import SelfAttentionV2

FILE = Path(__file__).parents[2] / "viewer" / "test" / "expected.json"
TOKENS = [
    [0.43, 0.15, 0.89],
    [0.55, 0.87, 0.66],
    [0.57, 0.85, 0.64],
    [0.22, 0.58, 0.33],
    [0.77, 0.25, 0.1],
    [0.05, 0.8, 0.55],
]
W_QUERY = [[3, -1, 0.5], [-1, 2, 1], [0.5, 3, -2], [1, -0.5, 2]]
W_KEY = [[2, -2, 0.5], [-1, 2.5, 1], [1, 2, -1.5], [-2, 0.5, 3]]
W_VALUE = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0]]
HEADS = 2
CHANGES: list[dict[str, Any]] = [
    {},
    {"scale": "none"},
    {"scale": "whole"},
    {"scale": "all heads"},
    {"temperature": 0.3},
    {"temperature": 5},
    {"mask": "none"},
    {"mask": "later"},
    {"mask": "after softmax"},
    {"softmaxOver": "queries"},
    {"dropout": 0.5, "seed": 7},
    {"dropout": 0.25, "seed": 2**33 + 5, "mask": "none"},
    {"split": "view only"},
    {"merge": "view only"},
    {"split": "view only", "merge": "view only", "mask": "none"},
    {"heads": 1},
]


def output(
    *,
    scale: str = "root",
    temperature: float = 1.0,
    mask: str = "causal",
    softmaxOver: str = "keys",
    dropout: float = 0.0,
    seed: int = 123,
    split: str = "transpose",
    merge: str = "transpose",
    heads: int = HEADS,
) -> torch.Tensor:
    """Compute what the page computes, with PyTorch in float64."""
    x, w_query, w_key, w_value = (
        torch.tensor(rows, dtype=torch.float64) for rows in (TOKENS, W_QUERY, W_KEY, W_VALUE)
    )
    T, H, D = len(x), heads, len(w_query) // heads

    def by_head(projected):
        if split == "transpose":
            return projected.view(T, H, D).transpose(0, 1)
        return projected.view(H, T, D)

    queries, keys, values = by_head(x @ w_query.T), by_head(x @ w_key.T), by_head(x @ w_value.T)
    divisor = {"root": D**0.5, "none": 1, "whole": D, "all heads": (H * D) ** 0.5}[scale]
    scores = queries @ keys.mT / (divisor * temperature)
    kept_keys = torch.ones(T, T, dtype=torch.bool)
    kept_keys = kept_keys.triu(1) if mask == "later" else kept_keys.tril()
    if mask not in ("none", "after softmax"):
        scores = scores.masked_fill(~kept_keys, -torch.inf)
    weights = torch.softmax(scores, dim=-1 if softmaxOver == "keys" else -2)
    if mask == "after softmax":
        weights = weights * kept_keys
    if dropout:
        b, h, q, k = (
            torch.arange(size).view(shape)
            for size, shape in ((1, (-1, 1, 1, 1)), (H, (-1, 1, 1)), (T, (-1, 1)), (T, (-1,)))
        )
        weights = weights * kept(seed, dropout, b, h, q, k)[0] / (1 - dropout)
    context = weights @ values
    merged = context.transpose(0, 1) if merge == "transpose" else context
    return merged.reshape(T, H * D)


def expected() -> dict[str, Any]:
    """Return the content of the file."""
    torch.manual_seed(123)
    linear = SelfAttentionV2(3, 2)
    index = torch.arange(60)
    b, h, q, k = index % 2, index // 2 % 3, index // 6 % 7, index % 11
    drawn = [
        {"seed": seed, "p": p, "kept": kept(seed, p, b, h, q, k).tolist()}
        for seed in (0, 1, 123, 2**32 - 1, 2**40 + 17)
        for p in (0.0, 0.1, 0.5, 0.9)
    ]
    return {
        "linear": {
            name: getattr(linear, f"W_{name}").weight.double().tolist()
            for name in ("query", "key", "value")
        },
        "settings": [
            {"change": change, "output": _without_nan(output(**change).tolist())}
            for change in CHANGES
        ],
        "kept": drawn,
    }


def _without_nan(rows: list[list[float]]) -> list[list[float | str]]:
    return [["nan" if value != value else value for value in row] for row in rows]


if __name__ == "__main__":
    FILE.write_text(json.dumps(expected(), indent=1) + "\n", encoding="utf-8")
