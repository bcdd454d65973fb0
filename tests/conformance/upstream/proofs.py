"""What proofs are made of. A proof says in numbers what a bug gets wrong: what a module computes, and what it should.

A proof does not use the check. Most compare a module with torch's scaled_dot_product_attention on the module's own
projections; the others compare two calls that must agree.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Proof = Callable[[Any], tuple[Tensor, Tensor]]
PROOFS: dict[str, Proof] = {}

B, T, C, H = 3, 6, 16, 4
REAL = torch.arange(T) < torch.tensor([T, 4, 3])[:, None]
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def proves(name: str) -> Callable[[Proof], Proof]:
    """Register a proof under the name of its case."""

    def register(proof: Proof) -> Proof:
        PROOFS[name] = proof
        return proof

    return register


def difference(name: str, module: ModuleType) -> float:
    """Return how far a version of a case is from what it should compute; infinity if it raises or returns NaN."""
    torch.manual_seed(0)
    try:
        actual, expected = PROOFS[name](module)
    except (RuntimeError, NameError, ValueError):
        return float("inf")
    return float((actual - expected).detach().abs().max().nan_to_num(nan=float("inf")))


def made(definition: type[nn.Module], *args: Any, **kwargs: Any) -> Any:
    """Build a module in float64 and in eval mode."""
    return definition(*args, **kwargs).double().eval()


def tokens(*shape: int) -> Tensor:
    """Return random tokens in float64."""
    return torch.randn(*(shape or (B, T, C)), dtype=torch.float64)


def heads(x: Tensor, count: int = H) -> Tensor:
    """Split (B, T, H·D) into heads."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """Merge the heads."""
    return x.transpose(1, 2).flatten(2)


def attended(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None, count: int = H) -> Tensor:
    """Attend with heads split from projected queries, keys and values; `keep` is of shape (B, Tk) or (Tq, Tk)."""
    if keep is not None and keep.shape[0] == B:
        keep = keep[:, None, None, :]
    q, k, v = (heads(x, count) for x in (q, k, v))
    return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep))


def rotated(x: Tensor, start: int = 0, interleaved: bool = False) -> Tensor:
    """Rotate (..., T, D) by the positions from `start` on."""
    half = x.shape[-1] // 2
    positions = torch.arange(start, start + x.shape[-2], dtype=torch.float32)
    angles = torch.outer(positions, 10000.0 ** -(torch.arange(half).float() / half)).double()
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    pairs = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    )
    return torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)


def in_steps(call: Callable[..., tuple[Tensor, Any]], x: Tensor) -> Tensor:
    """Return the outputs of consecutive calls, each with the cache of the call before."""
    first, cache = call(x[:, :3], None)
    second, cache = call(x[:, 3:5], cache)
    third, _ = call(x[:, 5:], cache)
    return torch.cat([first, second, third], dim=1)
