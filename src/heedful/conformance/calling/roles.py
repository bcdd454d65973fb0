"""Values that an argument of an unknown name may take, by what its name, annotation and docstring suggest."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling.convention import MEMORY_TOKENS, grid_of
from heedful.conformance.calling.conventional import WIDTH
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.layouts import DISTANCE_AXIS, documented_axes
from heedful.conformance.calling.mask_forms import ATTENTION_FORMS, PADDING_FORMS, in_form
from heedful.conformance.calling.polarity import suggests_real_tokens
from heedful.conformance.calling.rotary_tables import PositionTable, rotary_tables
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.source import nodes_of

FEATURE_MAP = 4  # axes, (B, C, Y, X)
WINDOW = 4  # fewer than the tokens of a check
MOST_TOKENS = 256  # for which there are embeddings of positions and of distances
# Stands for a further argument that takes one row per token.
TOKENS = object()

# The roles that words in a name suggest, the most telling word first.
WORDS: Mapping[str, tuple[str, ...]] = {
    "timestep": ("times", "positions"), "time_step": ("times", "positions"), "noise_level": ("times",),
    "edge_index": ("edges",), "edge_attr": ("features", "pairs", "masks"),
    "edge_feat": ("features", "pairs", "masks"), "cu_": ("bounds",), "cumul": ("bounds",), "max_seq": ("sizes",),
    "shape": ("grids",), "grid": ("grids",), "hw": ("grids",),
    "pair": ("pairs", "biases"), "edge": ("pairs", "masks"), "matrix": ("squares", "pairs", "masks"),
    "dist": ("squares", "pairs"), "coor": ("coordinates",), "xyz": ("coordinates",), "mask": ("masks",),
    "pad": ("masks",), "valid": ("masks", "lengths"), "keep": ("masks",),
    "adj": ("masks", "biases"), "visible": ("masks",), "len": ("lengths", "sizes"), "n_win": ("lengths",),
    "bias": ("biases",), "alibi": ("biases",), "rope": ("rotary",), "rot": ("rotary",), "freq": ("rotary",),
    "cos": ("rotary",), "sin": ("rotary",), "pos": ("positions", "rotary", "tokens", "coordinates", "biases"),
    "cache": ("none",), "past": ("none",), "state": ("tokens", "none"), "index": ("positions",), "idx": ("positions",),
    "weight": ("alignments",), "align": ("alignments",), "prev": ("alignments", "tokens"),
    "window": ("windows",), "start": ("numbers",), "offset": ("numbers",),
    "height": ("heights", "sizes"), "width": ("widths", "sizes"),
}  # fmt: skip
# Words in the names of tokens, which are nothing else.
OF_TOKENS: re.Pattern[str] = re.compile(
    r"^(enc|encoder|dec|decoder)_(out|outs|output|outputs|states?)$|^memory$|^keys?$|^values?$"
)
OF_IDS: re.Pattern[str] = re.compile(r"\b(ids|indices|token_ids)\b")  # in what documentation says
LETTERS: Mapping[str, tuple[str, ...]] = {"h": ("heights",), "w": ("widths",)}  # whole names
# Roles of numbers that follow from the number of tokens.
COUNTS = ("sizes", "grids", "heights", "widths")
ROLES = ("tokens", "none", "masks", "biases", "lengths", "positions", "rotary", "numbers")
ROLES_OF_TYPES: Mapping[Any, tuple[str, ...]] = {
    int: ("numbers", "sizes"), bool: ("numbers",), "int": ("numbers", "sizes"), "bool": ("numbers",),
}  # fmt: skip

Value = Any
OF_PAIRS: re.Pattern[str] = re.compile("[ B]?TT $")
"""A documented shape: features for each pair of tokens."""
TOKENS_FIRST = "T1 "  # a documented shape: one vector for each token of any sequence
ONE_VECTOR = "B "  # a documented shape: one vector for each sequence
ONE_ROW = "B1 "  # a documented shape: one vector for each sequence, on an axis of its own


def likely_values(target: Target, name: str, head_size: int) -> Iterator[Value]:
    """Yield values, or functions of (B, T, dtype) that return one, the most likely first; `TOKENS` for more tokens.

    Every mask shows everything, and every bias is 0. A tensor has as many axes as the docstring gives the argument.
    """
    annotation = target.parameters[name].annotation
    shape = next(documented_axes(target.callee, name), None)
    documented = None if shape is None else len(shape)
    if shape is not None and shape.count(DISTANCE_AXIS) == 1:
        for width in _input_widths(target.module):
            yield _distances(shape, width)
    if shape is not None and OF_PAIRS.match(shape):
        yield from map(_pairs, _input_widths(target.module))
    suggested = (*_side_of_grid(target, name), *roles_by_name(name))
    if annotation is not inspect.Parameter.empty and annotation in ROLES_OF_TYPES:
        counts = (role for role in suggested if role in COUNTS)
        suggested = (*counts, *ROLES_OF_TYPES[annotation])
    said = documented_arguments(target.callee).get(name, "")
    if shape == "BT" and OF_IDS.search(said):
        yield from _other_ids(target.module)
    if is_called(target, name):
        yield lambda B, T, dtype: _handed_back
    if "positions" in suggested and documented is None and _counts_distances(target):
        for width in _input_widths(target.module):
            yield _distances(f"1{DISTANCE_AXIS} ", width)
    if "positions" in suggested and documented is None and is_projected(target, name):
        yield from position_vectors(target.module)
    if "positions" in suggested and documented == 3:
        made = _rows_of_embeddings if shape == TOKENS_FIRST else _embeddings
        yield from map(made, _input_widths(target.module))
    roles = ("tokens", "none") if OF_TOKENS.search(name.lower()) else (*suggested, *ROLES)
    for role in dict.fromkeys(roles):
        for value, axes in _values_in(role, name, target.module, head_size):
            other_form = value is TOKENS and (documented == FEATURE_MAP or shape == ONE_VECTOR)
            if documented is None or axes in (None, documented) or other_form or role == "lengths":
                yield value


def roles_by_name(name: str) -> tuple[str, ...]:
    """Return the roles that the name of an argument suggests, the likeliest first; none if it tells nothing."""
    by_word = next((roles for word, roles in WORDS.items() if word in name.lower()), ())
    return LETTERS.get(name.lower(), by_word)


def _side_of_grid(target: Target, argument: str) -> tuple[str, ...]:
    """Return the role of an argument whose product with another is a size of a view, as in `x.view(B, T * N, C)`."""
    calls = (it for it in nodes_of(target.forward) if isinstance(it, ast.Call))
    views = (it.args for it in calls if getattr(it.func, "attr", "") in ("view", "reshape"))
    for size in itertools.chain.from_iterable(views):
        match size:
            case ast.BinOp(ast.Name(first), ast.Mult(), ast.Name(second)) if (
                argument in (first, second) and {first, second} <= target.parameters.keys()
            ):
                return ("heights",) if argument == first else ("widths",)
    return ()


def _counts_distances(target: Target) -> bool:
    """Check whether a target's own code counts 2 T − 1 distances, as `2 * T - 1`."""
    for node in nodes_of(target.forward):
        match node:
            case ast.BinOp(
                left=ast.BinOp(left=ast.Constant(value=2), op=ast.Mult()),
                op=ast.Sub(),
                right=ast.Constant(value=1),
            ):
                return True
    return False


