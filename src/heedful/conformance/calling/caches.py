"""Find out, by trial, how a target takes a cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.cache_objects import (
    counters_of,
    method_makers,
    object_makers,
    state_makers,
)
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.causality import is_causal
from heedful.conformance.calling.chunks import (
    CacheMaker,
    CacheUse,
    cache_switches,
    cache_tensors,
    observed,
    output_only,
    run_chunks,
)
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.calling.rotary_tables import PositionTable
from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.recording.dataflow import is_projection
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import tensor_of
from heedful.nn import KVCache, MultiHeadAttention
from heedful.observation.leaves import leaves_of

TOKENS = 4
COUNTS: re.Pattern[str] = re.compile(
    r"^(?!\w*(layer|head|block)).*(pos|start|offset|past|cached?|tokens|step|_s\b|so far)"
)
"""Names and texts, in lower case, of arguments that may count the tokens in a cache."""
EARLIER: re.Pattern[str] = re.compile(r"^(x_?)?(mems?|past|prev|previous|history|earlier)(_|$)")
BEFORE: re.Pattern[str] = re.compile(r"(before|previous|earlier|past|last) |of the (past|last)")
"""Names and texts of arguments that may take the tokens before those of the call."""

CacheWithMaker = tuple[CacheUse, CacheMaker | None]


def find_cache(caller: Caller, make_cache: CacheMaker | None) -> CacheWithMaker | None:
    """Return how a target takes a cache, and a function that makes an empty one if the caller has to; None without one.

    A cache is of no use where earlier tokens depend on later ones. If a target accepts the first chunk and raises at
    the next one, it has a cache, but a broken one.

    Args:
        caller: Whose target to try.
        make_cache: The user's function of (batch, capacity); None to try the usual caches.
    """
    if not is_causal(caller):
        return None
    broken: CacheWithMaker | None = None
    inputs = caller.draw(2 if caller.batched else 1, TOKENS)
    for use, make in _with_masks(caller, _candidates(caller, make_cache)):
        with torch.no_grad():
            first_chunk_runs = _runs(caller, use, make, inputs, (2,))
            all_chunks_run = _runs(caller, use, make, inputs, (2, 1, 1))
            whole = _of_whole_tables(caller, use)
            if first_chunk_runs and not all_chunks_run and whole != use:
                use, all_chunks_run = whole, _runs(caller, whole, make, inputs, (2, 1, 1))
        if all_chunks_run:
            return _with_whole_tables(caller, use, make, inputs), make
        if first_chunk_runs and broken is None:
            broken = use, make
    for use, make in _objects(caller):  # one that fails may have been made wrongly
        with torch.no_grad():
            if _runs(caller, use, make, inputs, (2, 1, 1)):
                return use, make
    for use in _returned_states(caller):
        with torch.no_grad():
            if _runs(caller, use, None, inputs, (2, 1, 1)):
                return use, None
    earlier = next(
        (use for use in _of_earlier_tokens(caller) if _extends(caller, use, inputs)), None
    )
    if earlier is not None:
        return earlier, None
    return None if is_from_transformers(caller.module) else broken


def _runs(
    caller: Caller,
    use: CacheUse,
    make_cache: CacheMaker | None,
    inputs: Inputs,
    sizes: Sequence[int],
) -> bool:
    with caller.isolated():
        outcome = attempt(lambda: run_chunks(caller, use, make_cache, inputs, sizes, output_only))
    return not isinstance(outcome, Exception)


def _candidates(caller: Caller, make_cache: CacheMaker | None) -> Iterator[CacheWithMaker]:
    """Yield the ways in which a target may take a cache, the most likely first."""
    parameters, module = caller.parameters, caller.module
    switches = cache_switches(caller)
    argument = next((it for it in names.CACHES if it in parameters and it not in switches), None)
    if argument is not None:
        for made in () if make_cache else method_makers(caller):
            for position in (*_counts_of_cached(caller), ""):
                yield CacheUse("object", argument, capacity=True, position=position), made
        maker = make_cache or _known_maker(module, caller.dtype)
        if maker is not None:
            yield CacheUse("object", argument, capacity=True), maker
        yield CacheUse("grown", argument), None
        yield CacheUse("object", argument), lambda batch, capacity: {}
        for made in () if module is None or make_cache else _pair_makers(module, caller.dtype):
            yield CacheUse("object", argument), lambda batch, _, made=made: [*made(batch, 0)]
    pair = next((pair for pair in names.CACHE_PAIRS if set(pair) <= set(parameters)), None)
    if pair is not None and module is not None:
        for maker in [make_cache] if make_cache else _pair_makers(module, caller.dtype):
            yield CacheUse("object", ", ".join(pair), capacity=True), maker
        yield CacheUse("grown", ", ".join(pair)), None
    if cache_tensors(module):
        positions = (*names.START_POSITIONS, *names.CACHE_SLOTS, *names.POSITION_IDS)
        for name in (*(it for it in positions if it in parameters), *switches):
            yield CacheUse("buffers", name, capacity=True), None


def _with_masks(caller: Caller, candidates: Iterator[CacheWithMaker]) -> Iterator[CacheWithMaker]:
    """Yield ways to take a cache, first with the masks of an example for all tokens so far, as keys have them."""
    constants = caller.convention.constants.items()
    masks = tuple(name for name, it in constants if isinstance(it, Resized) and it.is_mask_of_keys)
    for use, make in candidates:
        if masks:
            yield replace(use, whole=masks), make
        yield use, make


def _with_whole_tables(
    caller: Caller, use: CacheUse, make_cache: CacheMaker | None, inputs: Inputs
) -> CacheUse:
    """Return a use that hands on the tables for all tokens so far, if only then the outputs are right."""
    whole = _of_whole_tables(caller, use)
    is_whole = whole != use and not _agrees(caller, use, make_cache, inputs)
    return whole if is_whole and _agrees(caller, whole, make_cache, inputs) else use


def _of_whole_tables(caller: Caller, use: CacheUse) -> CacheUse:
    """Return a use that hands on the tables for all tokens so far.

    A target that keeps keys without their positions adds those of all keys in each call, and another one takes the
    rows of the call's own tokens itself.
    """
    constants = caller.convention.constants.items()
    tables = (name for name, it in constants if name not in use.whole and _is_table(it))
    return replace(use, whole=(*use.whole, *tables))


def _is_table(constant: object) -> bool:
    """Check whether an argument holds numbers for each of the tokens."""
    if isinstance(constant, PositionTable):
        return True
    if not isinstance(constant, Resized) or constant.is_mask_of_keys:
        return False
    tensors = (leaf for _, leaf in leaves_of(constant.value) if isinstance(leaf, Tensor))
    return any(it.is_floating_point() and "T" in constant.axes.of(it.shape) for it in tensors)


def _agrees(caller: Caller, use: CacheUse, make_cache: CacheMaker | None, inputs: Inputs) -> bool:
    """Check whether calls with a cache return what one call on all tokens returns."""
    with torch.no_grad(), caller.isolated():
        whole = attempt(lambda: caller.run(inputs))
        parts = attempt(lambda: run_chunks(caller, use, make_cache, inputs, (2, 1, 1), output_only))
    if isinstance(whole, Exception) or isinstance(parts, Exception):
        return False
    joined = torch.cat(parts, dim=1)
    return joined.shape == whole.shape and not differing_entries(joined, whole).any()


def _counts_of_cached(caller: Caller) -> Iterator[str]:
    """Yield the arguments of unknown names that are 0 by default and say that they count the tokens in a cache."""
    documented = documented_arguments(caller.target.callee)
    for name, parameter in caller.target.parameters.items():
        said = f"{name} {documented.get(name, '')}".lower()
        is_zero = type(parameter.default) is int and parameter.default == 0
        if is_zero and name not in names.OF_KNOWN_ROLES and COUNTS.search(said):
            yield name


def _objects(caller: Caller) -> Iterator[CacheWithMaker]:
    """Yield caches that are objects with methods of their own, or whose fields the caller sets."""
    optional = [name for name, it in caller.target.parameters.items() if it.default is None]
    unknown = (it for it in optional if it not in names.OF_KNOWN_ROLES)
    for name in (name for name in names.CACHES if name in caller.parameters):
        for maker in object_makers(caller, name):
            yield CacheUse("object", name, capacity=True), maker
    for name in unknown:
        for maker in state_makers(caller, name):
            counters = counters_of(maker(1, 1))
            yield CacheUse("object", name, capacity=True, counters=counters), maker


# --- states that calls return ------------------------------------------------------------------------


def _returned_states(caller: Caller) -> Iterator[CacheUse]:
    """Yield the optional arguments that, by their texts or annotations, take what the call before returned."""
    documented = documented_arguments(caller.target.callee)
    for name, parameter in caller.target.parameters.items():
        said = documented.get(name, "").lower()
        returned = "return" in said and BEFORE.search(said) is not None
        if parameter.default is None and name not in names.CACHES and returned:
            yield CacheUse("grown", name)


# --- earlier tokens ----------------------------------------------------------------------------------


def _of_earlier_tokens(caller: Caller) -> Iterator[CacheUse]:
    """Yield the arguments that may take the earlier tokens themselves, as a memory of the segment before."""
    if len(caller.convention.names) != 1 or caller.convention.vocabulary:
        return
    documented = documented_arguments(caller.target.callee)
    for name, parameter in caller.target.parameters.items():
        said = BEFORE.search(documented.get(name, "").lower()) is not None
        if parameter.default is None and (EARLIER.search(name) or said):
            yield CacheUse("tokens", name)


def _extends(caller: Caller, use: CacheUse, inputs: Inputs) -> bool:
    """Check whether a call with earlier tokens projects them to what one call on all tokens has as keys and values.

    If they are, whatever else differs is wrong: a position, a bias or a mask.
    """
    T, half = inputs.sizes[1], inputs.sizes[1] // 2
    with torch.no_grad(), caller.isolated():
        whole = attempt(lambda: caller.record(inputs))
        parts = attempt(lambda: run_chunks(caller, use, None, inputs, (half, T - half), observed))
    if isinstance(whole, Exception) or isinstance(parts, Exception):
        return False
    projected = {
        (step.line, step.name): tensor_of(step) for step in whole.trace if is_projection(step)
    }
    same: list[bool] = []
    for step in parts[1].trace:
        ours, theirs = tensor_of(step), projected.get((step.line, step.name))
        if not is_projection(step) or ours is None or theirs is None:
            continue
        if ours.shape == theirs.shape:
            same.append(not differing_entries(ours, theirs).any())
    return bool(same) and all(same)


def _known_maker(module: nn.Module | None, dtype: torch.dtype) -> CacheMaker | None:
    """Return a function that makes the cache of a known module; None for any other."""
    if isinstance(module, MultiHeadAttention):
        heads, size = module.num_kv_heads, module.head_dim
        return lambda batch, capacity: KVCache.empty(batch, heads, capacity, size, dtype=dtype)
    if module is not None and hasattr(module, "new_caches"):
        return lambda batch, capacity: module.new_caches(batch, capacity)  # pyright: ignore[reportCallIssue]
    if is_from_transformers(module):
        from transformers import DynamicCache  # pyright: ignore[reportMissingImports]

        return lambda batch, capacity: DynamicCache()
    return None


def _pair_makers(module: nn.Module, dtype: torch.dtype) -> Iterator[CacheMaker]:
    """Yield functions that make zeros for keys and for values, of the sizes that a module has.

    They are (B, Hkv, capacity, D), (B, capacity, Hkv, D) or (B, capacity, C).
    """

    def zeros(shape: Callable[[int, int], tuple[int, ...]]) -> CacheMaker:
        return lambda batch, capacity: tuple(
            torch.zeros(shape(batch, capacity), dtype=dtype) for _ in range(2)
        )

    sizes = [value for value in vars(module).values() if isinstance(value, int) and value > 0]
    for H, D in dict.fromkeys((H, D) for H in sizes for D in sizes):
        yield zeros(lambda batch, capacity, H=H, D=D: (batch, H, capacity, D))
        yield zeros(lambda batch, capacity, H=H, D=D: (batch, capacity, H, D))
    for C in dict.fromkeys(sizes):
        yield zeros(lambda batch, capacity, C=C: (batch, capacity, C))
