"""Finding out how a target is called: its arguments, its layout, what of its result is the output."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.construction import HEAD_SIZE, HEADS, WIDTH
from heedful.conformance.runs import restored, seeded
from heedful.conformance.subject import Inputs
from heedful.conformance.target import Target, TargetError
from heedful.errors import ArgumentError

TRIAL = (3, 5)  # B and T of the first call

IDS = ("input_ids", "tokens", "idx", "ids", "token_ids", "input")
MEMORIES = ("memory", "context", "encoder_hidden_states", "kv", "source")
QUERIES = ("query", "q", "queries", "Q")
KEYS = ("key", "k", "keys", "K")
VALUES = ("value", "v", "values", "V")
STARTS = ("start_pos", "input_pos", "start", "offset", "position", "pos")
TABLES = ("position_embeddings", "freqs_cis", "rope", "rotary_pos_emb", "freqs_cos", "freqs_sin", "cos", "sin")  # fmt: skip
POSITIONS = ("position_ids", "positions", "pos_ids", "cache_position")


@dataclass(frozen=True, eq=False)
class Way:
    """How a target takes tokens and gives rows.

    Attributes:
        layout: "(B, T, C)", "(T, B, C)", "(T, C)", "(B, H, T, D)" or "(B, T) ids".
        names: the arguments that have a row for each token, as the target calls them.
        features: the shape of one token.
        vocabulary: of how many ids; 0 for vectors.
        constants: what else it needs: a value, or a function of (B, T, dtype) that makes one.
        alike: whether all the arguments are the same tokens, as self-attention takes them.
    """

    layout: str
    names: tuple[str, ...]
    features: tuple[int, ...]
    vocabulary: int = 0
    constants: Mapping[str, Any] = field(default_factory=dict)
    alike: bool = False

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """What the target is given, by name."""
        B, T = inputs.sizes
        given: dict[str, Any] = {name: self.laid_out(it) for name, it in inputs.arguments.items()}
        dtype = next(iter(inputs.arguments.values())).dtype
        for name, constant in self.constants.items():
            given[name] = constant(B, T, dtype) if callable(constant) else constant
        return given

    def laid_out(self, tokens: Tensor) -> Tensor:
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


def way_of(target: Target, example: Any) -> tuple[Way, torch.dtype]:
    """The first way to call the target that works, and the dtype: float64, or float32 where only that does.

    Raises:
        TargetError: every way fails within the target's own code.
        ArgumentError: it needs what cannot be guessed.
    """
    errors: list[BaseException] = []
    for dtype in (torch.float64, torch.float32):
        callee = target.copied(dtype)
        for way in _ways(target, example):
            B, T = (1, TRIAL[1]) if way.layout == "(T, C)" else TRIAL
            inputs = drawn(way, B, T, dtype)
            try:
                with torch.no_grad(), seeded(), restored(target.module and callee):  # pyright: ignore[reportArgumentType]
                    result = callee(**way.arguments(inputs))
            except Exception as error:  # noqa: BLE001 - whatever it raises, the next way may do
                errors.append(error)
                continue
            if way.rows(result, B, T) is not None:
                return way, dtype
            errors.append(
                TypeError(f"its result has no row for each of {T} tokens: {_shapes(result)}")
            )
    raise TargetError(target.name) from _most_telling(errors)


def _most_telling(errors: list[BaseException]) -> BaseException:
    """An error that is not about a guess of ours."""
    own = [it for it in errors if isinstance(it, NameError | AttributeError | NotImplementedError)]
    return (own or errors)[0]


def _shapes(result: object) -> str:
    return ", ".join(str(tuple(it.shape)) for it in _tensors(result)) or type(result).__name__


def drawn(way: Way, B: int, T: int, dtype: torch.dtype, seed: int = 0) -> Inputs:
    """Random tokens: standard normal vectors, or ids."""
    noise = torch.Generator().manual_seed(seed)
    if way.vocabulary:
        ids = torch.randint(0, way.vocabulary, (B, T), generator=noise)
        return Inputs({way.names[0]: ids}, way.vocabulary)

    def draw() -> Tensor:
        numbers = torch.randn(B, T, *way.features, generator=noise, dtype=torch.float64)
        return way.contiguous(numbers.to(dtype))

    first = draw()
    others = {name: first if way.alike else draw() for name in way.names[1:]}
    return Inputs({way.names[0]: first, **others})


def _ways(target: Target, example: Any) -> Iterator[Way]:
    names, constants = _token_arguments(target)
    if example is not None:
        yield from _ways_of_example(example, names, constants)
        return
    module = target.module
    if module is None:
        three = len(names) >= 3
        if three:
            yield Way("(B, H, T, D)", names, (HEADS, HEAD_SIZE), constants=constants)
        yield Way("(B, T, C)", names, (HEAD_SIZE if three else WIDTH,), constants=constants)
        yield Way("(T, C)", names, (HEAD_SIZE if three else WIDTH,), constants=constants)
        return
    vocabulary = _vocabulary(module)
    if vocabulary and (names[0] in IDS or isinstance(next(_leaves(module)), nn.Embedding)):
        yield Way("(B, T) ids", names[:1], (), vocabulary, constants)
    sequence_first = _is_sequence_first(module)
    layouts = ["(T, B, C)", "(B, T, C)"] if sequence_first else ["(B, T, C)", "(T, B, C)"]
    for layout in (*layouts[:1], "(T, C)", *layouts[1:]):
        for width in _widths(module):
            yield Way(layout, names, (width,), constants=constants, alike=True)


def _ways_of_example(
    example: Any, names: tuple[str, ...], constants: Mapping[str, Any]
) -> Iterator[Way]:
    first = example if isinstance(example, Tensor) else example[0]
    count = 1 if isinstance(example, Tensor) else sum(isinstance(it, Tensor) for it in example)
    if not first.is_floating_point():
        yield Way("(B, T) ids", names[:1], (), int(first.max()) + 1, constants)
    elif first.dim() == 4:
        yield Way(
            "(B, H, T, D)", names[:count], (first.shape[1], first.shape[3]), constants=constants
        )
    else:
        for layout in ("(T, C)",) if first.dim() == 2 else ("(B, T, C)", "(T, B, C)"):
            yield Way(layout, names[:count], (first.shape[-1],), constants=constants)


def _token_arguments(target: Target) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments that have a row for each token, and what else has to be given.

    Raises:
        ArgumentError: a needed argument that nothing is known of.
    """
    parameters = inspect.signature(target.forward).parameters
    needed = [
        name for name, it in parameters.items()
        if it.default is it.empty and it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)
    ]  # fmt: skip
    constants: dict[str, Any] = {}
    for name in ("position_embeddings",):
        if name in parameters:
            needed = [*needed, *([name] if name not in needed else [])]
    if not needed:
        needed = [name for name in parameters if name in (*IDS, "x", "hidden_states")][:1]
    if not needed:
        raise ArgumentError(
            "target",
            expected="an argument for the tokens",
            received=f"{target.name}({', '.join(parameters)})",
            remedy="Name it x, or query, key and value.",
        )
    tokens = [needed[0]]
    for name in needed[1:]:
        if name in (*QUERIES, *KEYS, *VALUES, *MEMORIES):
            tokens.append(name)
        else:
            constants[name] = _constant(target, name)
    return tuple(tokens), constants


