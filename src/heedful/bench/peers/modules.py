"""Whole attention modules: PyTorch's, and the same module with our attention inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heedful.bench.peers.contender import Contender
from heedful.bench.workload import SEED, WorkloadInputs
from heedful.functional import attention


def build_module(inputs: WorkloadInputs) -> tuple[torch.nn.MultiheadAttention, Tensor]:
    """Return PyTorch's module in evaluation mode, with weights from the seed, and its input (B, T, Hq * D)."""
    workload = inputs.workload
    embed_dim = workload.Hq * workload.D
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        module = torch.nn.MultiheadAttention(embed_dim, workload.Hq, batch_first=True)
    return module.eval().to(inputs.query.dtype), inputs.query.transpose(1, 2).flatten(2)


def module_output(
    module: torch.nn.MultiheadAttention,
    x: Tensor,
    attend: Callable[[Tensor, Tensor, Tensor], Any],
) -> Tensor:
    """Compute the module's output with another attention function.

    Args:
        module: The module.
        x: (B, T, embed_dim).
        attend: The attention function, on tensors (B, H, T, D).

    Returns:
        (B, T, embed_dim).
    """
    B, T, _ = x.shape
    projected = F.linear(x, module.in_proj_weight, module.in_proj_bias)
    query, key, value = projected.view(B, T, 3, module.num_heads, -1).permute(2, 0, 3, 1, 4)
    return module.out_proj(attend(query, key, value).transpose(1, 2).reshape(B, T, -1))


def heedful_module(inputs: WorkloadInputs) -> Contender:
    """Prepare the module with our attention inside."""
    module, x = build_module(inputs)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (module_output(module, x, attention),)

    return Contender(forward)


def torch_module(inputs: WorkloadInputs) -> Contender:
    """Prepare PyTorch's module."""
    module, x = build_module(inputs)

    def forward() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (module(x, x, x, need_weights=False)[0],)

    return Contender(forward)
