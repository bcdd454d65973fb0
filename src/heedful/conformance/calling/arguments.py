"""Which arguments of a target take tokens, and what the others are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling.construction import HEAD_SIZE
from heedful.conformance.calling.mask_forms import (
    ATTENDING_FORMS,
    DECLARED,
    PADDING_FORMS,
    shaped_as,
)
from heedful.conformance.calling.target import Target
from heedful.errors import ArgumentError

IDS = ("input_ids", "tokens", "idx", "ids", "token_ids", "input")
TOKENS = (*IDS, "x", "hidden_states", "inputs", "embeddings")
QUERIES = ("query", "q", "queries", "Q", "xq")
KEYS = ("key", "k", "keys", "K", "xk")
VALUES = ("value", "v", "values", "V", "xv")
CONTEXTS = ("context", "kv", "source", "x_kv")  # may be the tokens themselves
MEMORIES = ("memory", "encoder_hidden_states", "encoder_output", "enc_output", "enc_out")
STARTS = ("start_pos", "start", "offset", "position", "pos", "cache_pos")
TABLES = (
    *("position_embeddings", "freqs_cis", "rope", "rotary_pos_emb"),
    *("freqs_cos", "freqs_sin", "cos", "sin"),
)
POSITIONS = ("position_ids", "positions", "pos_ids")  # (B, T)
SLOTS = ("cache_position", "input_pos")  # (T,), of the cache

CAUSAL_FLAGS = ("is_causal", "causal")
# In place of a sequence that stays the same, which a decoder attends to beside its own.
MEMORY = object()

Constants = dict[str, Any]
VisibleKeys = Callable[[int, int], Tensor]


def token_arguments(target: Target) -> tuple[tuple[str, ...], Constants]:
    """The arguments that have a row for each token, and what else has to be given.

    Of what is given, functions of (B, T, dtype) make it for each call.

    Raises:
        ArgumentError: a needed argument that nothing is known of.
    """
    parameters = inspect.signature(target.forward).parameters
    needed = [
        name for name, it in parameters.items()
        if it.default is it.empty and it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)
    ]  # fmt: skip
    if not needed or needed[0] not in (*TOKENS, *QUERIES):
        needed = [*[name for name in parameters if name in TOKENS][:1], *needed]
    if not needed:
        raise ArgumentError(
            "target",
            expected="an argument for the tokens",
            received=f"{target.name}({', '.join(parameters)})",
            remedy="Name it x, or query, key and value.",
        )
    tokens = [needed[0]]
    constants: Constants = {}
    if "position_embeddings" in parameters:  # optional in name only
        needed.append("position_embeddings")
    for name in dict.fromkeys(needed[1:]):
        if name in (*QUERIES, *KEYS, *VALUES, *CONTEXTS):
            tokens.append(name)
        else:
            constants[name] = _constant(target, name)
    return tuple(tokens), constants


def arguments_of_example(
    target: Target, example: Sequence[Any]
) -> tuple[tuple[str, ...], Constants]:
    """The same where all arguments are given, in order: tokens are those of the first one's size.

    Raises:
        ArgumentError: the target takes fewer.
    """
    parameters = list(inspect.signature(target.forward).parameters)
    if len(example) > len(parameters):
        raise ArgumentError(
            "example",
            expected=f"at most {len(parameters)} arguments: {', '.join(parameters)}",
            received=f"{len(example)}",
            remedy="Give them in the order in which the target takes them.",
        )
    named = dict(zip(parameters, example, strict=False))
    first = example[0]
    tokens = [
        name
        for name, it in named.items()
        if isinstance(it, Tensor) and it.shape == first.shape and it.dtype == first.dtype
    ]
    rest = {name: it for name, it in named.items() if name not in tokens}
    return tuple(tokens), {
        name: _of_any_batch(it, first) if isinstance(it, Tensor) else it
        for name, it in rest.items()
    }


def _of_any_batch(value: Tensor, first: Tensor) -> Any:
    """A tensor for a batch of any size and vectors of any dtype: each sequence gets what the first had."""

    def made(B: int, T: int, dtype: torch.dtype) -> Tensor:
        cast = value.to(dtype) if value.is_floating_point() else value
        batched = value.dim() == first.dim() > 2 and len(value) == len(first)
        return cast[:1].expand(B, *value.shape[1:]) if batched else cast

    return made


def switched(target: Target, causal: bool | None) -> Constants:
    """The flag that makes a target causal, or not, as its user wants it; empty where there is none, or no wish."""
    flags = [it for it in CAUSAL_FLAGS if it in inspect.signature(target.forward).parameters]
    return {} if causal is None else dict.fromkeys(flags, causal)


def with_targets(target: Target) -> Constants:
    """What makes a model give the logits of every token where it otherwise gives the last one's alone: targets."""
    if "targets" not in inspect.signature(target.forward).parameters:
        return {}
    return {"targets": lambda B, T, dtype: torch.zeros(B, T, dtype=torch.int64)}


