"""Running a target chunk by chunk: what kind of cache it has, and how it is handed from one call to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling.arguments import POSITIONS, SLOTS, STARTS, TABLES, of_transformers
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import as_given
from heedful.conformance.calling.masks import known
from heedful.conformance.calling.runs import restored, seeded
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import CacheUse, Inputs
from heedful.conformance.recording.observation import Observation
from heedful.nn import KVCache, MultiHeadAttention
from heedful.observation import record

if TYPE_CHECKING:
    from heedful.conformance.calling.subject import Subject

NAMES = (
    *("past_key_values", "past_key_value", "past_kv", "layer_past", "kv_cache", "cache", "past"),
    *("caches", "kv_caches", "past_kvs", "prev_kv", "cached_kv", "layer_cache"),
)
PAIRS = (
    *(("k_cache", "v_cache"), ("cache_k", "cache_v"), ("key_cache", "value_cache")),
    *(("past_k", "past_v"), ("past_key", "past_value"), ("kcache", "vcache")),
)
SLACK = 3  # slots beyond those that the tokens need: whoever reads them reads too far
Maker = Callable[[int, int], Any]  # of (batch, capacity)


def find_cache(subject: Subject, maker: Maker | None) -> tuple[CacheUse | None, Maker | None]:
    """How a subject is given a cache, and what makes one; None, None if it has none.

    Where earlier tokens see later ones a cache is of no use, whatever the arguments are called. One that takes the
    first tokens and raises at the next is a cache, if a broken one.
    """
    if not _is_causal(subject):
        return None, None
    broken = None, None
    inputs = subject.draw(2 if subject.batched else 1, 4)
    for use, make in _candidates(subject, maker):
        subject.cache_use, subject.make_cache = use, make
        with torch.no_grad(), seeded():
            begun, done = (_tried(subject, inputs, sizes) for sizes in ((2,), (2, 1, 1)))
        if not isinstance(done, Exception):
            return use, make
        if not isinstance(begun, Exception) and broken == (None, None):
            broken = use, make
    return (None, None) if of_transformers(subject.module) else broken


def _tried(subject: Subject, inputs: Inputs, sizes: Sequence[int]) -> object:
    with restored(subject.module):
        return attempt(lambda: run_chunks(subject, inputs, sizes))


def _is_causal(subject: Subject) -> bool:
    """Whether the first token's row stays as it is when the last token changes; not if it fails with so few tokens."""
    inputs = subject.draw(1, 4)
    with torch.no_grad():
        one, other = (
            attempt(lambda given=it: subject.run(given)[0, 0])
            for it in (inputs, inputs.changed(0, 3))
        )
    return (
        isinstance(one, Tensor)
        and isinstance(other, Tensor)
        and not differing_entries(one, other).any()
    )


def run_chunks(
    subject: Subject,
    inputs: Inputs,
    sizes: Sequence[int],
    *,
    keep: Tensor | None = None,
    unused: float | None = None,
) -> list[Observation]:
    """Run a subject's module on one chunk of tokens after another; what it keeps in itself stays there.

    Args:
        subject: one with a cache.
        inputs: all the tokens.
        sizes: of the chunks.
        keep: (B, T) Boolean, which tokens are real; each call is told of those so far.
        unused: what to fill the cache's slots with first; None: they are as they come.
    """
    use = subject.cache_use
    assert use is not None, "ask `cached` first"
    B, T = inputs.sizes
    cache = subject.make_cache(B, T + SLACK) if subject.make_cache is not None else None
    if unused is not None:
        _fill(_tensors_kept(subject.module) if use.kind == "buffers" else cache, unused)
    found, start = [], 0
    for size in sizes:
        chunk = inputs.tokens(start, start + size)
        given = subject.convention.arguments(chunk) | _told(subject, chunk, start)
        if keep is not None:
            given |= _padding_told(subject, keep[:, : start + size], size)
        if use.kind != "buffers":
            given |= _cache_arguments(use, cache)
        args, keywords = subject.target.bound(given)
        trace = record(subject.callee, *args, **keywords)
        if use.kind != "buffers":
            cache = _cache_after(use, trace.result, cache)
        found.append(subject.observation(chunk, given, trace, before=start))
        start += size
    return found


def _candidates(subject: Subject, maker: Maker | None) -> Iterator[tuple[CacheUse, Maker | None]]:
    """What may be its way, the likeliest first."""
    names, module = subject.parameters, subject.module
    argument = next((it for it in NAMES if it in names), None)
    if argument is not None:
        if maker is not None or (maker := _known_maker(module, subject.dtype)) is not None:
            yield CacheUse("object", argument, capacity=True), maker
        yield CacheUse("grown", argument), None
        yield CacheUse("object", argument), lambda batch, capacity: {}
    pair = next((it for it in PAIRS if set(it) <= set(names)), None)
    if pair is not None and module is not None:
        for made in [maker] if maker is not None else _pair_makers(module, subject.dtype):
            yield CacheUse("object", ", ".join(pair), capacity=True), made
        yield CacheUse("grown", ", ".join(pair)), None
    if _tensors_kept(module):
        for name in (*STARTS, *SLOTS, *POSITIONS, "use_cache"):
            if name in names:
                yield CacheUse("buffers", name, capacity=True), None


