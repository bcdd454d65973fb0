"""The subject of a check: a target together with everything that was found out about its calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from heedful.conformance.calling import names
from heedful.conformance.calling.caches import find_cache
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.causality import causal_window, is_causal, speaks_of_causality
from heedful.conformance.calling.chunks import (
    CacheMaker,
    CacheUse,
    ChunkCall,
    Kept,
    observed,
    output_only,
    run_chunks,
)
from heedful.conformance.calling.construction import instantiate, instantiate_filled
from heedful.conformance.calling.constructor_parameters import (
    chooses_width,
    guessed_fields,
    guessed_parameters,
    key_heads_parameter,
    single_heads,
    unstated_parameters,
)
from heedful.conformance.calling.convention import CallingConvention, VisibleKeys
from heedful.conformance.calling.conventional import (
    GUESSES,
    HEAD_SIZE,
    HEADS,
    OTHER_WIDTHS,
    WIDTH,
)
from heedful.conformance.calling.discovery import SEARCH_SECONDS, find_convention
from heedful.conformance.calling.examples import find_example_convention
from heedful.conformance.calling.exceptions import attempt, exits_as_errors, raising_line
from heedful.conformance.calling.failures import (
    UncallableError,
    expected_features,
    expected_width,
    missing_factor,
    refusing_tests,
)
from heedful.conformance.calling.guessed_examples import find_guessed_convention
from heedful.conformance.calling.guessed_images import (
    find_bag_convention,
    find_image_convention,
    small_images,
    takes_images,
)
from heedful.conformance.calling.mapped_positions import (
    SMALL_SIDE,
    find_map_convention,
    sides_of_maps,
)
from heedful.conformance.calling.mask_forms import Masks
from heedful.conformance.calling.masks import find_masks
from heedful.conformance.calling.max_length import find_max_length
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.recurrent import recurrent_layers
from heedful.conformance.calling.target import Target, TargetError, make_target
from heedful.conformance.calling.time_limit import TimeLimit
from heedful.conformance.calling.trials import find_convention_by_trial
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine, names_in
from heedful.errors import ArgumentError

SIZES = (3, 5)  # B and T of a first call


def find_subject(
    target: Any,
    *,
    example: Any = None,
    causal: bool | None = None,
    cache: CacheMaker | None = None,
    arguments: Mapping[str, Any] = {},
    flags: Mapping[str, bool] = {},
    by_trial: bool = True,
) -> Subject:
    """Find out how a target is called.

    Args:
        target: A module, the class of one, or a function.
        example: The arguments of a call, in any form that `check` takes; None to try conventional ones.
        causal: Whether calls should be causal, if an argument decides that; None for the target's default.
        cache: A function of (batch, capacity) that returns an empty cache; None to try the usual caches.
        arguments: The constructor's, if the target is a class.
        flags: Arguments of every call that have other values than their defaults.
        by_trial: Whether shapes that neither names nor documentation tell are tried, which takes some seconds.

    Raises:
        TargetError: A call that is shown to be valid fails within its own code.
        ArgumentError: It cannot be built, copied or called.
    """
    held = _made(target, arguments)
    if example is None:
        held, convention, dtype = _called_conventionally(
            target, held, causal, arguments, by_trial=by_trial
        )
    else:
        convention, dtype = find_example_convention(held, example, causal)
    convention = replace(convention, constants={**convention.constants, **flags})
    held = _with_parameters_of_first_call(held, convention, dtype)
    caller = Caller(held, convention, dtype, held.copied(dtype))
    limits = (find_max_length(caller), convention.max_tokens)
    max_length = min((limit for limit in limits if limit is not None), default=None)
    masks = find_masks(caller, max_length)
    if causal and not speaks_of_causality(held) and not is_causal(caller.with_masks(masks)):
        caller, masks = _with_causal_mask(caller, max_length) or (caller, masks)
    cache_use, make_cache = find_cache(caller.with_masks(masks), cache) or (None, None)
    return Subject(
        held,
        caller.convention,
        dtype,
        caller.callee,
        masks.padding,
        masks.attention_mask,
        masks.positions,
        masks.weak,
        max_length=max_length,
        cache_use=cache_use,
        make_cache=make_cache,
    )


def _with_parameters_of_first_call(
    held: Target, convention: CallingConvention, dtype: torch.dtype
) -> Target:
    """Return a target with the parameters that its first call makes; the same one if it makes none.

    Copies of a module that has not been called would make other ones each.
    """
    called = held.copied(dtype)
    if held.module is None or not isinstance(called, torch.nn.Module):
        return held
    before = {name: is_lazy(it) for name, it in called.named_parameters()}
    caller = Caller(held, convention, dtype, called)

    def call() -> None:
        inputs = caller.draw(*(convention.fixed_sizes or SIZES))
        args, keywords = held.bound(caller.arguments(inputs))
        called(*args, **keywords)

    with torch.no_grad(), exits_as_errors():
        attempt(call)
    after = {name: is_lazy(it) for name, it in called.named_parameters()}
    return held if before == after else replace(held, callee=called)


def _with_causal_mask(caller: Caller, max_length: int | None) -> tuple[Caller, Masks] | None:
    """Return a caller that gives a causal mask to a target which leaves that to its callers; None if it does not.

    A target whose own mask is added to any given one makes it itself.
    """
    if caller.convention.visible_keys is not None:
        return None

    def giving(mask: VisibleKeys) -> Caller:
        return replace(caller, convention=replace(caller.convention, visible_keys=mask))

    by_caller = giving(causal_window())
    masks = find_masks(by_caller, max_length)
    of_all_keys = giving(lambda queries, keys: torch.ones(queries, keys, dtype=torch.bool))
    leaves_it = (
        masks.attention_mask is not None
        and is_causal(by_caller.with_masks(masks))
        and not is_causal(of_all_keys.with_masks(masks))
    )
    return (by_caller, masks) if leaves_it else None


def _made(target: Any, arguments: Mapping[str, Any]) -> Target:
    """Return what is to be called: an instance of a class, or anything else that can be called."""
    guessed = (*guessed_parameters(target, arguments), *guessed_fields(target, arguments))
    role = key_heads_parameter(target, arguments)
    instance, uninitialised = instantiate_filled(target, arguments)
    return replace(
        make_target(instance),
        guessed=guessed,
        uninitialised=uninitialised,
        with_key_heads=role and (lambda count: instantiate(target, {**arguments, role: count})),
    )


def _called_conventionally(
    target: Any,
    held: Target,
    causal: bool | None,
    arguments: Mapping[str, Any],
    *,
    by_trial: bool,
) -> tuple[Target, CallingConvention, torch.dtype]:
    """Return a target, how it is called, and the dtype of its tokens.

    If no call works, a class is built with another width, because the usual one may be to blame: a part of a head may
    have an odd number of features, for example. It is no bug of the class if that ends otherwise. A model of whole
    images is called with those, and built for small ones if it can be.
    """
    of_images = _called_with_images(target, held, arguments) if takes_images(held) else None
    if of_images is not None:
        return of_images
    limit = TimeLimit(SEARCH_SECONDS)
    try:
        return held, *_found(held, causal)
    except (TargetError, ArgumentError) as error:
        if is_missing_name(error.__cause__ or error):
            raise
        made = [held]
        asked = _asked_for(target, arguments, error)
        for sizes in (*asked, *_other_sizes(target, held, arguments)):
            if limit.left() < 0:  # there are too many ways to call it: another size changes nothing
                break
            other = attempt(lambda sizes=sizes: _made(target, {**arguments, **sizes}))
            found = attempt(lambda other=other: _found(other, causal))
            if not isinstance(found, Exception):
                return other, *found
            is_wider = "" in sizes
            if is_wider and isinstance(error, TargetError) and _raising(found) != _raising(error):
                raise found from found.__cause__
            made += [other] if is_wider and isinstance(other, Target) else []
        if isinstance(error, TargetError):
            raise
        found = _called_with_maps(target, held, arguments) or _called_with_bags(held)
        if found is None and by_trial:
            found = find_convention_by_trial(made, causal)
        if found is None:
            raise
        return found


def _called_with_images(
    target: Any, held: Target, arguments: Mapping[str, Any]
) -> tuple[Target, CallingConvention, torch.dtype] | None:
    """Return a target, built for small images if it can be, and how it is called with them; None if no image works."""
    for smaller in small_images(target, arguments):
        made = attempt(lambda smaller=smaller: _made(target, {**arguments, **smaller}))
        found = attempt(lambda made=made: find_image_convention(made))
        if isinstance(found, tuple):
            return made, *found
    found = find_image_convention(held)
    return None if found is None else (held, *found)


def _called_with_maps(
    target: Any, held: Target, arguments: Mapping[str, Any]
) -> tuple[Target, CallingConvention, torch.dtype] | None:
    """Return a target that has a table for the pixels of feature maps, and how it is called; None if no map works.

    If an argument of the constructor sizes the table, it is a small one.
    """
    if not sides_of_maps(held):
        return None
    smaller = ({name: SMALL_SIDE} for name in unstated_parameters(target, arguments))
    for sizes in (*smaller, {}):
        made = attempt(lambda sizes=sizes: _made(target, {**arguments, **sizes}))
        if sizes and (isinstance(made, Exception) or SMALL_SIDE not in sides_of_maps(made)):
            continue
        found = attempt(lambda made=made: find_map_convention(made))
        if isinstance(found, tuple):
            return made, *found
    return None


def _called_with_bags(held: Target) -> tuple[Target, CallingConvention, torch.dtype] | None:
    """Return a target and how it is called with a bag of images; None if it takes no images, or none works."""
    found = find_bag_convention(held) if takes_images(held) else None
    return None if found is None else (held, *found)


def _asked_for(
    target: Any, arguments: Mapping[str, Any], error: Exception
) -> Iterator[dict[str, Any]]:
    """Yield other values for the constructor of a class, of those that the exceptions of failed calls tell.

    Flags by which it refuses calls are set the other way round, one at a time: some that are on by default exclude each
    other. What may be a width is the one that a layer within expects, or that a view needs. Heads share the width that
    the layer behind them expects.
    """
    if not inspect.isclass(target) or not isinstance(error, UncallableError):
        return
    read = names_in(test for failure in error.failures for test in refusing_tests(failure))
    for name, parameter in inspect.signature(target).parameters.items():
        if isinstance(parameter.default, bool) and name in read and name not in arguments:
            yield {name: not parameter.default}
    width = next(filter(None, map(expected_width, error.failures)), None)
    widths = ("",) if chooses_width(target, arguments) else ()
    guessed = guessed_parameters(target, arguments)
    for name in (*widths, *guessed) if width else ():
        yield {name: width}
    factor = next(filter(None, map(missing_factor, error.failures)), None)
    for name in guessed if factor else ():
        yield {name: GUESSES[0] * factor}
    of_heads = [it for it in unstated_parameters(target, arguments) if it in names.HEAD_SIZES]
    for received, expected in filter(None, map(expected_features, error.failures)):
        if of_heads and received == HEADS * HEAD_SIZE and expected % HEADS == 0:
            yield {of_heads[0]: expected // HEADS}


def _other_sizes(
    target: Any, held: Target, arguments: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield other sizes for a class: one head, one layer, a larger width, or widths for numbers that may be widths."""
    if single := single_heads(target, arguments):
        yield dict.fromkeys(single, 1)
    unstated = unstated_parameters(target, arguments)
    if recurrent_layers(held.module) and (layers := {*unstated} & {*names.LAYERS}):
        yield dict.fromkeys(layers, 1)  # a state is repeated for each key as if it were one vector
    if chooses_width(target, arguments):
        yield {"": OTHER_WIDTHS[0]}
    guessed = guessed_parameters(target, arguments)
    for width in (WIDTH, OTHER_WIDTHS[0]) if guessed else ():
        yield dict.fromkeys(guessed, width)
    sizes = [it for it in unstated if it.endswith(("size", "dim"))]
    if len(sizes) > 1:
        yield dict.fromkeys(sizes, WIDTH)


