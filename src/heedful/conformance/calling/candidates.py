"""The calling conventions that a target may have, by its signature, its sizes and the layouts of the field."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import torch
from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.calling.arguments import (
    UNKNOWN,
    constant_variants,
    guessed_arguments,
    optional_contexts,
    token_arguments,
)
from heedful.conformance.calling.causality import causal_flag, mask_by_caller
from heedful.conformance.calling.convention import (
    IMAGES,
    MAPS,
    MEMORY,
    SIGNAL,
    VIDEOS,
    CallingConvention,
    Constants,
)
from heedful.conformance.calling.conventional import HEAD_SIZE, HEADS, WIDTH
from heedful.conformance.calling.declared import attribute_of, declared_number
from heedful.conformance.calling.layouts import (
    Layouts,
    documented_axes,
    documented_layouts,
    likely_layouts,
)
from heedful.conformance.calling.roles import (
    FEATURE_MAP,
    ONE_ROW,
    AllVisible,
    OfMemory,
    feature_map,
    few_rows,
    ids_of_memory,
    is_projected,
    one_row,
    one_vector,
    vocabulary_of,
)
from heedful.conformance.calling.target import Target, made_parameters

MAX_WIDTHS = 8  # the number of widths that are tried
PAIRS = ("(T, T)", "(B, T, T)")
LETTERS = 3  # that names begin with, of which one abbreviates the other
MAX_GUESSED_WIDTHS = 3  # the same with unknown arguments, of which there are many combinations


def candidate_conventions(target: Target, causal: bool | None) -> Iterator[CallingConvention]:
    """Yield the conventions by which a target may be called, the most likely first.

    Args:
        target: What is to be called.
        causal: Whether it should be causal; None if the user does not state it.

    Raises:
        ArgumentError: The target requires an argument whose value cannot be guessed.
    """
    yield from _of_translation(target)
    known = token_arguments(target, allow_unknown=True)
    unknown = any(value is UNKNOWN for value in known[1].values())
    guesses = list(guessed_arguments(target, *known)) if unknown else [known]
    visible_keys, layouts = mask_by_caller(target, causal), likely_layouts(target.callee)
    for tokens, constants in guesses:
        variants = list(constant_variants(target, constants, causal_flag(target, causal)))
        for base in _bases(target, tokens, layouts, MAX_GUESSED_WIDTHS if unknown else MAX_WIDTHS):
            for variant in variants:
                yield replace(
                    base,
                    constants={**_beside_memory(variant, base), **base.constants},
                    visible_keys=visible_keys,
                    guessed=unknown or base.guessed,
                )
    yield from _behind_pairs(target, layouts)


def as_documented(
    target: Target, conventions: Sequence[CallingConvention]
) -> list[CallingConvention]:
    """Return the conventions without guesses of another layout than the docstring gives the tokens."""
    names_of_tokens = {it.names[0] for it in conventions if it.guessed and it.names}
    said = {name: documented_layouts(target.callee, name) for name in names_of_tokens}

    def fits(convention: CallingConvention) -> bool:
        layouts = said[convention.names[0]] if convention.guessed and convention.names else ()
        return not layouts or convention.layout in layouts

    return [it for it in conventions if fits(it)]


def _behind_pairs(target: Target, layouts: Layouts) -> Iterator[CallingConvention]:
    """Yield conventions for tokens behind an argument with a number for each pair of them, such as links of a graph.

    Only the tokens are given to a layer.
    """
    if target.module is None or len(target.required) != 2:
        return
    pairs, tokens = target.required
    if is_projected(target, pairs) or not is_projected(target, tokens):
        return
    for base in _by_sizes(target.module, (tokens,), layouts, MAX_GUESSED_WIDTHS):
        for form in PAIRS:
            links = AllVisible(form, torch.float64, true_keeps=True)
            yield replace(base, constants={pairs: links}, guessed=True)


def _beside_memory(constants: Constants, base: CallingConvention) -> Constants:
    """Return constants, of which those named like a second sequence beside ids, as encoder_mask, are made for it."""
    memories = [name for name, value in base.constants.items() if value is MEMORY]
    if not (base.vocabulary and memories):
        return constants
    beginnings = tuple({name[:LETTERS].lower() for name in memories})
    return {
        name: OfMemory(it) if callable(it) and name.lower().startswith(beginnings) else it
        for name, it in constants.items()
    }


def _of_translation(target: Target) -> Iterator[CallingConvention]:
    """Yield the conventions of a model that takes a source and the ids of its translation.

    The source has ids, too, or vectors, as frames of speech. The result has a row for each token of the translation.
    """
    module, required = target.module, target.required
    embeddings = (
        [] if module is None else [it for it in module.modules() if isinstance(it, nn.Embedding)]
    )
    if not embeddings or len(required) != 2 or not names.TRANSLATION.match(required[1]):
        return
    source, translation = required
    vocabulary = min(it.num_embeddings for it in embeddings)
    base = CallingConvention("(B, T) ids", (translation,), (), vocabulary, guessed=True)
    if len(embeddings) > 1:
        yield replace(base, constants={source: ids_of_memory(vocabulary)})
    for width in widths_of(module)[:MAX_GUESSED_WIDTHS] if module is not None else ():
        yield replace(base, constants={source: MEMORY}, other_features={source: (width,)})


def _bases(
    target: Target, tokens: tuple[str, ...], layouts: Layouts, most: int
) -> Iterator[CallingConvention]:
    """Yield conventions for tokens without other arguments, with at most so many widths."""
    vectors = [
        name
        for name in tokens
        if [len(axes) for axes in documented_axes(target.callee, name)][:1] == [2]
    ]
    maps = [
        name
        for name in tokens[1:]
        if FEATURE_MAP in (len(axes) for axes in documented_axes(target.callee, name))
    ]
    if maps:
        yield from _to_feature_maps(target.module, tokens, maps, most)
    if len(vectors) == 1:
        yield from of_one_query(target.module, tokens, most, vectors[0])
    rows = [name for name in tokens if next(documented_axes(target.callee, name), "") == ONE_ROW]
    if len(rows) == 1:
        yield from of_one_query(target.module, tokens, most, rows[0], one_row)
    yield from _by_sizes(target.module, tokens, layouts, most)
    contexts = tuple(name for name in optional_contexts(target) if name not in tokens)
    if contexts:
        yield from _by_sizes(target.module, tokens + contexts, layouts, most)
    if len(tokens) > 1:
        yield from _by_two_widths(target.module, tokens, layouts, most)
        yield from _of_channels_first(target.module, tokens, layouts, most)
        if vectors != [tokens[0]]:
            yield from of_one_query(target.module, tokens, most, tokens[0])


def of_one_query(
    module: nn.Module | None,
    tokens: tuple[str, ...],
    most: int,
    query: str,
    drawn: Callable[[int], Any] = one_vector,
) -> Iterator[CallingConvention]:
    """Yield conventions in which one argument is one vector for each sequence, such as a decoder's state.

    The vector is as wide as the tokens, or else of another width.
    """
    others = tuple(name for name in tokens if name != query)
    widths = [] if module is None else widths_of(module)[:most]
    widths += [WIDTH] * (WIDTH not in widths)
    pairs = (*zip(widths, widths, strict=True), *permutations(widths, 2))
    for own, width in pairs if others else ():
        constants = {query: drawn(own)}
        yield CallingConvention(
            "(B, T, C)", others, (width,), constants=constants, same_tokens=True, guessed=True
        )


def _to_feature_maps(
    module: nn.Module | None, tokens: tuple[str, ...], maps: list[str], most: int
) -> Iterator[CallingConvention]:
    """Yield conventions in which tokens attend to the pixels of feature maps (B, C, Y, X), as documented."""
    taking = tuple(name for name in tokens if name not in maps)
    for width in [WIDTH] if module is None else widths_of(module)[:most]:
        constants = {name: feature_map(width) for name in maps}
        yield CallingConvention(
            "(B, T, C)", taking, (width,), constants=constants, same_tokens=True, guessed=True
        )


def _by_sizes(
    module: nn.Module | None, tokens: tuple[str, ...], layouts: Layouts, most: int
) -> Iterator[CallingConvention]:
    """Yield conventions for tokens of the sizes that a module has, or of conventional ones."""
    if module is None or next(module.parameters(), None) is None:
        yield from _without_parameters(module, tokens, layouts)
        return
    vocabulary = vocabulary_of(module)
    if vocabulary and (tokens[0] in names.TOKEN_IDS or _begins_with_embedding(module)):
        yield from _of_ids(module, tokens, layouts, vocabulary, most)
    likely, unlikely = layouts.tokens
    signals = [SIGNAL] if layouts.signals else []
    maps = (*(IMAGES if layouts.images else ()), *(VIDEOS if layouts.videos else ()))
    alone = () if layouts.batched else ("(T, C)",)
    of_maps = [MAPS[axes][0] for axes in _axes_of_gains(module) if axes in MAPS]
    ordered = (*of_maps, *signals, likely, *alone, unlikely, *maps)
    widths = widths_of(module)[:most]
    if tokens[0].lower() in names.PACKED:
        widths = [3 * width for width in widths] + widths
    if (
        len(tokens) == 2
        and names.TRANSLATED.match(tokens[0])
        and names.TRANSLATION.match(tokens[1])
    ):
        for layout, width in product((likely, unlikely), widths):
            yield CallingConvention(
                layout,
                tokens[1:],
                (width,),
                constants={tokens[0]: MEMORY},
                other_features={tokens[0]: (width,)},
            )
    for layout in dict.fromkeys(ordered):
        for width in widths:
            yield CallingConvention(layout, tokens, (width,), same_tokens=True)


def _of_ids(
    module: nn.Module, tokens: tuple[str, ...], layouts: Layouts, vocabulary: int, most: int
) -> Iterator[CallingConvention]:
    """Yield conventions for ids, the translation among several tokens, beside vectors of a second sequence."""
    translated = (name for name in tokens if names.TRANSLATION.match(name))
    ids = tokens[0] if tokens[0] in names.TOKEN_IDS else next(translated, tokens[0])
    others = [name for name in tokens if name != ids]
    if not others:
        likely = [layouts.ids[0]] if layouts.declared else []
        for layout in dict.fromkeys((*likely, "(B, T) ids")):
            yield CallingConvention(layout, (ids,), (), vocabulary)
    for width in widths_of(module)[:most] if others else ():
        yield CallingConvention(
            "(B, T) ids",
            (ids,),
            (),
            vocabulary,
            constants=dict.fromkeys(others, MEMORY),
            other_features=dict.fromkeys(others, (width,)),
        )


def _by_two_widths(
    module: nn.Module | None, tokens: tuple[str, ...], layouts: Layouts, most: int
) -> Iterator[CallingConvention]:
    """Yield conventions in which the first argument has tokens of one width, and the others of another.

    Values may be of another width than the queries and keys, which alone are compared.
    """
    widths = [] if module is None else widths_of(module)[:most]
    values = [name for name in tokens if name in names.VALUES]
    for taking in (tokens[1:], values) if values and len(tokens) > 2 else (tokens[1:],):
        for width, other in permutations(widths, 2):
            others = dict.fromkeys(taking, (other,))
            yield CallingConvention(layouts.tokens[0], tokens, (width,), other_features=others)


def _of_channels_first(
    module: nn.Module | None, tokens: tuple[str, ...], layouts: Layouts, most: int
) -> Iterator[CallingConvention]:
    """Yield conventions in which a signal or a feature map, whose channels come first, attends to rows of features."""
    if module is None or len(tokens) != 2:
        return
    maps = (*([SIGNAL] if layouts.signals else []), *(IMAGES[:1] if layouts.images else ()))
    widths = widths_of(module)[:most]
    for layout, width, other in product(maps, widths, widths):
        rows = {tokens[1]: few_rows(other)}
        yield CallingConvention(
            layout, tokens[:1], (width,), constants=rows, same_tokens=True, guessed=True
        )


def _without_parameters(
    module: nn.Module | None, tokens: tuple[str, ...], layouts: Layouts
) -> Iterator[CallingConvention]:
    """Yield conventions for a function of query, key and value, split into heads if possible, or of tokens.

    Tokens may have the width of a table that is added to them.
    """
    if len(tokens) < 3:
        tables = (it for it in module.buffers() if it.dim() > 1) if module is not None else ()
        widths = dict.fromkeys((WIDTH, *(it.shape[-1] for it in tables)))
        for layout, width in product(("(B, T, C)", "(T, C)"), widths):
            yield CallingConvention(layout, tokens, (width,))
        return
    yield CallingConvention(layouts.heads, tokens, (HEADS, HEAD_SIZE))
    for layout in ("(T, C)", "(B, T, C)"):
        yield CallingConvention(layout, tokens, (HEAD_SIZE,))


def _axes_of_gains(module: nn.Module) -> Iterator[int]:
    """Yield the numbers of axes of parameters with one number for each channel, such as 4 for (1, C, 1, 1)."""
    for parameter in made_parameters(module):
        if parameter.dim() > 2 and parameter.numel() == parameter.shape[1] > 1:
            yield parameter.dim()


def _begins_with_embedding(module: nn.Module) -> bool:
    leaves = (part for part in module.modules() if not list(part.children()))
    return isinstance(next(leaves), nn.Embedding)


def widths_of(module: nn.Module) -> list[int]:
    """Return the numbers of features that a token may have, the most likely first.

    A module without layers may tell its heads and their size alone.
    """
    defaults = {it.name: it.default for it in inspect.signature(type(module)).parameters.values()}
    widths: list[int] = []
    for part in module.modules():
        for name in (*names.INPUT_WIDTHS, *names.MODEL_WIDTHS):
            if isinstance(size := attribute_of(part, name), int) and not isinstance(size, bool):
                widths.append(size)
        if part is module:  # whose parts alone may keep its width
            own = (defaults.get(name) for name in names.MODEL_WIDTHS)
            widths += [size for size in own if type(size) is int]
    for parameter in made_parameters(module):
        widths += list(parameter.shape)
    found = [width for width in dict.fromkeys(widths) if width > 1][:MAX_WIDTHS]
    if found:
        return found
    heads, size = (declared_number(module, it) for it in (names.HEADS, names.HEAD_SIZES))
    return [heads * size if heads and size else WIDTH]
