"""Examples for targets whose arguments hold several values or a state, made from what the source code says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.convention import CallingConvention
from heedful.conformance.calling.discovery import find_convention
from heedful.conformance.calling.examples import Example, find_example_convention
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.guessed_steps import guessed_steps
from heedful.conformance.calling.masks import find_masks
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.structures import Structure, names_within, structures
from heedful.conformance.calling.target import Target, TargetError
from heedful.conformance.recording.inputs import Inputs

SIZES = (2, 6)  # B and T of an example that is made
MAX_STEPS = 4  # steps of a decoder that run and are tried as examples


@dataclass(frozen=True, eq=False)
class FlatTarget(Target):
    """A target whose structured arguments are given value by value, each by its own name.

    Attributes:
        structures: The structures by the names of the arguments.
    """

    structures: Mapping[str, Structure] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The parameters of a call, by name, with the values within structures as parameters of their own."""
        return self._flat

    @cached_property
    def _flat(self) -> Mapping[str, Parameter]:
        flat: dict[str, Parameter] = {}
        for name, parameter in super().parameters.items():
            inner = self.structures[name].names if name in self.structures else None
            kind = Parameter.POSITIONAL_OR_KEYWORD
            flat |= (
                {name: parameter} if inner is None else {it: Parameter(it, kind) for it in inner}
            )
        return flat

    def bound(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return named values as the arguments of a call, in which structures hold theirs."""
        whole = {name: it.filled(arguments) for name, it in self.structures.items()}
        inner = {name for it in self.structures.values() for name in it.names}
        return super().bound(
            {name: it for name, it in arguments.items() if name not in inner} | whole
        )


def flattened(target: Target) -> Target:
    """Return a target whose structured arguments are given value by value; the same one if it has none."""
    found = structures(target)
    plain = [name for name in target.parameters if name not in found]
    every = [*plain, *(name for it in found.values() for name in it.names)]
    if not found or len({*every}) < len(every):
        return target
    return FlatTarget(target.name, target.callee, target.guessed, structures=found)


def find_guessed_convention(
    target: Target, causal: bool | None
) -> tuple[CallingConvention, torch.dtype] | None:
    """Return the convention of a call that is made from structures and states, as `find_convention` does.

    The result is None if the target takes neither, or if no such call works with other sizes, too.

    Raises:
        ArgumentError: No call with structures works.
    """
    flat = flattened(target)
    for example, keys in _steps(target, flat):
        found = attempt(lambda example=example: find_example_convention(target, example, causal))
        if not isinstance(found, Exception) and found[0].pooled and found[0].names[0] == keys:
            return found
    if flat is target:
        return None
    convention, dtype = find_convention(flat, causal)
    caller = Caller(flat, convention, dtype, flat.copied(dtype))
    inputs = caller.draw(*(convention.fixed_sizes or SIZES))
    args, keywords = flat.bound(_arguments_showing_all(caller, inputs))
    try:
        return find_example_convention(target, Example(*args, **keywords), causal)
    except TargetError as error:
        if is_missing_name(error.__cause__ or error):
            raise
        return None  # the example is a guess, and other sizes have worked


def _arguments_showing_all(caller: Caller, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of a call, with masks that hide no token, if it is clear which ones do not."""
    shown = caller.with_masks(find_masks(caller, None))
    output = attempt(lambda: shown.run(inputs))
    clear = isinstance(output, Tensor) and bool(output.isfinite().all())
    return (shown if clear else caller).arguments(inputs)


def _steps(target: Target, flat: Target) -> Iterator[tuple[Example, str]]:
    """Yield examples of a decoder's step that run, each with the name of the argument that holds the keys."""
    paths = {name: path for path, name in names_within(target).items()}
    for arguments, keys in islice(guessed_steps(flat), MAX_STEPS):
        args, keywords = flat.bound(arguments)
        yield Example(*args, **keywords), paths.get(keys, keys)
