"""Finding out how a target is called: its arguments, its layout, what of its result is the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling.arguments import (
    IDS,
    MEMORY,
    VisibleKeys,
    arguments_of_example,
    needed_mask,
    optional_contexts,
    switched,
    token_arguments,
    with_masks,
    with_targets,
)
from heedful.conformance.calling.construction import HEAD_SIZE, HEADS, WIDTH
from heedful.conformance.calling.globals import tied_sizes
from heedful.conformance.calling.layouts import heads_come_last, tokens_come_first
from heedful.conformance.calling.runs import restored, seeded
from heedful.conformance.calling.target import Target, TargetError
from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.conformance.recording.inputs import Inputs
from heedful.observation import Trace, record

TRIAL = (3, 5)  # B and T of the first call
LESS_EXACT = (torch.float32, torch.complex64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class CallingConvention:
    """How a target takes tokens and gives rows.

    Attributes:
        layout: "(B, T, C)", "(T, B, C)", "(T, C)", "(B, H, T, D)", "(B, T, H, D)" or "(B, T) ids".
        names: the arguments that have a row for each token, as the target calls them.
        features: the shape of one token.
        vocabulary: of how many ids; 0 for vectors.
        constants: what else it needs: a value, or a function of (B, T, dtype) that makes one.
        alike: whether all the arguments are the same tokens, as self-attention takes them.
        attends: which keys queries see, (Tq, Tk), where that has to be told in every call.
        only: the B and T that work, where a tensor left over in the target's file ties it to some; None: any.
    """

    layout: str
    names: tuple[str, ...]
    features: tuple[int, ...]
    vocabulary: int = 0
    constants: Mapping[str, Any] = field(default_factory=dict)
    same_tokens: bool = False
    visible_keys: VisibleKeys | None = None
    fixed_sizes: tuple[int, int] | None = None

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What the target is given, by name."""
        B, T = inputs.sizes
        given: dict[str, Any] = {name: self.to_layout(it) for name, it in inputs.arguments.items()}
        dtype = next(iter(inputs.arguments.values())).dtype
        for name, constant in self.constants.items():
            if constant is MEMORY:
                given[name] = self._memory(B, dtype)
            else:
                given[name] = constant(B, T, dtype) if callable(constant) else constant
        return given

    def _memory(self, B: int, dtype: torch.dtype) -> Tensor:
        """Three tokens that are the same for all."""
        noise = torch.Generator().manual_seed(1)
        memory = torch.randn(1, 3, *self.features, generator=noise, dtype=torch.float64)
        return self.to_layout(
            self.contiguous(memory.to(dtype).repeat(B, 1, *(1 for _ in self.features)))
        )

    def to_layout(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, …) as the target takes them."""
        return tokens[0] if self.layout == "(T, C)" else self._swapped(tokens)

    def contiguous(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T, …) that are contiguous once they are laid out."""
        return self._swapped(self._swapped(tokens).contiguous())

    def _swapped(self, tokens: Tensor) -> Tensor:
        match self.layout:
            case "(T, B, C)":
                return tokens.transpose(0, 1)
            case "(B, H, T, D)":
                return tokens.transpose(1, 2)
        return tokens

    def rows(self, result: object, B: int, T: int) -> Tensor | None:
        """The output (B, T, …) in a result; None if there is no row for each token."""
        for tensor in _tensors(result):
            rows = self._as_rows(tensor)
            if rows is not None and rows.shape[:2] == (B, T) and rows.dim() >= 3:
                return rows
        return None

    def _as_rows(self, tensor: Tensor) -> Tensor | None:
        if not tensor.is_floating_point() or tensor.dim() < 2:
            return None
        match self.layout:
            case "(T, B, C)":
                return tensor.transpose(0, 1)
            case "(B, H, T, D)":
                return tensor.transpose(1, 2) if tensor.dim() == 4 else None
            case "(T, C)":
                return tensor[None]
        return tensor


