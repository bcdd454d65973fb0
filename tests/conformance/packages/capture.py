"""Find the attention modules that a run of a small model calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from heedful.conformance import Example
from packages.discovery import full_name, why_not


@dataclass(frozen=True, eq=False)
class Case:
    """An attention module, as `check` takes it.

    Attributes:
        name: The full name of its class.
        source: Where it comes from: the name of the model or of the package.
        target: The model that calls it, or its class.
        module: The name of the module in the model; None if the class is built alone.
        example: The arguments of the model.
        arguments: The arguments of its constructor, if it is a class.
        left_out: Why it is not checked; "" if it is.
    """

    name: str
    source: str
    target: nn.Module | type[nn.Module]
    module: str | None = None
    example: Example | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    left_out: str = ""


def attentions_in(model: nn.Module, example: Example, source: str) -> list[Case]:
    """Run a model, and return one case for each class of attention in it: the first module that returns numbers.

    A class whose modules return no numbers is left out, because it only selects keys for another one.

    Args:
        model: The model, in eval mode.
        example: The arguments of the model.
        source: The name of the model.

    Raises:
        RuntimeError: The run failed before any attention returned.
    """
    cases: dict[str, Case] = {}
    selecting: dict[str, Case] = {}

    def returned(module: nn.Module, args: object, result: object) -> None:
        name = full_name(type(module))
        outputs = [it for it in pytree.tree_leaves(result) if isinstance(it, torch.Tensor)]
        if not any(it.is_floating_point() and it.numel() and it.dim() > 1 for it in outputs):
            case = Case(
                name, source, model, left_out="it only selects keys: its result has no numbers"
            )
            selecting.setdefault(name, case)
            return
        cases.setdefault(name, Case(name, source, model, names[module], example))

    names = {
        part: name
        for name, part in model.named_modules()
        if type(part).__module__.split(".")[0] != "torch" and why_not(type(part)) is None
    }
    hooks = [part.register_forward_hook(returned) for part in names]
    try:
        with torch.no_grad():
            own = example.copied()
            model(*own.args, **own.kwargs)
    except Exception as error:
        if not cases:
            raise RuntimeError(f"{source}: {type(error).__name__}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return list({**selecting, **cases}.values())
