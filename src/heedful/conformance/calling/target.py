"""What is checked, as it was given, and copies of it: nothing else is ever run."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from heedful.conformance.calling.construction import build
from heedful.conformance.calling.runs import seeded
from heedful.errors import ArgumentError

# Unlike `.to(dtype)` they leave complex tables of angles complex.
CASTS: dict[torch.dtype, Callable[[nn.Module], nn.Module]] = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.bfloat16: nn.Module.bfloat16,
    torch.float16: nn.Module.half,
}


class TargetError(Exception):
    """The target could be called, and raised; the cause is what it raised."""


@dataclass(frozen=True, eq=False)
class Target:
    """What is called, as it was given.

    Attributes:
        name: the class's or function's.
        callee: a module, never run itself, or a function.
    """

    name: str
    callee: Callable[..., Any]

    @property
    def module(self) -> nn.Module | None:
        return self.callee if isinstance(self.callee, nn.Module) else None

    @property
    def forward(self) -> Callable[..., Any]:
        """What has the parameters."""
        return self.callee.forward if isinstance(self.callee, nn.Module) else self.callee

    def bound(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by name as positional ones, as far as can be, and the rest."""
        found = inspect.signature(self.forward).bind(**given)
        return found.args, found.kwargs

    def copied(self, dtype: torch.dtype, *, train: bool = False) -> Callable[..., Any]:
        """A copy in a dtype; of a function, the function."""
        if self.module is None:
            return self.callee
        return CASTS[dtype](copy.deepcopy(self.module)).train(train)


def target_of(target: Any, arguments: Mapping[str, Any]) -> Target:
    """The target itself; of a class, an instance.

    Raises:
        ArgumentError: it cannot be called, built or copied.
    """
    if inspect.isclass(target):
        with seeded():
            target = build(target, arguments)
    elif arguments:
        raise ArgumentError(
            "arguments",
            expected="none for what is built already",
            received=", ".join(arguments),
            remedy="Pass the class instead of an instance.",
        )
    target = getattr(target, "_orig_mod", target)  # what torch.compile was given
    _check_callable(target)
    if target is F.scaled_dot_product_attention:  # torch's one attention that Python cannot read
        target = scaled_dot_product_attention
    if not isinstance(target, nn.Module):
        return Target(getattr(target, "__name__", type(target).__name__), target)
    try:
        module = copy.deepcopy(target, _results_kept(target)).cpu()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ArgumentError(
            "target",
            expected="a module that copy.deepcopy can copy: the check runs copies alone",
            received=f"{type(target).__name__}, and {type(error).__name__}: {error}",
            remedy="Hand over a freshly built one, or its class.",
        ) from error
    _draw_constants(module)
    return Target(type(target).__name__, module)


def _check_callable(target: Any) -> None:
    """Raise `ArgumentError` for what cannot be called, or would be run itself: a module's method, a part of one."""
    if not callable(target):
        raise ArgumentError(
            "target",
            expected="a module, the class of one, or a function",
            received=repr(target),
            remedy="Name the class of the attention, or a function of (query, key, value).",
        )
    for held in ("__self__", "func"):
        if isinstance(getattr(target, held, None), nn.Module):
            raise ArgumentError(
                "target",
                expected="a module itself, which can be copied",
                received=f"a call of {type(getattr(target, held)).__name__}'s",
                remedy="Pass the module: its forward is what is called.",
            )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """PyTorch's own, with a signature that Python can read."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal)


def _results_kept(module: nn.Module) -> dict[int, Any]:
    """Copies of results that a module keeps, such as its last weights: with their history they cannot be copied."""
    held = [it for part in module.modules() for it in pytree.tree_leaves(vars(part))]
    results = (it for it in held if isinstance(it, Tensor) and not it.is_leaf)
    return {id(it): it.detach().clone() for it in results}


def _draw_constants(module: nn.Module) -> None:
    """Give random values to what is all the same: a projection of zeros would hide everything behind it."""
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.numel() < 2 or not parameter.is_floating_point() or parameter.is_meta:
                continue
            same = bool((parameter == parameter.flatten()[0]).all())
            matrix = parameter.dim() >= 2
            if same and (matrix or (name.endswith("bias") and not parameter.any())):
                size = parameter.shape[-1] ** -0.5 if matrix else 0.1
                drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float32) * size
                parameter.copy_(drawn)
