"""Running a target token by token: what kind of cache it has, and how it is handed from one call to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.mask_forms import as_given
from heedful.conformance.runs import restored, seeded
from heedful.conformance.signatures import POSITIONS, STARTS, TABLES
from heedful.conformance.subject import CacheUse, Inputs, Observation
from heedful.nn import KVCache, MultiHeadAttention
from heedful.observation import record

if TYPE_CHECKING:
    from heedful.conformance.calling import Called

GROWN = (
    *("past_key_values", "past_key_value", "past_kv", "layer_past", "kv_cache", "cache", "past"),
    *("caches", "kv", "past_kvs", "prev_kv", "cached_kv", "state"),
)
SLACK = 3  # slots beyond those that the tokens need: whoever reads them reads too far
Maker = Callable[[int, int], Any]


def find_cache(subject: Called, maker: Maker | None) -> tuple[CacheUse | None, Maker | None]:
    """How a subject is given a cache, and what makes one; None, None if it has none."""
    for use, make in _candidates(subject, maker):
        subject.cached, subject.make_cache = use, make
        inputs = subject.draw(2 if subject.batched else 1, 4)
        try:
            with torch.no_grad(), seeded(), restored(subject.module):
                run_chunks(subject, inputs, (2, 1, 1))
        except Exception:  # noqa: BLE001 - not the way that this target's cache is used
            continue
        return use, make
    return None, None


def _candidates(subject: Called, maker: Maker | None) -> Iterator[tuple[CacheUse, Maker | None]]:
    names = subject.parameters
    argument = next((it for it in GROWN if it in names), None)
    module = subject.target.module
    if argument is not None:
        made = maker or _maker(module, subject.dtype)
        if made is not None:
            yield CacheUse("object", argument, capacity=True), made
        yield CacheUse("grown", argument), None
    if module is None or not _holds_caches(module):
        return
    for name in (*STARTS, *POSITIONS, "use_cache"):
        if name in names:
            yield CacheUse("buffers", name, capacity=True), None


def _maker(module: nn.Module | None, dtype: torch.dtype) -> Maker | None:
    """What makes the caches of modules that are known."""
    if isinstance(module, MultiHeadAttention):
        heads, size = module.num_kv_heads, module.head_dim
        return lambda batch, capacity: KVCache.empty(batch, heads, capacity, size, dtype=dtype)
    if module is not None and hasattr(module, "new_caches"):
        return lambda batch, capacity: module.to(dtype).new_caches(batch, capacity)  # pyright: ignore[reportCallIssue]
    if type(module).__module__.startswith("transformers."):
        from transformers import DynamicCache  # pyright: ignore[reportMissingImports]

        return lambda batch, capacity: DynamicCache()
    return None


def _holds_caches(module: nn.Module) -> bool:
    """Whether a module has somewhere to keep keys in."""
    return any(
        "cache" in name.lower() and (value is None or isinstance(value, Tensor))
        for part in module.modules()
        for name, value in (*vars(part).items(), *part._buffers.items())
    )


def run_chunks(
    subject: Called, inputs: Inputs, sizes: Sequence[int], *, poison: bool = False
) -> list[Observation]:
    """Run a subject's module on one chunk of tokens after another; what it keeps in itself stays there."""
    use = subject.cached
    assert use is not None, "ask `cached` first"
    B, T = inputs.sizes
    cache = None
    if use.kind == "object":
        assert subject.make_cache is not None
        cache = subject.make_cache(B, T + SLACK)
    if poison:
        _poison(cache if use.kind == "object" else _cache_tensors(subject.module))
    found, start = [], 0
    for size in sizes:
        chunk = inputs.tokens(start, start + size)
        given = subject.way.arguments(chunk) | _told(subject, chunk, start, cache)
        args, keywords = subject.target.bound(given)
        trace = record(subject.callee, *args, **keywords)
        result = trace.result
        if use.kind in ("object", "grown"):
            cache = _returned(result, cache)
            if cache is None:
                raise TypeError("no cache comes back")
        found.append(subject.observation(chunk, given, trace))
        start += size
    return found


def _told(subject: Called, chunk: Inputs, start: int, cache: Any) -> dict[str, Any]:
    """What a call with a cache is given besides its tokens."""
    use, names = subject.cached, subject.parameters
    assert use is not None
    (B, T), dtype = chunk.sizes, subject.dtype
    told: dict[str, Any] = {}
    for name, constant in subject.way.constants.items():
        if name in TABLES and callable(constant):
            told[name] = pytree.tree_map(
                lambda it: it[..., start:, :], constant(B, start + T, dtype)
            )
    if subject.way.attends is not None and subject.attending is not None:
        visible = subject.way.attends(T, start + T)[None]
        told[subject.attending.name] = as_given(subject.attending, visible, B, dtype)
    for name in names:
        if name in STARTS:
            told[name] = start
        elif name in POSITIONS:
            positions = torch.arange(start, start + T)
            told[name] = positions if name == "cache_position" else positions.expand(B, T)  # fmt: skip
        elif name == "use_cache":
            told[name] = True
    if use.kind in ("object", "grown"):
        told[use.argument] = cache
    return told


def _returned(result: object, cache: Any) -> Any:
    """The cache after a call: what came back beside the output, or the same object, changed in place."""
    if hasattr(result, "past_key_values"):
        return result.past_key_values  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(result, tuple | list) and len(result) > 1:
        rest = [it for it in result[1:] if it is not None]
        like = [it for it in rest if cache is not None and type(it) is type(cache)]
        holding = [
            it for it in rest if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(it))
        ]
        if like:
            return like[0]
        if cache is None and holding:
            return holding[-1]
    return cache


def _cache_tensors(module: nn.Module | None) -> list[Tensor]:
    """The tensors that a module keeps keys and values in."""
    return [
        value
        for part in (() if module is None else module.modules())
        for name, value in (*vars(part).items(), *part._buffers.items())
        if isinstance(value, Tensor) and "cache" in name.lower()
    ]


def _poison(cache: Any) -> None:
    """Fill memory that holds nothing yet with NaN."""
    with torch.no_grad():
        for leaf in pytree.tree_leaves(cache):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.fill_(float("nan"))
