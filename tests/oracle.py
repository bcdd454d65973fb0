"""Attention row by row in plain Python and float64: slow, and too simple to share a bug with the kernels."""

import math

import torch


def attention_row_by_row(
    query, key, value, mask=None, bias=None, scale=None, softcap=None, sinks=None
):
    """Return output (B, Hq, Tq, Dv) and lse (B, Hq, Tq), in float64."""
    query, key, value = (tensor.detach().double() for tensor in (query, key, value))
    B, Hq, Tq, D = query.shape
    Hkv, Tk, Dv = key.shape[1], key.shape[2], value.shape[3]
    scale = 1 / math.sqrt(D) if scale is None else scale
    if bias is not None:
        bias = bias.detach().double().expand(B, Hq, Tq, Tk)
    shown = None
    if mask is not None:
        shown = mask.dense(Tq, Tk, batch=B).expand(B, Hq, Tq, Tk)
    output = torch.zeros(B, Hq, Tq, Dv, dtype=torch.float64)
    lse = torch.full((B, Hq, Tq), -math.inf, dtype=torch.float64)
    for b in range(B):
        for h in range(Hq):
            for i in range(Tq):
                keys = [j for j in range(Tk) if shown is None or shown[b, h, i, j]]
                scores = []
                for j in keys:
                    score = scale * float(query[b, h, i] @ key[b, h // (Hq // Hkv), j])
                    score = score if softcap is None else softcap * math.tanh(score / softcap)
                    scores.append(score + (0.0 if bias is None else float(bias[b, h, i, j])))
                total = sum(math.exp(score) for score in scores)
                total += 0.0 if sinks is None else math.exp(float(sinks[h]))
                if total:
                    lse[b, h, i] = math.log(total)
                for j, score in zip(keys, scores, strict=True):
                    output[b, h, i] += math.exp(score) / total * value[b, h // (Hq // Hkv), j]
    return output, lse
