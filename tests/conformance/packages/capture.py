"""Run a small model, and record its attention modules with the inputs that they get there."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from packages.discovery import full_name, why_not


@dataclass(frozen=True, eq=False)
class Case:
    """An attention module and how it is called.

    Attributes:
        name: The full name of its class.
        source: Where it comes from: the model that it was captured in, or the arguments that it was built with.
        module: The module, or its class.
        args: The positional arguments of its first call; None if it was not captured.
        kwargs: The keyword arguments of its first call.
        arguments: The arguments of its constructor, if it is a class.
    """

    name: str
    source: str
    module: nn.Module | type[nn.Module]
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


def captured(model: nn.Module, run: Callable[[nn.Module], object], source: str) -> list[Case]:
    """Run a model, and return one case for each class of attention in it, with the inputs of its first call.

    Args:
        model: The model, in eval mode.
        run: A function that calls the model.
        source: The name of the model.

    Raises:
        RuntimeError: The run failed before it reached any attention.
    """
    cases: dict[str, Case] = {}
    with _recording(model, cases, source), torch.no_grad():
        try:
            run(model)
        except Exception as error:
            if not cases:
                raise RuntimeError(f"{source}: {type(error).__name__}: {error}") from error
    return list(cases.values())


@contextmanager
def _recording(model: nn.Module, cases: dict[str, Case], source: str) -> Iterator[None]:
    """Record the first call of each class of attention into `cases`, if it returns."""
    started: dict[str, Case] = {}

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = full_name(type(module))
        if name not in started:
            taken, named = copied((args, kwargs))
            started[name] = Case(name, source, copy.deepcopy(module), taken, named)

    def returned(module: nn.Module, args: object, result: object) -> None:
        name = full_name(type(module))
        if name in started:
            cases.setdefault(name, started[name])

    handles = []
    for part in model.modules():
        if type(part).__module__.split(".")[0] != "torch" and why_not(type(part)) is None:
            handles.append(part.register_forward_pre_hook(hook, with_kwargs=True))
            handles.append(part.register_forward_hook(returned))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for case in cases.values():
            _without_hooks(case.module)


def _without_hooks(module: nn.Module | type[nn.Module]) -> None:
    """Remove the hooks that a copy has taken along."""
    for part in module.modules() if isinstance(module, nn.Module) else ():
        for hooks in (
            part._forward_pre_hooks,
            part._forward_pre_hooks_with_kwargs,
            part._forward_hooks,
        ):
            hooks.clear()


def copied(values: Any) -> Any:
    """Return arguments whose tensors are copies without gradients."""
    return pytree.tree_map(lambda it: it.detach().clone() if isinstance(it, Tensor) else it, values)


def example_of(case: Case) -> tuple[Any, ...] | None:
    """Return the arguments of a captured call as `check` takes them: in the order of the signature.

    The first argument holds the tokens. The others are functions of (B, T, dtype) that cut them to fewer tokens.
    """
    if case.args is None or not isinstance(case.module, nn.Module):
        return None
    signature = inspect.signature(case.module.forward)
    bound = signature.bind(*case.args, **case.kwargs)
    bound.apply_defaults()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    values = [
        value
        for name, value in bound.arguments.items()
        if signature.parameters[name].kind not in variadic
    ]
    while values and values[-1] is None:
        values.pop()
    if not values or not isinstance(values[0], Tensor) or values[0].dim() < 2:
        return tuple(values)
    first = values[0]
    return (first, *(_of_any_size(value, first) for value in values[1:]))


def _of_any_size(value: Any, tokens: Tensor) -> Any:
    """Return a function of (B, T, dtype) that cuts an argument to the first T tokens, if it holds tensors."""
    if isinstance(value, Tensor) and value.shape == tokens.shape and value.dtype == tokens.dtype:
        return value
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
        return value
    batch, length = tokens.shape[:2]

    def cut(tensor: Any, B: int, T: int, dtype: torch.dtype) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        for axis, size in enumerate(tensor.shape):
            if size == length and length != batch and (axis or tensor.dim() == 1 or length >= T):
                if length < T:
                    raise ValueError(f"the captured call has {length} tokens only")
                tensor = tensor.narrow(axis, 0, T)
        if tensor.dim() > 1 and len(tensor) == batch:
            tensor = tensor[:1].expand(B, *tensor.shape[1:])
        return tensor

    return lambda B, T, dtype: pytree.tree_map(lambda leaf: cut(leaf, B, T, dtype), value)
