"""Regress what happens to scores on the scores themselves."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_RESIDUAL = 1e-3


def centred(values: Tensor, visible: Tensor) -> Tensor:
    """Subtract the mean of each row's visible entries; hidden ones become 0."""
    count = visible.sum(-1, keepdim=True).clamp_min(1)
    mean = values.masked_fill(~visible, 0).sum(-1, keepdim=True) / count
    return torch.where(visible, values - mean, 0)


def slope_of(x: Tensor, y: Tensor) -> float | None:
    """Return the slope of y over x through the origin; None if it is 0, or if the points do not lie on a line."""
    if not x.norm() > 0:
        return None
    slope = ((x * y).sum() / (x * x).sum()).item()
    is_linear = (y - slope * x).norm() <= LARGEST_RESIDUAL * y.norm().clamp_min(1e-30)
    return slope if is_linear and slope != 0 else None