def _handed_back(*values: Any) -> Any:
    """Return what it is given, as a rotation of queries and keys does at position 0."""
    return values[0] if len(values) == 1 else values


def is_called(target: Target, argument: str) -> bool:
    """Check whether a target's own code calls an argument, as `rope(query, key)`."""
    calls = (it for it in nodes_of(target.forward) if isinstance(it, ast.Call))
    return any(isinstance(it.func, ast.Name) and it.func.id == argument for it in calls)


def is_projected(target: Target, argument: str) -> bool:
    """Check whether a target's own code gives an argument alone to one of its layers, as `self.project(pos)`."""
    return any(True for _ in layers_given(target, argument))


def layers_given(target: Target, argument: str) -> Iterator[str]:
    """Yield the attributes that a target's own code calls with an argument alone: "project" of `self.project(pos)`."""
    for node in nodes_of(target.forward):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="self"), attr=layer), args=[ast.Name(id=given)]
            ) if given == argument:
                yield layer


def _has_class_token(module: nn.Module | None) -> bool:
    """Check whether a module's attributes tell of a token for the class, which is no pixel."""
    parts = () if module is None else module.modules()
    return any("cls" in name or "class_token" in name for part in parts for name in vars(part))


def _input_widths(module: nn.Module | None) -> list[int]:
    """Return the widths of what the linear layers of a module take, or the usual one."""
    parts = () if module is None else module.modules()
    found = dict.fromkeys(part.in_features for part in parts if isinstance(part, nn.Linear))
    return list(found) or [WIDTH]


