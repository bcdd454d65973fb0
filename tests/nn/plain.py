"""Reference implementations in plain torch: multi-head attention query by query, rotary positions pair by pair."""

import math

import torch


def rotate(x, positions, *, base, layout):
    """Apply RoFormer's equation 34 pair by pair to x (B, H, T, D), for positions (T,) or (B, T)."""
    B, _, T, D = x.shape
    positions = positions.expand(B, T).to(torch.float64)
    out = torch.empty_like(x)
    for pair in range(D // 2):
        first, second = (pair, pair + D // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        angle = (positions * base ** (-2 * pair / D))[:, None]  # (B, 1, T)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def multi_head(module, x, context=None, *, shown=None, positions=None):
    """Return the expected output of `module` for x (B, T, d_model), if `shown` (B, T, Tk) is its whole mask."""
    B, T, _ = x.shape
    source = x if context is None else context
    Tk, D = source.shape[1], module.head_dim

    def heads(projected):
        return torch.stack(projected.split(D, dim=-1), dim=1)  # (B, H, T, D)

    query, key, value = (
        heads(layer(tokens))
        for layer, tokens in (
            (module.W_query, x),
            (module.W_key, source),
            (module.W_value, source),
        )
    )
    if module.rotary is not None:
        positions = torch.arange(T) if positions is None else positions
        settings = {"base": module.rotary.base, "layout": module.rotary.layout}
        query, key = rotate(query, positions, **settings), rotate(key, positions, **settings)
    shown = torch.ones(B, T, Tk, dtype=torch.bool) if shown is None else shown.expand(B, T, Tk)
    group = module.num_heads // module.num_kv_heads
    rows = []
    for b in range(B):
        for i in range(T):
            keys = shown[b, i].nonzero().flatten()
            row = []
            for h in range(module.num_heads):
                scores = key[b, h // group, keys] @ query[b, h, i] / math.sqrt(D)
                if module.softcap is not None:
                    scores = module.softcap * torch.tanh(scores / module.softcap)
                row.append(scores.softmax(0) @ value[b, h // group, keys])
            rows.append(torch.cat(row))
    return module.out_proj(torch.stack(rows).view(B, T, -1))
