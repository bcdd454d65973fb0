"""Fill the memory that a constructor has made and given no numbers, such as that of torch.empty()."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from heedful.conformance.calling.target import SPREAD


def fill_memory(instance: Any) -> tuple[str, ...]:
    """Replace the NaN that such memory holds, and return the names of the trained parameters that held nothing else.

    Parameters get random numbers, the same ones each time. Frozen ones are memory that a checkpoint is to fill. Other
    tensors, such as caches, get zeros.

    Args:
        instance: What a constructor returned while new memory held NaN; only a module is changed.
    """
    if not isinstance(instance, nn.Module) or "_modules" not in vars(instance):
        return ()  # the constructor has not called that of nn.Module
    for holder in (it for part in instance.modules() for it in (vars(part), part._buffers)):
        for value in holder.values():
            if isinstance(value, Tensor) and not value.is_meta and (nan := value.isnan()).any():
                value.data.masked_fill_(nan, 0)
    return tuple(name for name, it in instance.named_parameters() if _fill(it) and it.requires_grad)


def _fill(parameter: nn.Parameter) -> bool:
    """Give a parameter that holds NaN alone random numbers; return whether it was one."""
    if is_lazy(parameter) or parameter.is_meta or not parameter.is_floating_point():
        return False
    if not parameter.numel() or not bool(parameter.isnan().all()):
        return False
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
    parameter.data.copy_(noise * SPREAD)
    return True
