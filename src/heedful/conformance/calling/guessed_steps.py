"""Arguments for one step of a decoder with recurrent layers: a token, a state, and an encoder's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, product
from time import perf_counter  # bound here, because a target may replace it
from typing import Any, NamedTuple

import torch
from torch import nn

from heedful.conformance.calling.candidates import widths_of
from heedful.conformance.calling.exceptions import attempt, exits_as_errors
from heedful.conformance.calling.recurrent import Layer, recurrent_layers, state_sizes
from heedful.conformance.calling.target import Target

SECONDS = 2.0  # the time limit of all trials
MAX_ARGUMENTS, MAX_TRIALS = 6, 4000

# The roles that words in a name suggest, the most telling word first; whole names are listed with a blank.
WORDS: Mapping[str, tuple[str, ...]] = {
    "mask": ("mask",), "len": ("lengths",), "enc_hidden": ("state", "keys"), "encoder_hidden": ("state", "keys"),
    "enc": ("keys",), "memor": ("keys",), "source": ("keys",), "src": ("keys",), "annot": ("keys",),
    "feat": ("keys",), "keys": ("keys",), "values": ("keys",), "listener": ("keys",), "images": ("keys",),
    "hidden": ("state",), "cell": ("state",), "state": ("state",), "context": ("vector", "keys"),
    "feed": ("vector",), "tilde": ("vector",), "prev_out": ("vector",),
    "token": ("token",), "word": ("token",), "input": ("token",), "step": ("token",), "emb": ("token",),
    "tgt": ("token",), "trg": ("token",), "prev": ("token", "state"), "out": ("keys", "token"),
}  # fmt: skip
LETTERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("h", "c", "s", "hx", "cx", "h0", "c0", "ht", "ct", "h_t", "c_t"), ("state",)),
    **dict.fromkeys(("h_prev", "c_prev", "prev_h", "prev_c", "h_n", "c_n", "dec_h"), ("state",)),
    **dict.fromkeys(("x", "y", "x_t", "y_t", "inp", "ids", "xt", "yt"), ("token",)),
    **dict.fromkeys(("H", "V", "K"), ("keys",)),
}  # fmt: skip
ROLES = ("token", "state", "keys", "vector")  # of arguments whose names tell nothing


class _Sizes(NamedTuple):
    """The sizes of a decoder's arguments: unlike each other, so that axes can be told apart."""

    B: int
    T: int
    states: tuple[tuple[int, int], ...]  # (layers, hidden size)
    widths: tuple[int, ...]
    input_widths: tuple[int, ...]
    vocabulary: int
    pairs: bool


def guessed_steps(target: Target) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the arguments of calls that run, and the name of the one that holds the keys, the most likely first.

    There are none if the target has no recurrent layer, or takes no state or no tokens of an encoder.
    """
    layers = recurrent_layers(target.module)
    roles = {name: _roles(name) for name in target.required}
    takes_state = any(it[0] == "state" for it in roles.values())
    if not layers or not takes_state or len(roles) > MAX_ARGUMENTS:
        return
    sizes = _sizes(target, layers)
    values = {name: list(_values(it, sizes)) for name, it in roles.items()}
    until, ranks = perf_counter() + SECONDS, [range(len(it)) for it in values.values()]
    callee = target.copied(torch.float32)
    for chosen in islice(sorted(product(*ranks), key=sum), MAX_TRIALS):
        taken = {name: it[rank] for (name, it), rank in zip(values.items(), chosen, strict=True)}
        keys = [name for name, (role, _) in taken.items() if role == "keys"]
        if len(keys) != 1 or not any(role == "state" for role, _ in taken.values()):
            continue
        arguments = {name: value for name, (_, value) in taken.items()}
        if perf_counter() > until:
            return
        args, keywords = target.bound(arguments)
        with torch.no_grad(), exits_as_errors():
            result = attempt(lambda args=args, keywords=keywords: callee(*args, **keywords))
        if not isinstance(result, Exception):
            yield arguments, keys[0]


def _roles(name: str) -> tuple[str, ...]:
    by_word = next((roles for word, roles in WORDS.items() if word in name.lower()), ROLES)
    return LETTERS.get(name, LETTERS.get(name.lower(), by_word))


def _sizes(target: Target, layers: Sequence[Layer]) -> _Sizes:
    assert target.module is not None
    states = list(map(state_sizes, layers))
    known = widths_of(target.module)
    rest = [it.input_size - width for it in layers for width in known]
    hidden, inputs = [it.hidden_size for it in layers], [it.input_size for it in layers]
    both_directions = [2 * size for size in hidden]  # of an encoder
    widths = [*hidden, *both_directions, *known, *inputs, *rest]
    input_widths = [*inputs, *rest, *known]
    embeddings = (it for it in target.module.modules() if isinstance(it, nn.Embedding))
    taken = {size for state in states for size in state} | {*widths, *input_widths}
    B = next(n for n in count(3, 2) if n not in taken)
    T = next(n for n in count(7, 2) if n not in {*taken, B})
    return _Sizes(
        B,
        T,
        tuple(dict.fromkeys(states)),
        _distinct(widths),
        _distinct(input_widths),
        min((it.num_embeddings for it in embeddings), default=0),
        any(isinstance(it, nn.LSTM | nn.LSTMCell) for it in layers),
    )


def _distinct(widths: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(width for width in widths if width > 1))


def _values(roles: Sequence[str], sizes: _Sizes) -> Iterator[tuple[str, Any]]:
    """Yield the roles and values of an argument, the most likely first."""
    for role in roles:
        yield from ((role, value) for value in _values_in(role, sizes))


def _values_in(role: str, sizes: _Sizes) -> Iterator[Any]:
    B, T, states, widths, input_widths, vocabulary, pairs = sizes
    match role:
        case "token":
            for shape in ((B,), (B, 1), (1, B)) if vocabulary else ():
                yield torch.zeros(shape, dtype=torch.int64).random_(0, vocabulary)
            for width in input_widths:
                for shape in ((B, width), (B, 1, width), (1, B, width)):
                    yield torch.randn(shape)
        case "state":
            shapes = [shape for layers, H in states for shape in _state_shapes(layers, B, H)]
            for shape in dict.fromkeys(shapes):
                yield torch.randn(shape)
            for shape in dict.fromkeys(shapes) if pairs else ():
                yield torch.randn(shape), torch.randn(shape)
        case "keys":
            for width in widths:
                yield torch.randn(B, T, width)
                yield torch.randn(T, B, width)
        case "vector":
            for width in widths:
                yield torch.randn(B, width)
                yield torch.randn(B, 1, width)
        case "mask":
            yield torch.ones(B, T, dtype=torch.bool)
            yield torch.ones(B, T, dtype=torch.int64)
            yield torch.ones(B, 1, T, dtype=torch.bool)
        case "lengths":
            yield torch.full((B,), T)
        case _:
            pass


def _state_shapes(layers: int, B: int, H: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a state of layers, or of the cell that has none."""
    if layers:
        yield layers, B, H
    yield B, H
    if not layers:
        yield 1, B, H
