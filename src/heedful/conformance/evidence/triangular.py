"""Recognise triangular matrices, which causal masks are made of."""

from __future__ import annotations

import torch
from torch import Tensor


def is_triangular(tensor: Tensor) -> bool:
    """Check whether a tensor (…, T, T) has one value up to a diagonal near the main one and another one above it.

    All matrices in the tensor must be equal. The diagonal may be the main one or one of its neighbours. Signs of
    distances have a third value on it, and are no mask.
    """
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 3:
        return False
    matrices = tensor.reshape(-1, *tensor.shape[-2:])
    if len(matrices) == 0 or not (matrices == matrices[:1]).all():
        return False
    kept = matrices[0] == matrices[0, -1, 0]
    if not (kept | (matrices[0] == matrices[0, 0, -1])).all():
        return False
    return any(torch.equal(kept, torch.ones_like(kept).tril(offset)) for offset in (-1, 0, 1))
