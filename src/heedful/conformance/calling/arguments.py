"""Find the arguments of a call that take tokens, and values for the other arguments that it requires."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.construction import HEAD_SIZE
from heedful.conformance.calling.convention import MEMORY, Constants
from heedful.conformance.calling.mask_forms import ATTENTION_FORMS, PADDING_FORMS, in_form
from heedful.conformance.calling.target import Target
from heedful.errors import ArgumentError

ROTARY_BASE = 10_000.0


def token_arguments(target: Target) -> tuple[tuple[str, ...], Constants]:
    """Return the names of the arguments that take one row per token, and the constants that a call requires.

    Raises:
        ArgumentError: There is no argument for tokens, or a required argument is unknown.
    """
    parameters = target.parameters
    required = list(target.required)
    if not required or required[0] not in (*names.TOKENS, *names.QUERIES):
        required = [*[name for name in parameters if name in names.TOKENS][:1], *required]
    if not required:
        raise ArgumentError(
            "target",
            expected="an argument for the tokens",
            received=f"{target.name}({', '.join(parameters)})",
            remedy="Name it x, or query, key and value.",
        )
    tokens = [required[0]]
    constants: dict[str, Any] = {}
    if names.COSINES_AND_SINES in parameters:  # its default does not work
        required.append(names.COSINES_AND_SINES)
    for name in dict.fromkeys(required[1:]):
        if name in (*names.QUERIES, *names.KEYS, *names.VALUES, *names.CONTEXTS):
            tokens.append(name)
        else:
            constants[name] = _constant(target, name)
    return tuple(tokens), constants


def example_arguments(target: Target, example: Sequence[Any]) -> tuple[tuple[str, ...], Constants]:
    """Return the same as `token_arguments` from an example of all arguments, in order.

    The arguments that have the shape and dtype of the first one take tokens.

    Raises:
        ArgumentError: The target takes fewer arguments.
    """
    parameters = list(target.parameters)
    if len(example) > len(parameters):
        raise ArgumentError(
            "example",
            expected=f"at most {len(parameters)} arguments: {', '.join(parameters)}",
            received=f"{len(example)}",
            remedy="Give them in the order in which the target takes them.",
        )
    first = example[0]
    tokens: list[str] = []
    constants: dict[str, Any] = {}
    for name, value in zip(parameters, example, strict=False):
        if not isinstance(value, Tensor):
            constants[name] = value
        elif value.shape == first.shape and value.dtype == first.dtype:
            tokens.append(name)
        else:
            constants[name] = _of_any_batch(value, first)
    return tuple(tokens), constants


def _of_any_batch(value: Tensor, first: Tensor) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that gives every sequence what the first one of an example has."""

    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        cast = value.to(dtype) if value.is_floating_point() else value
        batched = value.dim() == first.dim() > 2 and len(value) == len(first)
        return cast[:1].expand(B, *value.shape[1:]) if batched else cast

    return constant


def optional_contexts(target: Target) -> tuple[str, ...]:
    """Return the arguments for another sequence, which may be necessary although they have a default."""
    return tuple(name for name in target.parameters if name in names.CONTEXTS)


def constant_variants(
    target: Target, constants: Constants, causal_flag: Constants
) -> Iterator[Constants]:
    """Yield constants that may make a call work, the most likely first.

    They are tried with the flag that makes the call causal, without it, and with targets, each first without required
    masks and then with masks of every form that show everything.
    """
    additions = [causal_flag, {}] if causal_flag else [{}]
    if names.TARGET_IDS in target.parameters:
        additions.append(
            {names.TARGET_IDS: lambda B, T, dtype: torch.zeros(B, T, dtype=torch.int64)}
        )
    for addition in additions:
        yield from _with_masks({**constants, **addition})


def _with_masks(constants: Constants) -> Iterator[Constants]:
    masks = [name for name, value in constants.items() if "mask" in name and value is None]
    yield constants
    if not masks:
        return
    for dtype in (torch.bool, torch.int64):
        for form in dict.fromkeys((*PADDING_FORMS, *ATTENTION_FORMS)):
            yield {**constants, **{name: _all_visible(name, form, dtype) for name in masks}}


def _all_visible(name: str, form: str, mask_dtype: torch.dtype) -> Callable[..., Tensor]:
    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        visible = in_form(form, torch.ones(1, T, T, dtype=torch.bool), B)
        return (visible if names.TRUE_KEEPS.get(name, True) else ~visible).to(mask_dtype)

    return constant


def _constant(target: Target, name: str) -> Any:
    """Return a value, or a function of (B, T, dtype) that returns one, for a required argument.

    Raises:
        ArgumentError: The name is not a conventional one.
    """
    if name in names.START_POSITIONS:
        return 0
    if name in names.MEMORIES:
        return MEMORY
    if name in names.CAUSAL:
        return False
    if name in names.POSITION_IDS:
        return lambda B, T, dtype: torch.arange(T).expand(B, T)
    if name in names.CACHE_SLOTS:
        return lambda B, T, dtype: torch.arange(T)
    if "mask" in name or "cache" in name or "past" in name:
        return None
    if name in names.ROTARY_TABLES:
        D = _head_size(target.module)
        return lambda B, T, dtype: _rotary_table(name, B, T, D, dtype)
    raise ArgumentError(
        name,
        expected=f"a value for {target.name}'s argument {name!r}",
        received="no value, and the name is not a conventional one",
        remedy="Give an example of all the arguments: example=(…).",
    )


def _rotary_table(name: str, B: int, T: int, D: int, dtype: torch.dtype) -> Any:
    """Return the rotary table of positions 0 … T − 1 that an argument of this name takes.

    Tables are complex as in Llama's own code, cosines or sines of each angle once, (T, D / 2), or twice, (T, D), or,
    in transformers, both, each (B, T, D).
    """
    frequencies = ROTARY_BASE ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T)[:, None] * frequencies
    if name == names.COMPLEX_ROTATIONS:
        return torch.polar(torch.ones_like(angles), angles)
    if name not in names.HALF_TABLES:
        angles = torch.cat([angles, angles], dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if name == names.COSINES_AND_SINES:
        return cos.expand(B, T, D), sin.expand(B, T, D)
    if name in names.COSINES:
        return cos
    return sin if name in names.SINES else (cos, sin)


def _head_size(module: nn.Module | None) -> int:
    for part in () if module is None else module.modules():
        for name in names.HEAD_SIZES:
            if isinstance(size := getattr(part, name, None), int):
                return size
    return HEAD_SIZE