def _tensors(result: object) -> Iterator[Tensor]:
    """The tensors in a result that may be the output, the likeliest first."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):  # a model's output: logits before anything else
        for name in ("logits", "last_hidden_state"):
            if isinstance(result.get(name), Tensor):
                yield result[name]
        yield from (it for it in result.values() if isinstance(it, Tensor))
    elif isinstance(result, tuple | list):
        yield from (it for it in result if isinstance(it, Tensor))


def find_convention(
    target: Target, example: Any, causal: bool | None
) -> tuple[CallingConvention, torch.dtype]:
    """The first way to call the target that works, and the dtype: float64, or float32.

    It is float32 where the target does not run in float64, or computes in float32 on the way: its results are then
    only as exact as that.

    Raises:
        TargetError: every way fails within the target's own code.
        ArgumentError: it needs what cannot be guessed.
    """
    errors: list[BaseException] = []
    for only in (None, *tied_sizes(target.callee)):
        ways = [replace(way, fixed_sizes=only) for way in _ways(target, example, causal)]
        found = _first_that_works(target, ways, errors)
        if found is not None:
            return found
    raise TargetError(target.name) from _most_telling(errors)


def _first_that_works(
    target: Target, ways: list[CallingConvention], errors: list[BaseException]
) -> tuple[CallingConvention, torch.dtype] | None:
    """The first way that works and its dtype; None if none does, and the errors are told."""
    found: CallingConvention | None = None
    for dtype in (torch.float64, torch.float32):
        callee = target.copied(dtype)
        for way in ways if found is None else (found,):
            try:
                trace = _tried(target, callee, way, dtype)
            except Exception as error:  # noqa: BLE001 - whatever it raises, the next way may do
                errors.append(error)
                continue
            if dtype == torch.float32 or not _is_less_exact(trace):
                return way, dtype
            found = way
            break
    return None if found is None else (found, torch.float64)


def _tried(
    target: Target, callee: Callable[..., Any], way: CallingConvention, dtype: torch.dtype
) -> Trace:
    """Call it once.

    Raises:
        TypeError: the result has no row for each token.
    """
    B, T = way.fixed_sizes or TRIAL
    B = 1 if way.layout == "(T, C)" else B
    args, keywords = target.bound(way.arguments(drawn(way, B, T, dtype)))
    module = callee if isinstance(callee, nn.Module) else None
    with torch.no_grad(), seeded(), restored(module):
        trace = record(callee, *args, **keywords)
    if way.rows(trace.result, B, T) is None:
        raise TypeError(f"its result has no row for each of {T} tokens: {_shapes(trace.result)}")
    return trace


def _is_less_exact(trace: Trace) -> bool:
    """Whether any step on the way from the tokens has fewer digits than float64."""
    alive = steps_from_tokens(trace.steps)
    return any(trace[index].dtype in LESS_EXACT for index in alive)


def _most_telling(errors: list[BaseException]) -> BaseException:
    """An error that is not about a guess of ours."""
    own = [it for it in errors if isinstance(it, NameError | AttributeError | NotImplementedError)]
    return (own or errors)[0]


def _shapes(result: object) -> str:
    return ", ".join(str(tuple(it.shape)) for it in _tensors(result)) or type(result).__name__


def drawn(way: CallingConvention, B: int, T: int, dtype: torch.dtype, seed: int = 0) -> Inputs:
    """Random tokens: standard normal vectors, or ids."""
    noise = torch.Generator().manual_seed(seed)
    if way.vocabulary:
        ids = torch.randint(0, way.vocabulary, (B, T), generator=noise)
        return Inputs({way.names[0]: ids}, way.vocabulary)

    def draw() -> Tensor:
        numbers = torch.randn(B, T, *way.features, generator=noise, dtype=torch.float64)
        return way.contiguous(numbers.to(dtype))

    first = draw()
    others = {name: first if way.same_tokens else draw() for name in way.names[1:]}
    return Inputs({way.names[0]: first, **others})


def _ways(target: Target, example: Any, causal: bool | None) -> Iterator[CallingConvention]:
    if isinstance(example, tuple | list):
        names, needed = arguments_of_example(target, example)
    else:
        names, needed = token_arguments(target)
    attends = needed_mask(target, causal)
    if example is not None:
        ways = _ways_of_example(target, example, names)
    else:
        contexts = tuple(it for it in optional_contexts(target) if it not in names)
        ways = [
            *_plain_ways(target, names),
            *(_plain_ways(target, names + contexts) if contexts else ()),
        ]
    flag, targets = switched(target, causal), with_targets(target)
    for way in ways:
        for more in (*([flag] if flag else ()), {}, *([targets] if targets else ())):
            for constants in with_masks(needed | more):
                yield replace(way, constants=constants, visible_keys=attends)


def _plain_ways(target: Target, names: tuple[str, ...]) -> Iterator[CallingConvention]:
    module = target.module
    if module is None or next(module.parameters(), None) is None:
        yield from _ways_of_function(target, names)
        return
    vocabulary = _vocabulary(module)
    if vocabulary and (names[0] in IDS or isinstance(next(_leaves(module)), nn.Embedding)):
        yield CallingConvention("(B, T) ids", names[:1], (), vocabulary)
    likely, unlikely = _layouts(target)
    for layout in (likely, "(T, C)", unlikely):
        for width in _widths(module):
            yield CallingConvention(layout, names, (width,), same_tokens=True)


def _ways_of_function(target: Target, names: tuple[str, ...]) -> Iterator[CallingConvention]:
    """Of query, key and value, with heads if it can be; or of tokens."""
    if len(names) < 3:
        yield from (
            CallingConvention(layout, names, (WIDTH,)) for layout in ("(B, T, C)", "(T, C)")
        )
        return
    heads = "(B, T, H, D)" if heads_come_last(target.callee) else "(B, H, T, D)"
    yield CallingConvention(heads, names, (HEADS, HEAD_SIZE))
    yield from (
        CallingConvention(layout, names, (HEAD_SIZE,)) for layout in ("(T, C)", "(B, T, C)")
    )


def _ways_of_example(
    target: Target, example: Any, names: tuple[str, ...]
) -> Iterator[CallingConvention]:
    """As the example shows; one tensor is the tokens in every argument that takes any."""
    alike = isinstance(example, Tensor)
    first = example if alike else example[0]
    if not first.is_floating_point():
        yield CallingConvention("(B, T) ids", names[:1], (), int(first.max()) + 1)
    elif first.dim() == 4:
        for layout, heads in (("(B, H, T, D)", first.shape[1]), ("(B, T, H, D)", first.shape[2])):
            yield CallingConvention(layout, names, (heads, first.shape[3]), same_tokens=alike)
    else:
        for layout in ("(T, C)",) if first.dim() == 2 else _layouts(target):
            yield CallingConvention(layout, names, (first.shape[-1],), same_tokens=alike)


def _layouts(target: Target) -> tuple[str, str]:
    """Batches of sequences, the likelier first."""
    tokens_first = target.module is not None and tokens_come_first(target.module)
    return ("(T, B, C)", "(B, T, C)") if tokens_first else ("(B, T, C)", "(T, B, C)")


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    yield from (part for part in module.modules() if not list(part.children()))


def _vocabulary(module: nn.Module) -> int:
    return next((it.num_embeddings for it in module.modules() if isinstance(it, nn.Embedding)), 0)


def _widths(module: nn.Module) -> list[int]:
    """How many features a token may have, the likeliest first."""
    found: list[int] = []
    for part in module.modules():
        for name in ("d_in", "embed_dim", "d_model", "n_embd", "hidden_size", "dim"):
            if isinstance(size := getattr(part, name, None), int) and not isinstance(size, bool):
                found.append(size)
        if isinstance(part, nn.Linear):
            found.append(part.in_features)
    for parameter in module.parameters():
        found += list(parameter.shape)
    return [it for it in dict.fromkeys(found) if it > 1][:8] or [WIDTH]
