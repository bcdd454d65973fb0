"""Run a target chunk by chunk, and pass its cache from one call to the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.isolation import restored
from heedful.conformance.calling.mask_forms import mask_tensor
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.calling.rotary_tables import PositionTable
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation
from heedful.observation.leaves import leaves_of

# Words in the names of tables that no call fills.
OF_ANGLES: re.Pattern[str] = re.compile(r"cos|sin|freq|rot|angle")
SPARE_SLOTS = 3  # more slots than tokens, so that a call that reads too far is noticed
CacheMaker = Callable[[int, int], Any]  # of (batch, capacity)
Kept = TypeVar("Kept")
ChunkCall = Callable[[Caller, Mapping[str, Any], Inputs, int], tuple[object, Kept]]
"""Calls a target with arguments, for a chunk behind so many tokens; returns the result, and what is kept of it."""


@dataclass(frozen=True)
class CacheUse:
    """The way in which a target takes a cache.

    Attributes:
        kind: "object" if the caller makes it and the target returns it or changes it in place; "grown" if it is None at
            first and the target returns it; "buffers" if the module keeps it and takes a position or a flag; "tokens"
            if it is the earlier tokens themselves.
        argument: The name of the argument for the cache, the position or the flag.
        capacity: Whether it has slots beyond those in use.
        position: The name of an argument that takes the number of tokens in the cache; "" if none does.
        counters: The attributes of the cache in which the caller counts the tokens.
        whole: The arguments that each call gets for all tokens so far, not for its own alone.
    """

    kind: str
    argument: str
    capacity: bool = False
    position: str = ""
    counters: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def observed(
    caller: Caller, arguments: Mapping[str, Any], chunk: Inputs, start: int
) -> tuple[object, Observation]:
    """Call a target and record each step, of which several probes read."""
    trace = caller.trace(arguments)
    return trace.result, caller.observation(chunk, arguments, trace, before=start)


def output_only(
    caller: Caller, arguments: Mapping[str, Any], chunk: Inputs, start: int
) -> tuple[object, Tensor]:
    """Call a target and keep its output (B, T, …), which takes a tenth of the time of a recording."""
    result = caller.result(arguments)
    return result, caller.rows(result, chunk).detach()


def run_chunks(
    caller: Caller,
    use: CacheUse,
    make_cache: CacheMaker | None,
    inputs: Inputs,
    sizes: Sequence[int],
    call: ChunkCall[Kept],
    *,
    keep: Tensor | None = None,
    unused: float | None = None,
    forget: bool = False,
) -> list[Kept]:
    """Call a target on one chunk of tokens after another; the state that the module keeps in itself is not restored.

    Args:
        caller: Whose target to call.
        use: How the target takes a cache.
        make_cache: Returns an empty cache; None if the target makes its own.
        inputs: All the tokens.
        sizes: The number of tokens in each chunk.
        call: Makes one call: `observed` or `output_only`.
        keep: (B, T) Boolean, which tokens are real; each call gets the part of the tokens so far.
        unused: A number with which the slots of the cache are filled first; None to leave them as they are.
        forget: Whether to restore the module's state after each call all the same.

    Raises:
        ArgumentError: The target has no argument for a padding mask.
        TypeError: No cache comes back from a call, and none was written to.
    """
    B, T = inputs.sizes
    cache = None if make_cache is None else make_cache(B, T + SPARE_SLOTS)
    if unused is not None:
        _fill(cache_tensors(caller.module) if use.kind == "buffers" else cache, unused)
    runs: list[Kept] = []
    start = 0
    empty = _fingerprint(cache)
    for size in sizes:
        chunk = inputs.tokens(start, start + size)
        arguments = _chunk_arguments(caller, use, chunk, start)
        if use.position:
            arguments[use.position] = start
        if keep is not None:
            arguments |= caller.masks.chunk_arguments(keep[:, : start + size], size, caller.dtype)
        if use.kind == "tokens":
            earlier = inputs.tokens(0, start)
            cache = caller.convention.arguments(earlier, caller.dtype) if start else {}
            arguments[use.argument] = cache.get(caller.convention.names[0])
        elif use.kind != "buffers":
            arguments |= _cache_arguments(use, cache)
        with restored(caller.module) if forget else nullcontext():
            result, kept = call(caller, arguments, chunk, start)
        if use.kind in ("object", "grown"):
            cache = _cache_after(use, result, cache)
            for counter in use.counters:
                setattr(cache, counter, start + size)
            if start == 0 and _fingerprint(cache) == empty:
                raise TypeError("nothing was written to the cache")
        runs.append(kept)
        start += size
    return runs


def cache_tensors(module: nn.Module | None) -> Mapping[str, Tensor | None]:
    """Return the attributes and buffers with "cache" in their names, in which a module keeps keys and values.

    A table of angles that is kept for later calls, as `cos_cached`, is none.
    """
    return {
        f"{path}.{name}": value
        for path, part in (() if module is None else module.named_modules())
        for name, value in (*vars(part).items(), *part._buffers.items())
        if "cache" in name.lower() and not OF_ANGLES.search(name.lower())
        if value is None or isinstance(value, Tensor)
    }


def _chunk_arguments(caller: Caller, use: CacheUse, chunk: Inputs, start: int) -> dict[str, Any]:
    """Return the arguments of a call on the tokens from `start` on, without the cache."""
    (B, T), dtype, convention = chunk.sizes, caller.dtype, caller.convention
    arguments = convention.arguments(chunk, dtype)
    for name, constant in convention.constants.items():
        if start and isinstance(constant, Resized | PositionTable) and name in use.whole:
            arguments[name] = constant(B, start + T, dtype)
        elif start and isinstance(constant, Resized | PositionTable):
            arguments[name] = constant.part(B, start, start + T, dtype)
    mask = caller.attention_mask
    if convention.visible_keys is not None and mask is not None:
        visible = convention.visible_keys(T, start + T)[None]
        if T > 1 or not visible.all() or mask.name in caller.target.required:
            arguments[mask.name] = mask_tensor(mask, visible, B, dtype)
    for name in caller.parameters:
        if name in names.START_POSITIONS:
            arguments[name] = start
        elif name in names.CACHE_SLOTS:
            arguments[name] = torch.arange(start, start + T)
        elif name in names.POSITION_IDS:
            arguments[name] = torch.arange(start, start + T).expand(B, T)
    return arguments | dict.fromkeys(cache_switches(caller), True)


def cache_switches(caller: Caller) -> list[str]:
    """Return the arguments that say whether a call uses the cache which the module keeps."""
    return [
        name
        for name, it in caller.target.parameters.items()
        if names.CACHE_SWITCH.search(name) or (name == "cache" and it.default is False)
    ]


def _cache_arguments(use: CacheUse, cache: Any) -> dict[str, Any]:
    arguments = use.argument.split(", ")
    if len(arguments) == 1:
        return {use.argument: cache}
    return dict(zip(arguments, (None, None) if cache is None else cache, strict=True))


def _cache_after(use: CacheUse, result: object, cache: Any) -> Any:
    """Return the cache after a call: the one in its result, or the same object, changed in place.

    Raises:
        TypeError: No cache came back.
    """
    returned = _returned_cache(result, len(use.argument.split(", ")))
    if use.kind == "object" and type(returned) is not type(cache):
        return cache
    if returned is None:
        raise TypeError("no cache came back")
    return returned


def _returned_cache(result: object, parts: int) -> Any:
    """Return what a result holds beside the output that may be a cache of so many parts; None if there is nothing."""
    if hasattr(result, names.RETURNED_CACHE):
        return getattr(result, names.RETURNED_CACHE)
    if not isinstance(result, tuple | list):
        return None
    caches = [
        value
        for value in result[1:]
        if any(isinstance(leaf, Tensor) for _, leaf in leaves_of(value))
        or type(value).__name__.endswith("Cache")
    ]
    if parts > 1 and len(caches) >= parts:
        return tuple(caches[-parts:])
    return caches[-1] if caches else None


def _fingerprint(cache: Any) -> list[object]:
    """Return what tells a cache from the same one after it was written to."""
    fields = cache if isinstance(cache, Tensor) else getattr(cache, "__dict__", cache)
    return [
        (path, id(leaf), leaf._version) if isinstance(leaf, Tensor) else (path, repr(leaf))
        for path, leaf in leaves_of(fields)
    ]


def _fill(cache: Any, number: float) -> None:
    with torch.no_grad():
        for leaf in pytree.tree_leaves(cache):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.fill_(number)