def position_vectors(module: nn.Module | None) -> Iterator[Callable[..., Tensor]]:
    """Yield functions of (B, T, dtype) that draw a vector for each position, for each distance, or for each pair."""
    for width in _input_widths(module):
        yield _embeddings(width)
        yield _distances(f"{DISTANCE_AXIS} ", width)
        yield _distances(f"1{DISTANCE_AXIS} ", width)
        yield _pairs(width)


def _pairs(width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws a vector for each pair of positions, by their distance."""

    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        places = torch.arange(T)
        return _table(2 * MOST_TOKENS - 1, width)[MOST_TOKENS - 1 + places[:, None] - places].to(
            dtype
        )

    return constant


def _edge_widths(module: nn.Module | None) -> list[int]:
    """Return the numbers of features that an edge may have: what a module keeps under such a name, or takes."""
    kept = {} if module is None else vars(module)
    own = [it for name, it in kept.items() if "edge" in name and type(it) is int]
    return list(dict.fromkeys((*own, *_input_widths(module))))


def _rows_of_pairs(width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws a vector for each edge, one after the other."""
    return lambda B, T, dtype: _pairs(width)(B, T, dtype).flatten(0, 1)


def _of_sequences(vectors: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that gives each sequence the same vectors."""
    return lambda B, T, dtype: vectors(B, T, dtype).repeat(B, 1, 1, 1)


def _distances(shape: str, width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws a vector for each distance of tokens, in a documented shape.

    Args:
        shape: A letter per axis.
        width: The size of the last axis.
    """

    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        vectors = _table(2 * MOST_TOKENS - 1, width)[MOST_TOKENS - T : MOST_TOKENS + T - 1]
        sizes = {DISTANCE_AXIS: 2 * T - 1, "B": 1}
        last = len(shape) - 1
        view = vectors.view(
            [width if n == last else sizes.get(it, 1) for n, it in enumerate(shape)]
        )
        batched = [B if it == "B" else -1 for it in shape]
        return view.to(dtype).expand(batched).clone(memory_format=torch.contiguous_format)

    return constant


def _embeddings(width: int) -> PositionTable:
    """Return a table with a vector for each position, the same for each sequence."""

    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        return _table(MOST_TOKENS, width)[:T].to(dtype).repeat(B, 1, 1)

    return PositionTable(constant)


def _rows_of_embeddings(width: int) -> PositionTable:
    """Return the same table as (T, 1, width)."""
    return PositionTable(
        lambda B, T, dtype: _table(MOST_TOKENS, width)[:T, None].to(dtype), axis=-3
    )


coordinates: Callable[..., Tensor] = _embeddings(3)
"""Draws a place in space for each token, the same for each sequence: a function of (B, T, dtype)."""


@cache
def _table(rows: int, width: int) -> Tensor:
    """Return random vectors, the same tensor in each call, in float64; a target gets copies of its rows."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


def _values_in(
    role: str, name: str, module: nn.Module | None, head_size: int
) -> Iterator[tuple[Value, int | None]]:
    """Yield the values of an argument in a role, each with its number of axes; None if it may have any."""
    match role:
        case "tokens":
            yield TOKENS, 3
        case "none":
            yield None, None
        case "masks":
            polarities = (True,) if suggests_real_tokens(name) else (False, True)
            for dtype in (torch.bool, torch.int64, torch.float64):
                for form in dict.fromkeys((*PADDING_FORMS, *ATTENTION_FORMS)):
                    for keeps in (True,) if dtype.is_floating_point else polarities:
                        yield AllVisible(form, dtype, true_keeps=keeps), form.count(",") + 1
        case "biases":
            for form in ("(T, T)", "(1, 1, T, T)", "(B, T, T)", "(B, 1, T, T)"):
                yield no_bias(form), form.count(",") + 1
        case "squares":
            for form in ("(B, T, T)", "(T, T)"):
                yield AllVisible(form, torch.float64, true_keeps=True), form.count(",") + 1
        case "alignments":  # the weights of the step before, and the sums of all before it
            for form in ((), (2,), (1,)):
                yield _even_weights(form), len(form) + 2
        case "lengths":
            yield lambda B, T, dtype: torch.full((B,), T), 1
        case "times":  # of the diffusion, one for each sequence
            for kind in (torch.int64, None):
                yield lambda B, T, dtype, kind=kind: torch.full((B,), 3, dtype=kind or dtype), 1
        case "positions":
            yield PositionTable(lambda B, T, dtype: torch.arange(T).expand(B, T), axis=-1), 2
            yield PositionTable(lambda B, T, dtype: torch.arange(T), axis=-1), 1
        case "rotary":
            for table in rotary_tables(head_size):
                yield table, None
        case "coordinates":
            yield coordinates, 3
        case "pairs":
            for width in _input_widths(module):
                yield _of_sequences(_pairs(width)), 4
        case "edges":  # of every node to every other one and to itself
            yield lambda B, T, dtype: torch.cartesian_prod(*(torch.arange(T),) * 2).T, 2
        case "features":
            for width in _edge_widths(module):
                yield _rows_of_pairs(width), 2
        case "bounds":  # of one packed sequence
            yield lambda B, T, dtype: torch.tensor([0, T], dtype=torch.int32), 1
        case "grids":
            yield lambda B, T, dtype: grid_of(T), None
            yield lambda B, T, dtype: (1, *grid_of(T)), None  # of one frame
        case "heights" | "widths":
            axis = ("heights", "widths").index(role)
            yield lambda B, T, dtype: grid_of(T)[axis], None
            if _has_class_token(module):
                yield lambda B, T, dtype: grid_of(max(T - 1, 1))[axis], None
        case "windows":
            yield (WINDOW, 0), None  # tokens before and after a query's own
            yield WINDOW, None
        case "sizes":
            yield lambda B, T, dtype: T, None
            yield lambda B, T, dtype: B, None
        case _:
            for number in (0, 1.0, False, True):
                yield number, None


@dataclass(frozen=True)
class AllVisible:
    """A function of (B, T, dtype) that makes a mask of a form, in which every token sees every other one.

    Attributes:
        form: The shape of the mask, as "(B, 1, 1, T)".
        dtype: Its dtype; if it is a floating one, the mask has that of the tokens.
        true_keeps: Whether True, or 1, shows a token.
    """

    form: str
    dtype: torch.dtype
    true_keeps: bool

    def __call__(self, B: int, T: int, dtype: torch.dtype) -> Tensor:
        visible = in_form(self.form, torch.ones(1, T, T, dtype=torch.bool), B)
        mask = visible if self.true_keeps else ~visible
        return mask.to(dtype if self.dtype.is_floating_point else self.dtype)


def no_bias(form: str) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that makes a bias of zeros, one for each query and key."""

    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros_like(
            in_form(form, torch.ones(1, T, T, dtype=torch.bool), B), dtype=dtype
        )

    return constant


def _even_weights(axes: tuple[int, ...]) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that makes equal weights of all tokens, with axes before theirs."""
    return lambda B, T, dtype: torch.full((B, *axes, T), 1 / T, dtype=dtype)


def one_vector(width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws one vector for each sequence, the same in every call."""
    return _drawn((width,))


def one_row(width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws a sequence of one vector, the same in every call."""
    return _drawn((1, width))


def feature_map(width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws one map of 2 × 3 pixels, the same for each sequence and call."""
    return _drawn((width, 2, 3))


def few_rows(width: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws two rows, the same for each sequence and call."""
    return _drawn((2, width))


@dataclass(frozen=True, eq=False)
class OfMemory:
    """A function of (B, T, dtype) that returns a constant for the tokens of a second sequence, whatever T is.

    Attributes:
        constant: The same for T tokens.
    """

    constant: Callable[..., Any]

    def __call__(self, B: int, T: int, dtype: torch.dtype) -> Any:
        return self.constant(B, MEMORY_TOKENS, dtype)


def ids_of_memory(vocabulary: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that draws the ids of a second sequence, the same in each call.

    None of them is one of the first ids, which often stand for padding.
    """
    ids = torch.arange(MEMORY_TOKENS) % (vocabulary // 2) + vocabulary // 2
    return lambda B, T, dtype: ids.repeat(B, 1)


def vocabulary_of(module: nn.Module) -> int:
    """Return the number of ids that a module's first embedding has vectors for; 0 without one."""
    embeddings = (part for part in module.modules() if isinstance(part, nn.Embedding))
    return next((embedding.num_embeddings for embedding in embeddings), 0)


def _other_ids(module: nn.Module | None) -> Iterator[Callable[..., Tensor]]:
    """Yield a function of (B, T, dtype) that returns ids of a module's first embedding, the same for each sequence."""
    vocabulary = 0 if module is None else vocabulary_of(module)
    if vocabulary > 1:
        yield lambda B, T, dtype: (1 + torch.arange(T) % (vocabulary - 1)).repeat(B, 1)


def _drawn(shape: tuple[int, ...]) -> Callable[..., Tensor]:
    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        numbers = torch.randn(1, *shape, generator=generator, dtype=torch.float64).to(dtype)
        return numbers.repeat(B, *(1 for _ in shape))

    return constant