def _known_maker(module: nn.Module | None, dtype: torch.dtype) -> Maker | None:
    """What makes the caches of modules that are known."""
    if isinstance(module, MultiHeadAttention):
        heads, size = module.num_kv_heads, module.head_dim
        return lambda batch, capacity: KVCache.empty(batch, heads, capacity, size, dtype=dtype)
    if module is not None and hasattr(module, "new_caches"):
        return lambda batch, capacity: module.new_caches(batch, capacity)  # pyright: ignore[reportCallIssue]
    if of_transformers(module):
        from transformers import DynamicCache  # pyright: ignore[reportMissingImports]

        return lambda batch, capacity: DynamicCache()
    return None


def _pair_makers(module: nn.Module, dtype: torch.dtype) -> Iterator[Maker]:
    """Zeros for keys and for values, (B, Hkv, capacity, D) or (B, capacity, Hkv, D), by the sizes that a module has."""

    def maker(shape: Callable[[int, int], tuple[int, ...]]) -> Maker:
        return lambda batch, capacity: tuple(
            torch.zeros(shape(batch, capacity), dtype=dtype) for _ in range(2)
        )

    sizes = [it for it in vars(module).values() if isinstance(it, int) and it > 0]
    pairs = [(H, D) for H in sizes for D in sizes]
    for H, D in dict.fromkeys(pairs):
        yield maker(lambda batch, capacity, H=H, D=D: (batch, H, capacity, D))
        yield maker(lambda batch, capacity, H=H, D=D: (batch, capacity, H, D))
    for C in dict.fromkeys(sizes):
        yield maker(lambda batch, capacity, C=C: (batch, capacity, C))


def _cache_arguments(use: CacheUse, cache: Any) -> dict[str, Any]:
    names = use.argument.split(", ")
    if len(names) == 1:
        return {use.argument: cache}
    return dict(zip(names, (None, None) if cache is None else cache, strict=True))


def _cache_after(use: CacheUse, result: object, cache: Any) -> Any:
    """The cache after a call: what came back beside the output, or the same object, changed in place.

    Raises:
        TypeError: none came back, and nothing was put into the one before.
    """
    back = _returned(result, len(use.argument.split(", ")))
    if use.kind == "object" and type(back) is not type(cache):
        if cache == {}:
            raise TypeError("nothing was put into the cache")
        return cache
    if back is None:
        raise TypeError("no cache comes back")
    return back


def _returned(result: object, parts: int) -> Any:
    """What a result holds beside the output, that may be a cache of so many parts; None if nothing."""
    if hasattr(result, "past_key_values"):
        return result.past_key_values  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(result, tuple | list):
        return None
    rest = [
        it
        for it in result[1:]
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(it))
        or type(it).__name__.endswith("Cache")
    ]
    if parts > 1 and len(rest) >= parts:
        return tuple(rest[-parts:])
    return rest[-1] if rest else None


def _told(subject: Subject, chunk: Inputs, start: int) -> dict[str, Any]:
    """What a call with a cache is given besides its tokens and the cache."""
    (B, T), dtype = chunk.sizes, subject.dtype
    told: dict[str, Any] = {}
    for name, constant in subject.convention.constants.items():
        if name in TABLES and callable(constant):
            told[name] = pytree.tree_map(
                lambda it: it[..., start:, :], constant(B, start + T, dtype)
            )
    if subject.convention.visible_keys is not None and subject.attention_mask is not None:
        visible = subject.convention.visible_keys(T, start + T)[None]
        told[subject.attention_mask.name] = as_given(subject.attention_mask, visible, B, dtype)
    for name in subject.parameters:
        if name in STARTS:
            told[name] = start
        elif name in SLOTS:
            told[name] = torch.arange(start, start + T)
        elif name in POSITIONS:
            told[name] = torch.arange(start, start + T).expand(B, T)
        elif name == "use_cache":
            told[name] = True
    return told


def _padding_told(subject: Subject, keep: Tensor, new: int) -> dict[str, Any]:
    """What a call is told of the tokens so far, of which the last are new: which are real, and where they stand.

    Raises:
        ArgumentError: it cannot be told which tokens are real.
    """
    argument = known(subject.padding, "padding", "which tokens are real")
    told: dict[str, Any] = {
        argument.name: as_given(argument, keep[:, None], len(keep), subject.dtype)
    }
    if subject.positions is not None:
        told[subject.positions] = (keep.long().cumsum(-1) - 1).clamp_min(0)[:, -new:]
    return told


def _tensors_kept(module: nn.Module | None) -> dict[str, Tensor | None]:
    """What a module keeps keys and values in, or will: attributes and buffers by names with "cache" in them."""
    return {
        f"{path}.{name}": value
        for path, part in (() if module is None else module.named_modules())
        for name, value in (*vars(part).items(), *part._buffers.items())
        if "cache" in name.lower() and (value is None or isinstance(value, Tensor))
    }


def _fill(cache: Any, number: float) -> None:
    """Fill memory that holds nothing yet."""
    with torch.no_grad():
        for leaf in pytree.tree_leaves(cache):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.fill_(number)