def _constant(target: Target, name: str) -> Any:
    if name in STARTS:
        return 0
    if "mask" in name or name in POSITIONS or "cache" in name or "past" in name:
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
    """Rotary angles of positions 0 … T − 1: (cos, sin) as transformers makes them, or complex as Llama's own code does."""
    D = _head_size(module)
    frequencies = 10_000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angles = torch.arange(T)[:, None] * frequencies
    if name == "freqs_cis":
        return torch.polar(torch.ones_like(angles), angles)
    whole = torch.cat([angles, angles], dim=-1)[None].expand(B, T, D)
    cos, sin = whole.cos().to(dtype), whole.sin().to(dtype)
    if name.endswith("cos"):
        return cos
    return sin if name.endswith("sin") else (cos, sin)


def _head_size(module: nn.Module | None) -> int:
    for part in () if module is None else module.modules():
        for name in ("head_dim", "head_size", "d_head"):
            if isinstance(size := getattr(part, name, None), int):
                return size
    return HEAD_SIZE


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


def _is_sequence_first(module: nn.Module) -> bool:
    """Whether a module says, or its code shows, that the first axis of its input is that of tokens."""
    parts = [module]
    if type(module).__module__.startswith(
        "torch."
    ):  # a layer of torch's is as the attention within it
        parts += module.modules()
    for part in parts:
        if isinstance(declared := getattr(part, "batch_first", None), bool):
            return not declared
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second), *_])],
                value=ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size")),
            ):
                return first.lower() in _TOKEN_SIZES and second.lower() in _BATCH_SIZES
    return False


_TOKEN_SIZES = ("t", "n", "l", "s", "seq", "seq_len", "seqlen", "length", "tgt_len", "src_len", "num_tokens", "q_len", "tokens")  # fmt: skip
_BATCH_SIZES = ("b", "bs", "bsz", "batch", "batch_size", "batchsize", "n")
