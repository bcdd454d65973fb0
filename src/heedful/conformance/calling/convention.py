"""The calling convention of a target: how it takes tokens, and where its result holds a row for each token."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.recording.inputs import Inputs, ordinary_ids
from heedful.observation.leaves import leaves_of

# Stands for a second sequence, the same in every call, to which a decoder attends beside its own.
MEMORY = object()
MEMORY_TOKENS = 2  # unlike the number of sequences, so that a mask of keys does not fit as one of queries and keys

SIGNAL = "(B, C, T)"
IMAGES = ("(B, C, Y, X)", "(B, Y, X, C)")
VIDEOS = ("(B, C, Z, Y, X)", "(B, Z, Y, X, C)")
FRAMES = "(B, Z, C, Y, X)"  # a video as a sequence of images
# By the number of axes, channels first and channels last.
MAPS: dict[int, tuple[str, str]] = {4: IMAGES, 5: VIDEOS}
TOKEN_AXES = ("T", "Z", "Y", "X")  # the letters of axes that hold tokens: a sequence, or pixels

Constants = Mapping[str, Any]
VisibleKeys = Callable[[int, int], Tensor]  # (Tq, Tk) Boolean, of the Tq newest of Tk tokens


@dataclass(frozen=True, eq=False)
class CallingConvention:
    """The way in which a target takes tokens and returns rows.

    Attributes:
        layout: "(B, T, C)", "(T, B, C)", "(B, C, T)", "(T, C)", "(B, H, T, D)", "(B, T, H, D)", "(B, T) ids"
            or "(T, B) ids"; or that of a feature map whose pixels are the tokens, such as "(B, C, Y, X)" or
            "(B, Y, X, C)"; or with more axes of features.
        names: The arguments that take one row per token.
        features: The shape of one token.
        vocabulary: The number of token ids; 0 if tokens are vectors.
        constants: The other arguments: a value, or a function of (B, T, dtype) that returns one.
        same_tokens: Whether all arguments get the same tokens, as in self-attention.
        visible_keys: The keys that each query may see, if the caller has to pass that mask in every call.
        fixed_sizes: The only B and T that work, if a tensor at module level or an example requires them.
        max_tokens: The number of tokens for which an example has arguments; None if there is no such limit.
        guessed: Whether a constant is guessed, or part of an example, so that a failure with other sizes is no proof.
        from_example: Whether the constants are those of an example.
        by_trial: Whether the example is one of ours, which was found by trial, so that the roles of its arguments are
            guesses.
        other_features: The shapes of one token of arguments whose tokens are of another width.
        grid: The height and width of an example's feature map, whose pixels are the tokens.
        pooled: Whether the result has no row for each token, so that it stands for the row of each of them.
        packed: Whether the result holds the rows of all sequences one after another, (B · T, C).
        skipped: The number of tensors in the result before the output, which hold the rows of other tokens.
        rows_before: The number of rows of the result before those of the tokens, as of a start that the target puts
            before them.
        leaf_names: What the target's code calls leaves within an example's arguments, by their names here.
    """

    layout: str
    names: tuple[str, ...]
    features: tuple[int, ...]
    vocabulary: int = 0
    constants: Constants = field(default_factory=dict)
    same_tokens: bool = False
    visible_keys: VisibleKeys | None = None
    fixed_sizes: tuple[int, int] | None = None
    max_tokens: int | None = None
    guessed: bool = False
    from_example: bool = False
    by_trial: bool = False
    other_features: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    pooled: bool = False
    packed: bool = False
    skipped: int = 0
    rows_before: int = 0
    leaf_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def batched(self) -> bool:
        """True if a call takes more than one sequence."""
        return self.layout != "(T, C)"

    @property
    def is_unsure(self) -> bool:
        """True if an argument of an unknown role has a value of ours, which may mix what should not mix."""
        return self.guessed and (self.by_trial or not self.from_example)

    @property
    def is_image(self) -> bool:
        """True if tokens are the pixels of a feature map."""
        return "X" in self._letters

    @property
    def links_tokens(self) -> bool:
        """True if an argument of an example that is not called a mask has a number for each pair of tokens."""
        return any(
            getattr(it, "is_of_pairs", False)
            for name, it in self.constants.items()
            if "mask" not in name
        )

    @property
    def leaves(self) -> tuple[str, ...]:
        """The names of the leaves within an example's arguments, such as "batch['mask']"."""
        values = ((name, getattr(it, "value", None)) for name, it in self.constants.items())
        return tuple(f"{name}{path}" for name, it in values for path, _ in leaves_of(it) if path)

    def word_for(self, name: str) -> str:
        """Return what an argument or a leaf within one is called: "mask" for "batch['mask']"."""
        return self.leaf_names.get(name) or re.findall(r"\w+", name)[-1]

    def draw(self, B: int, T: int, dtype: torch.dtype, seed: int = 0) -> Inputs:
        """Draw random tokens: standard normal vectors, or ids."""
        generator = torch.Generator().manual_seed(seed)
        if self.vocabulary:
            known, shape = ordinary_ids(self.vocabulary), (B, T, *self.features)
            ids = torch.randint(known.start, known.stop, shape, generator=generator)
            return Inputs({self.names[0]: ids}, self.vocabulary)

        def vectors(name: str) -> Tensor:
            shape = (B, T, *self.other_features.get(name, self.features))
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
            return self._contiguous(numbers.to(dtype))

        first = vectors(self.names[0])
        others = {name: first if self.same_tokens else vectors(name) for name in self.names[1:]}
        return Inputs({self.names[0]: first, **others})

    def arguments(self, inputs: Inputs, dtype: torch.dtype) -> dict[str, Any]:
        """Return the arguments of a call, by name, without masks.

        Args:
            inputs: The tokens.
            dtype: The dtype of all other vectors if the tokens are ids, which have none.
        """
        B, T = inputs.sizes
        tokens = next(iter(inputs.arguments.values()))
        dtype = tokens.dtype if tokens.is_floating_point() else dtype
        arguments: dict[str, Any] = {
            name: self._in_layout(tokens) for name, tokens in inputs.arguments.items()
        }
        for name, constant in self.constants.items():
            if constant is MEMORY:
                arguments[name] = self._memory(name, B, dtype)
            else:
                arguments[name] = constant(B, T, dtype) if callable(constant) else constant
        return arguments

    def _memory(self, name: str, B: int, dtype: torch.dtype) -> Tensor:
        """Return random tokens that are the same in each sequence and in each call."""
        generator = torch.Generator().manual_seed(1)
        features = self.other_features.get(name, self.features)
        shape = (1, MEMORY_TOKENS, *features)
        memory = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        memory = memory.repeat(B, 1, *(1 for _ in features))
        return memory if self.vocabulary else self._in_layout(self._contiguous(memory))

    def _in_layout(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, …) in the target's layout."""
        if not self.batched:
            return tokens[0]
        laid_out = tokens.unflatten(1, self.grid_of(tokens.shape[1])).permute(self._order)
        return laid_out.contiguous() if self.is_image else laid_out

    def _contiguous(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, …) that are contiguous in the target's layout."""
        if not self.batched:
            return tokens.contiguous()
        T = tokens.shape[1]
        return self._from_layout(self._in_layout(tokens).contiguous(), T)

    def _from_layout(self, tensor: Tensor, T: int) -> Tensor:
        """Return a tensor in the target's layout as (B, T, …), the inverse of `_in_layout`."""
        axes = len(self.grid_of(T))
        return tensor.permute(_inverse(self._order)).flatten(1, axes)

    def grid_of(self, T: int) -> tuple[int, ...]:
        """Return the sizes of the axes that hold T tokens."""
        axes = sum(letter in TOKEN_AXES for letter in self._letters)
        if math.prod(self.grid) == T and len(self.grid) == axes:
            return self.grid
        if axes == 3 and T % 2 == 0:
            # Two frames, because one alone would not show what is mixed between them.
            return 2, *grid_of(T // 2)
        return (T,) if axes < 2 else (*(1,) * (axes - 2), *grid_of(T))

    @property
    def _letters(self) -> list[str]:
        """A letter for each axis of the tokens."""
        return self.layout.partition(")")[0].strip("(").split(", ")

    @property
    def _order(self) -> list[int]:
        """The axis in (B, T, …) of each axis of the layout, where several axes may stand for T."""
        letters = self._letters
        tokens = [letter for letter in letters if letter in TOKEN_AXES]
        features = [letter for letter in letters if letter not in (*TOKEN_AXES, "B")]
        plain = ["B", *tokens, *features]
        return [plain.index(letter) for letter in letters]

    def rows(self, result: object, B: int, T: int) -> Tensor | None:
        """Return the output (B, T, …) within a result; None if no tensor in it has a row per token."""
        for tensor in islice(output_candidates(result), self.skipped, None):
            rows = self._as_rows(tensor, B, T) if tensor.is_floating_point() else None
            if rows is not None and rows.dim() > 2 and rows.numel() and rows.shape[:2] == (B, T):
                return rows
        return None

    def _as_rows(self, tensor: Tensor, B: int, T: int) -> Tensor | None:
        """Return a tensor in the target's layout as (B, T, …); None if it has other axes."""
        if not self.batched and self.pooled:
            return tensor.reshape(1, 1, -1).expand(1, T, -1)
        if (
            not self.batched
        ):  # rows for each pair of tokens tell that an axis of sequences is missing
            return None if tensor.dim() > 2 and tensor.shape[1] == T else tensor[None]
        if self.packed:
            return tensor.reshape(B, T, -1) if tensor.shape[:1] == (B * T,) else None
        if self.pooled:
            if tensor.dim() > 2 and (self._order[:2] == [1, 0] or len(tensor) != B):
                tensor = tensor.transpose(0, 1) if tensor.shape[1] == B else tensor
            pooled = tensor.dim() > 0 and len(tensor) == B
            return tensor.reshape(B, 1, -1).expand(B, T, -1) if pooled else None
        if self.rows_before:
            has_more = tensor.dim() > 2 and tensor.shape[:2] == (B, self.rows_before + T)
            return tensor[:, self.rows_before :] if has_more else None
        order, grid = self._order, self.grid_of(T)
        if tensor.dim() == len(order):
            at_tokens = [tensor.shape[order.index(axis)] for axis in range(1, 1 + len(grid))]
            return self._from_layout(tensor, T) if at_tokens == [*grid] else None
        if order[:2] == [1, 0] and tensor.dim() > 1:
            return tensor.transpose(0, 1)
        return None if self.layout in ("(B, H, T, D)", SIGNAL) else tensor


def _inverse(order: list[int]) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def grid_of(T: int) -> tuple[int, int]:
    """Return the height and width of a feature map of T pixels, as nearly square as possible."""
    height = next(n for n in range(math.isqrt(T), 0, -1) if T % n == 0)
    return height, T // height


def output_candidates(result: object) -> Iterator[Tensor]:
    """Yield the tensors in a result that may be the output, the most likely first."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for name in names.OUTPUTS:
            if isinstance(result.get(name), Tensor):
                yield result[name]
        yield from (value for value in result.values() if isinstance(value, Tensor))
    elif isinstance(result, tuple | list):
        yield from (value for value in result if isinstance(value, Tensor))
    else:  # an object that holds tensors
        yield from (value for _, value in leaves_of(result) if isinstance(value, Tensor))