def optional_contexts(target: Target) -> tuple[str, ...]:
    """Arguments for the tokens of another sequence that may have to be given although they have a default."""
    return tuple(it for it in inspect.signature(target.forward).parameters if it in CONTEXTS)


def with_masks(constants: Constants) -> Iterator[Constants]:
    """The same with what masks may be given that must be given: nothing, then all seen in each form."""
    masks = [name for name, value in constants.items() if "mask" in name and value is None]
    yield constants
    if not masks:
        return
    for dtype in (torch.bool, torch.int64):
        for form in dict.fromkeys((*PADDING_FORMS, *ATTENDING_FORMS)):
            yield constants | {name: _all_seen(name, form, dtype) for name in masks}


def _all_seen(name: str, form: str, kind: torch.dtype) -> Callable[..., Tensor]:
    def made(B: int, T: int, dtype: torch.dtype) -> Tensor:
        seen = shaped_as(form, torch.ones(1, T, T, dtype=torch.bool), B)
        return (seen if DECLARED.get(name, True) else ~seen).to(kind)

    return made


def needed_mask(target: Target, causal: bool | None) -> VisibleKeys | None:
    """Which keys queries must be told to see, where a target leaves that to its caller.

    So do torch's layers, if they are to be causal, transformers' attentions, whose models make the mask, and what has
    to be given a mask beside a position.
    """
    parameters = inspect.signature(target.forward).parameters
    if causal and of_torch(target.module):
        return causal_band()
    if of_transformers(target.module):
        if "attention_mask" not in parameters or not getattr(target.module, "is_causal", False):
            return None
        configured = getattr(getattr(target.module, "config", None), "sliding_window", None)
        return causal_band(getattr(target.module, "sliding_window", configured))
    needed = any("mask" in name and it.default is it.empty for name, it in parameters.items())
    return causal_band() if needed and not set(STARTS).isdisjoint(parameters) else None


def of_torch(module: nn.Module | None) -> bool:
    """Whether a module is one of PyTorch's own."""
    return type(module).__module__.startswith("torch.")


def of_transformers(module: nn.Module | None) -> bool:
    """Whether a module is one of transformers' own: its models tell it masks, and its weights set its conventions."""
    return type(module).__module__.startswith("transformers.")


def causal_band(window: int | None = None) -> VisibleKeys:
    """Which keys queries see who are the newest tokens: themselves and those before, as many as the window has."""

    def attends(queries: int, keys: int) -> Tensor:
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return seen if window is None else seen.triu(keys - queries - window + 1)

    return attends


def _constant(target: Target, name: str) -> Any:
    if name in STARTS:
        return 0
    if name in MEMORIES:
        return MEMORY
    if name in CAUSAL_FLAGS:
        return False
    if name in (*POSITIONS, *SLOTS):
        return lambda B, T, dtype: (
            torch.arange(T).expand(B, T) if name in POSITIONS else torch.arange(T)
        )
    if "mask" in name or "cache" in name or "past" in name:
        return None
    if name in TABLES:
        return lambda B, T, dtype: _rotary_table(target.module, name, B, T, dtype)
    raise ArgumentError(
        name,
        expected=f"a value for {target.name}'s argument {name!r}",
        received="none, and its name tells nothing",
        remedy="Give an example of all the arguments: example=(…).",
    )


def _rotary_table(module: nn.Module | None, name: str, B: int, T: int, dtype: torch.dtype) -> Any:
    """Rotary angles of positions 0 … T − 1.

    Complex as Llama's own code makes them, cosines or sines of each angle once, (T, D / 2), or twice, (T, D); for
    transformers both, (B, T, D).
    """
    D = _head_size(module)
    frequencies = 10_000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T)[:, None] * frequencies
    if name == "freqs_cis":
        return torch.polar(torch.ones_like(angles), angles)
    if name not in ("freqs_cos", "freqs_sin"):  # those hold each angle once
        angles = torch.cat([angles, angles], dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if name == "position_embeddings":
        return cos.expand(B, T, D), sin.expand(B, T, D)
    if name.endswith("cos"):
        return cos
    return sin if name.endswith("sin") else (cos, sin)


def _head_size(module: nn.Module | None) -> int:
    for part in () if module is None else module.modules():
        for name in ("head_dim", "head_size", "d_head"):
            if isinstance(size := getattr(part, name, None), int):
                return size
    return HEAD_SIZE