def _found(held: Target, causal: bool | None) -> tuple[CallingConvention, torch.dtype]:
    """Return how a target is called, with what its arguments hold if it takes them apart, or else with tensors."""
    guessed = attempt(lambda: find_guessed_convention(held, causal))
    if guessed is None:
        return find_convention(held, causal)
    if not isinstance(guessed, Exception):
        return guessed
    found = attempt(lambda: find_convention(held, causal))
    if isinstance(found, Exception):
        raise guessed from guessed.__cause__
    return found


def _raising(error: BaseException) -> SourceLine | None:
    """Return the line of a target's code that made calls of it fail."""
    return None if error.__cause__ is None else raising_line(error.__cause__)


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject(Caller):
    """A caller that also knows the limits of its target and how to use its cache; made by `find_subject`.

    Attributes:
        max_length: The maximum number of tokens; None if there is no limit.
        cache_use: How the target takes a cache; None if it has none.
        make_cache: A function of (batch, capacity) that returns an empty cache; None if the target makes its own.
    """

    max_length: int | None
    cache_use: CacheUse | None
    make_cache: CacheMaker | None

    def run_in_chunks(
        self,
        inputs: Inputs,
        sizes: Sequence[int],
        *,
        keep: Tensor | None = None,
        unused: float | None = None,
        forget: bool = False,
    ) -> list[Observation]:
        """Run one chunk of tokens after another with a cache, and record each run.

        Args:
            inputs: All the tokens.
            sizes: The number of tokens in each chunk.
            keep: (B, T) Boolean, which tokens are real; None if all are.
            unused: A number with which the slots of the cache are filled first; None to leave them as they are.
            forget: Whether each call begins with the module's first state, so that only the cache remembers.

        Raises:
            ArgumentError: The target has no argument for a padding mask.
        """
        return self._in_chunks(inputs, sizes, observed, keep=keep, unused=unused, forget=forget)

    def outputs_in_chunks(
        self, inputs: Inputs, sizes: Sequence[int], *, unused: float | None = None
    ) -> list[Tensor]:
        """Return the output (B, T, …) of each run that `run_in_chunks` would record."""
        return self._in_chunks(inputs, sizes, output_only, unused=unused)

    def _in_chunks(
        self, inputs: Inputs, sizes: Sequence[int], call: ChunkCall[Kept], **options: Any
    ) -> list[Kept]:
        assert self.cache_use is not None, "check `cache_use` first"
        with self.isolated():
            return run_chunks(self, self.cache_use, self.make_cache, inputs, sizes, call, **options)

    def fresh(
        self,
        *,
        dtype: torch.dtype | None = None,
        train: bool = False,
        seed: int = 0,
        keep_state: bool = False,
    ) -> Subject:
        """Return the same subject on another copy of the module, in the state in which it was given.

        Args:
            dtype: The dtype of its vectors; None for that of this subject.
            train: Whether the copy is in training mode.
            seed: The seed of the random numbers in every run of the copy.
            keep_state: Whether a run sees the state that the previous one left behind.
        """
        dtype = dtype or self.dtype
        callee = self.target.copied(dtype, train=train)
        return replace(self, dtype=dtype, callee=callee, seed=seed, keep_state=keep_state)
