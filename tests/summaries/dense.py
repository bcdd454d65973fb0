"""Statistics of dense weights in float64, one line each: the definitions that summaries are compared with."""

import math
from typing import Any

import torch
from torch import Tensor

from heedful import summarize


def weights_of(call: dict[str, Any], lse: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the weights (B, Hq, Tq, Tk) and the log-sum-exp in float64, from the arguments of attention."""
    query, key = call["query"].double(), call["key"].double()
    B, Hq, Tq, D = query.shape
    Tk = key.shape[2]
    mask, cap = call.get("mask"), call.get("softcap")
    shown = torch.ones(B, Hq, Tq, Tk, dtype=torch.bool)
    if mask is not None:
        shown = mask.dense(Tq, Tk, batch=B).expand(B, Hq, Tq, Tk)
    key = key.repeat_interleave(Hq // key.shape[1], dim=1)
    unseen = ~shown.flatten(1, 2).any(dim=1)
    scores = (
        query
        @ key.masked_fill(unseen[:, None, :, None], 0).mT
        * call.get("scale", 1 / math.sqrt(D))
    )
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if call.get("bias") is not None:
        scores = scores + call["bias"].double()
    scores = scores.masked_fill(~shown, -math.inf)
    if lse is None:
        sinks = call.get("sinks")
        extra = torch.full((Hq,), -math.inf) if sinks is None else sinks
        extra = extra.double().view(1, -1, 1, 1).expand(B, Hq, Tq, 1)
        lse = torch.logsumexp(torch.cat([scores, extra], dim=-1), dim=-1)
    lse = lse.double()
    return torch.exp(scores - lse.unsqueeze(-1)).masked_fill(scores == -math.inf, 0.0), lse


def pooled(weights: Tensor, cell: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the mean and the maximum of each cell."""
    rows = [
        [(part.mean(dim=(2, 3)), part.amax(dim=(2, 3))) for part in row.split(cell[1], dim=3)]
        for row in weights.split(cell[0], dim=2)
    ]
    return tuple(
        torch.stack([torch.stack([cell[i] for cell in row], -1) for row in rows], -2)
        for i in (0, 1)
    )


def assert_summary(call: dict[str, Any], atol: float, shift: int = 0, **options: Any) -> None:
    """Assert that every statistic equals that of the dense weights."""
    call = {name: value for name, value in call.items() if name != "value"}
    summary = summarize(**call, **options)
    weights, lse = weights_of(call, options.get("lse"))
    B, _, Tq, Tk = weights.shape

    def same(actual: Tensor | None, expected: Tensor, scale: float = 1) -> None:
        assert actual is not None
        torch.testing.assert_close(
            actual.double(), expected, atol=atol * scale, rtol=atol, equal_nan=False
        )

    same(summary.lse, lse)
    mass = weights.sum(-1)
    if options.get("for_each_query", True):
        i, j = torch.arange(Tq).unsqueeze(-1) + shift, torch.arange(Tk)
        same(summary.mass, mass)
        same(summary.entropy, torch.special.entr(weights).sum(-1), 10)
        same(summary.largest_weight, weights.amax(-1))
        distance = (weights * (i - j).abs()).sum(-1) / mass.masked_fill(mass == 0, 1)
        same(summary.mean_distance, distance, Tk + Tq)
    else:
        assert summary.mass is summary.entropy is summary.mean_distance is None
    if options.get("for_each_key", True):
        same(summary.received_mass, weights.sum(2), Tq)
    else:
        assert summary.received_mass is None
    if options.get("top_k"):
        _assert_top(summary, weights, options["top_k"], atol)
    for name, region in options.get("regions", {}).items():
        if isinstance(region, tuple):
            seen = (torch.arange(Tk) >= region[0]) & (torch.arange(Tk) < region[1])
        else:
            seen = region.dense(Tq, Tk, batch=B)
        same(summary.region_mass[name], (weights * seen).sum(-1))
    if options.get("pool"):
        assert summary.cell is not None
        mean, maximum = pooled(weights, summary.cell)
        same(summary.pooled_mean, mean)
        same(summary.pooled_max, maximum)
    if options.get("rows") is not None:
        first, last = options.get("columns") or (0, Tk)
        same(summary.weights, weights[:, :, list(options["rows"]), first:last])


def _assert_top(summary: Any, weights: Tensor, top_k: int, atol: float) -> None:
    """Assert that the listed weights are the largest, in order, and belong to the listed keys, none of them twice."""
    expected = weights.sort(dim=-1, descending=True).values[..., :top_k]
    expected = torch.nn.functional.pad(expected, (0, top_k - expected.shape[-1]))
    torch.testing.assert_close(summary.top_weights.double(), expected, atol=atol, rtol=atol)
    keys = summary.top_keys
    found = weights.gather(-1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
    torch.testing.assert_close(summary.top_weights.double(), found, atol=atol, rtol=atol)
    assert ((keys >= 0) | (expected < 1e-30)).all()
    real = torch.where(keys < 0, -1 - torch.arange(top_k), keys)
    assert (real.sort(dim=-1).values.diff(dim=-1) != 0).all()
