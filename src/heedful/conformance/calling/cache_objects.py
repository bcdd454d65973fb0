"""Make the cache objects that a target takes: of the class that its code names, or of a usual kind."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.chunks import CacheMaker
from heedful.conformance.calling.construction import build
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.names import Names
from heedful.conformance.calling.target import CASTS

MAKES: re.Pattern[str] = re.compile(
    r"^_?(init|new|make|empty|create|allocate|alloc|build).*(cache|kv|state|memory)"
)
LENGTH: re.Pattern[str] = re.compile(r"len|max_s|capacity|tokens|size|slots|max_t")
COUNTERS: re.Pattern[str] = re.compile(
    r"(seq|len|token|pos|step|time).*(offset|start|pos|seen|idx|count)|^(offset|pos|position|seen|step)$|(seen|past|current|cur)_(len|tok|pos|seq)"
)
"""Names, in lower case, of methods that make a cache, of their numbers of tokens, and of counters of tokens."""


class GrowingCache:
    """Keys and values of all layers, (B, H, T, D), as caches of transformers take and return them."""

    def __init__(self) -> None:
        self.layers: dict[object, tuple[Tensor, Tensor]] = {}

    def update(
        self, key: Tensor, value: Tensor, layer_idx: object = 0, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all of them."""
        if layer_idx in self.layers:
            pairs = zip(self.layers[layer_idx], (key, value), strict=True)
            key, value = (torch.cat(pair, dim=-2) for pair in pairs)
        self.layers[layer_idx] = key, value
        return key, value

    def get_seq_length(self, layer_idx: object = 0) -> int:
        """Return the number of tokens."""
        return self.layers[layer_idx][0].shape[-2] if layer_idx in self.layers else 0

    def get_usable_length(self, _: int, layer_idx: object = 0) -> int:
        """Return the number of tokens, as older caches call it."""
        return self.get_seq_length(layer_idx)


def object_makers(caller: Caller, argument: str) -> Iterator[CacheMaker]:
    """Yield functions that make the objects that an argument for a cache may take, the likeliest first.

    A model of several layers may take a list of them, one for each layer.
    """
    layers = _listed_layers(caller.module)
    for cls in dict.fromkeys((*_annotated(caller, argument), *_neighbors(caller))):
        yield lambda batch, capacity, cls=cls: _made(cls, caller, batch, capacity)
        if layers:
            yield lambda batch, capacity, cls=cls: [
                _made(cls, caller, batch, capacity) for _ in range(layers)
            ]
    yield lambda batch, capacity: GrowingCache()


def method_makers(caller: Caller) -> Iterator[CacheMaker]:
    """Yield the target's own methods that make an empty cache of a batch size and a number of tokens."""
    module = caller.module
    for name in () if module is None else dir(type(module)):
        if not MAKES.search(name.lower()) or hasattr(nn.Module, name):
            continue

        def make(batch: int, capacity: int, name: str = name) -> Any:
            method = getattr(module, name)
            known = {
                names.MAX_LENGTHS: capacity,
                names.MAX_BATCHES: batch,
                ("dtype",): caller.dtype,
            }
            given: dict[str, Any] = {}
            for parameter, it in inspect.signature(method).parameters.items():
                value = next((value for role, value in known.items() if parameter in role), None)
                if value is None and LENGTH.search(parameter):
                    value = capacity
                if value is None and "b" in parameter[:1]:
                    value = batch
                if value is not None and it.kind is not it.VAR_KEYWORD:
                    given[parameter] = value
            cache = method(**given)
            return pytree.tree_map_only(Tensor, lambda it: it.to(caller.dtype), cache)

        with caller.isolated():  # it may change the module instead
            made = attempt(lambda make=make: make(1, 2))
        of_tensors = any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(made))
        if of_tensors or "cache" in type(made).__name__.lower():
            yield make


def state_makers(caller: Caller, argument: str) -> Iterator[CacheMaker]:
    """Yield functions that make objects of the class beside the target's own that an argument is called after."""
    home = sys.modules.get(type(caller.target.callee).__module__)
    called = argument.replace("_", "").lower()
    for name, cls in vars(home).items() if home is not None else ():
        if inspect.isclass(cls) and name.replace("_", "").lower() == called:

            def make(batch: int, capacity: int, cls: type = cls) -> Any:
                return _made(cls, caller, batch, capacity)

            if not isinstance(attempt(lambda make=make: make(1, 2)), Exception):
                yield make


def counters_of(cache: Any) -> tuple[str, ...]:
    """Return the attributes of an object in which the caller counts the tokens that have been passed so far."""
    held = vars(cache) if hasattr(cache, "__dict__") else {}
    zeros = (name for name, value in held.items() if type(value) is int and value == 0)
    return tuple(name for name in zeros if COUNTERS.search(name.lower()))


def _annotated(caller: Caller, argument: str) -> Iterator[type]:
    """Yield the classes that the annotation of an argument names."""
    try:
        hint = get_type_hints(caller.target.forward).get(argument)
    except (NameError, TypeError, AttributeError):  # an annotation that cannot be evaluated
        return
    for cls in _within(hint):
        if inspect.isclass(cls) and cls.__module__ != "builtins" and not issubclass(cls, Tensor):
            yield cls


def _within(hint: Any) -> Iterator[Any]:
    """Yield a type and those that it is made of, such as `Cache` in `Optional[List[Cache]]`."""
    yield hint
    for part in get_args(hint):
        yield from _within(part)


def _neighbors(caller: Caller) -> Iterator[type]:
    """Yield the classes beside the target's own that are caches by their names."""
    home = sys.modules.get(type(caller.target.callee).__module__)
    for name, value in vars(home).items() if home is not None else ():
        if inspect.isclass(value) and "cache" in name.lower():
            yield value


def _made(cls: type, caller: Caller, batch: int, capacity: int) -> Any:
    """Return an empty cache of a class, with the sizes of the target."""
    cache = build(cls, dict(_sizes(cls, caller.module, batch, capacity, caller.dtype)))
    return CASTS[caller.dtype](cache) if isinstance(cache, nn.Module) else cache


def _sizes(
    cls: type, module: nn.Module | None, batch: int, capacity: int, dtype: torch.dtype
) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a cache's constructor that the target and the call decide."""
    held = {} if module is None else vars(module)
    heads = _declared(held, names.HEADS)
    key_heads = _declared(held, names.KEY_HEADS) or heads
    index = _declared(held, names.LAYER_INDICES) or 0
    known: Mapping[Names, Any] = {
        names.MAX_BATCHES: batch,
        names.MAX_LENGTHS: capacity,
        names.LAYERS: _listed_layers(module) or index + 1,  # an attention alone is the last layer
        names.HEAD_SIZES: _declared(held, names.HEAD_SIZES),
        names.HEADS: key_heads,
        names.KEY_HEADS: key_heads,
        ("dtype",): dtype,
    }
    for name in inspect.signature(cls).parameters:
        value = next((value for role, value in known.items() if name in role), held.get(name))
        if value is not None:
            yield name, value


def _listed_layers(module: nn.Module | None) -> int:
    """Return the number of layers that a model lists; 0 if it lists none."""
    parts = () if module is None else module.modules()
    return max((len(it) for it in parts if isinstance(it, nn.ModuleList)), default=0)


def _declared(held: Mapping[str, Any], role: Names) -> int | None:
    numbers = (held.get(name) for name in role)
    return next((number for number in numbers if isinstance(number, int)), None)
