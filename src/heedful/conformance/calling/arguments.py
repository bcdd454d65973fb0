"""Find the arguments of a call that take tokens, and values for the other arguments that it requires."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.calling.convention import Constants
from heedful.conformance.calling.conventional import HEAD_SIZE
from heedful.conformance.calling.declared import attribute_of
from heedful.conformance.calling.layouts import DISTANCE_AXIS, documented_axes
from heedful.conformance.calling.mask_forms import ATTENTION_FORMS, PADDING_FORMS
from heedful.conformance.calling.options import example_with, option
from heedful.conformance.calling.roles import (
    TOKENS,
    AllVisible,
    coordinates,
    is_called,
    likely_values,
    position_vectors,
)
from heedful.conformance.calling.rotary_tables import (
    PositionTable,
    halves_of_tables,
    rotary_table,
    rotary_tables,
)
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.source import nodes_of
from heedful.errors import ArgumentError

OF_TOKENS = (*names.QUERIES, *names.KEYS, *names.VALUES, *names.CONTEXTS, *names.MEMORIES)
# Stands for a value that has to be found by trial.
UNKNOWN = object()
# Arguments of unknown roles, and combinations of their values, that are tried.
MAX_UNKNOWN, MAX_GUESSES = 3, 40


def token_arguments(
    target: Target, *, allow_unknown: bool = False
) -> tuple[tuple[str, ...], Constants]:
    """Return the names of the arguments that take one row per token, and the constants that a call requires.

    Args:
        target: What is to be called.
        allow_unknown: Whether constants of unknown names are `UNKNOWN` instead of an error.

    Raises:
        ArgumentError: There is no argument for tokens, or a required argument is unknown.
    """
    parameters = target.parameters
    required = list(target.required)
    if not required or required[0] not in (*names.TOKENS, *names.QUERIES):
        tokens_first = [name for name in parameters if name in names.TOKENS][:1]
        required = list(dict.fromkeys((*tokens_first, *required)))
    if not required:  # *args, whose first one is the tokens
        required = [f"{it.name}[0]" for it in parameters.values() if it.kind is it.VAR_POSITIONAL]
    if not required:
        raise ArgumentError(
            option("target"),
            expected="an argument for the tokens",
            received=f"{target.name}({', '.join(parameters)})",
            remedy="Name it x, or query, key and value.",
        )
    tokens = [required[0]]
    constants: dict[str, Any] = {}
    if names.COSINES_AND_SINES in parameters:  # its default does not work
        required.append(names.COSINES_AND_SINES)
    for name in required[1:]:
        if name in OF_TOKENS:
            tokens.append(name)
        else:
            constants[name] = _constant(target, name, allow_unknown)
    return tuple(tokens), constants


def optional_contexts(target: Target) -> tuple[str, ...]:
    """Return the arguments for another sequence, or for keys and values, which may be necessary despite a default."""
    others = (*names.CONTEXTS, *names.KEYS, *names.VALUES)
    return tuple(name for name in target.parameters if name in others)


def constant_variants(
    target: Target, constants: Constants, causal_flag: Constants
) -> Iterator[Constants]:
    """Yield constants that may make a call work, the most likely first.

    They are tried with the flag that makes the call causal, without it, with a first position, and with targets, each
    first without required masks and then with masks of every form that show everything. A mask, or a position, may be
    necessary although it has a default.
    """
    additions = [causal_flag, {}] if causal_flag else [{}]
    starts = [name for name in names.START_POSITIONS if name in target.parameters]
    if any(target.parameters[name].default is None for name in starts):
        additions += [{**it, **dict.fromkeys(starts, 0)} for it in additions]
    if "pos" in constants:  # a number, or the place of each token
        additions.append({"pos": coordinates})
    if names.TARGET_IDS in target.parameters:
        additions.append(
            {names.TARGET_IDS: lambda B, T, dtype: torch.zeros(B, T, dtype=torch.int64)}
        )
    for addition in additions:
        yield from _with_masks(target, {**constants, **addition})


def _with_masks(target: Target, constants: Constants) -> Iterator[Constants]:
    masks = [name for name, value in constants.items() if "mask" in name and value is None]
    masks = masks or [name for name in names.ATTENTION_MASKS if name in target.parameters][:1]
    yield constants
    halves = [name for name in constants if name in (*names.COSINES, *names.SINES)]
    for tables in halves_of_tables(halves, head_size_of(target.module)) if halves else ():
        yield {**constants, **tables}
    for name in (name for name in constants if name in names.ROTARY_TABLES and name not in halves):
        for table in rotary_tables(head_size_of(target.module)):
            yield {**constants, name: table}
        for vectors in position_vectors(target.module) if "position" in name else ():
            yield {**constants, name: vectors}
    if not masks:
        return
    required = any(name in constants for name in masks)
    open_polarity = required and not names.TRUE_KEEPS.keys() >= {*masks}
    for dtype in (torch.bool, torch.int64) if required else (torch.bool,):
        for form in dict.fromkeys((*PADDING_FORMS, *ATTENTION_FORMS)):
            for keeps in (True, False) if open_polarity and dtype == torch.bool else (True,):
                shown = {
                    name: AllVisible(form, dtype, true_keeps=names.TRUE_KEEPS.get(name, keeps))
                    for name in masks
                }
                yield {**constants, **shown}


def guessed_arguments(
    target: Target, tokens: tuple[str, ...], constants: Constants
) -> Iterator[tuple[tuple[str, ...], Constants]]:
    """Yield the arguments for tokens, and the constants, with every unknown one replaced by a likely value.

    Unknown arguments are tried together, each with its own most likely values first. Where there are many, all but the
    first few keep the most likely one.
    """
    unknown = [name for name, value in constants.items() if value is UNKNOWN]
    D = head_size_of(target.module)
    likely = [list(likely_values(target, name, D)) for name in unknown]
    likely = [values[: None if n < MAX_UNKNOWN else 1] for n, values in enumerate(likely)]
    ranked = sorted(product(*(range(len(values)) for values in likely)), key=sum)
    for ranks in ranked[:MAX_GUESSES]:
        values = {name: it[rank] for name, it, rank in zip(unknown, likely, ranks, strict=False)}
        more = tuple(name for name, value in values.items() if value is TOKENS)
        rest = {name: value for name, value in values.items() if value is not TOKENS}
        known = {name: value for name, value in constants.items() if value is not UNKNOWN}
        yield (*tokens, *more), {**known, **rest}


def _constant(target: Target, name: str, allow_unknown: bool) -> Any:
    """Return a value, or a function of (B, T, dtype) that returns one, for a required argument.

    Raises:
        ArgumentError: The name is not a conventional one.
    """
    if name in names.START_POSITIONS and not (allow_unknown and _is_tensor(target, name)):
        return 0
    if name in names.CAUSAL:
        return False
    if name in names.POSITION_IDS:
        return lambda B, T, dtype: torch.arange(T).expand(B, T)
    if name in names.CACHE_SLOTS:
        return lambda B, T, dtype: torch.arange(T)
    if "mask" in name and next(documented_axes(target.callee, name), "") == "B":  # lengths
        return lambda B, T, dtype: torch.full((B,), T)
    if "mask" in name or "cache" in name or "past" in name:
        return None
    of_distances = DISTANCE_AXIS in next(documented_axes(target.callee, name), "")
    if name in names.ROTARY_TABLES and not of_distances and not is_called(target, name):
        D = head_size_of(target.module)
        return PositionTable(lambda B, T, dtype: rotary_table(name, B, T, D, dtype))
    if allow_unknown:
        return UNKNOWN
    raise ArgumentError(
        name,
        expected=f"a value for {target.name}'s argument {name!r}",
        received="no value, and the name is not a conventional one",
        remedy=f"Give an example of all the arguments: {example_with()}.",
    )


def _is_tensor(target: Target, name: str) -> bool:
    """Check whether a target's own code reads what only a tensor has of an argument, such as `pos.shape`."""
    for node in nodes_of(target.forward):
        match node:
            case ast.Attribute(value=ast.Name(id=read), attr=attribute) if read == name:
                if hasattr(torch.Tensor, attribute) and not hasattr(int, attribute):
                    return True
    return False


def head_size_of(module: nn.Module | None) -> int:
    """Return the head size that a module declares, or the usual one."""
    for part in () if module is None else module.modules():
        for name in names.HEAD_SIZES:
            if isinstance(size := attribute_of(part, name), int):
                return size
    return HEAD_SIZE
