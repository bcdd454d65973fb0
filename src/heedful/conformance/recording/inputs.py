"""What a subject is given, in one form for all targets, and what a run of it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from heedful.observation import Trace


@dataclass(frozen=True, eq=False)
class Inputs:
    """Sequences of tokens, in one layout for all targets.

    Attributes:
        arguments: the arguments that have a row for each token: x alone, or query, key and value. Each is (B, T, …), or
            (B, T) int64 for a model that reads token ids.
        vocabulary: of how many ids; 0 where tokens are vectors.
    """

    arguments: Mapping[str, Tensor]
    vocabulary: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """B and T."""
        B, T = next(iter(self.arguments.values())).shape[:2]
        return B, T

    def changed(self, b: int, t: int, only: Sequence[str] | None = None) -> Inputs:
        """With another token at t of batch entry b: other vectors, or another id; in all arguments, or in some."""

        def change(tensor: Tensor) -> Tensor:
            tensor = tensor.clone()
            if self.vocabulary:
                tensor[b, t] = (tensor[b, t] + 1 + t) % self.vocabulary
            else:
                noise = torch.Generator().manual_seed(7919 * b + t)
                new = torch.randn(tensor[b, t].shape, generator=noise, dtype=torch.float64)
                tensor[b, t] = new.to(tensor.dtype)
            return tensor

        names = self.arguments if only is None else only
        return self._with({name: change(self.arguments[name]) for name in names})

    def tokens(self, start: int, stop: int) -> Inputs:
        """Tokens `start` to `stop` of every batch entry."""
        return self._with({name: it[:, start:stop].clone() for name, it in self.arguments.items()})

    def entry(self, b: int) -> Inputs:
        """Batch entry b alone: B = 1."""
        return self._with({name: it[b : b + 1].clone() for name, it in self.arguments.items()})

    def scaled(self, factor: float) -> Inputs:
        """With longer vectors; ids stay."""
        if self.vocabulary:
            return self
        return self._with({name: it * factor for name, it in self.arguments.items()})

    def _with(self, arguments: Mapping[str, Tensor]) -> Inputs:
        return replace(self, arguments={**self.arguments, **arguments})


@dataclass(frozen=True, eq=False)
class Observation:
    """One recorded run.

    Attributes:
        inputs: what it was run on.
        output: (B, T, …), one row a token.
        trace: its steps.
        values: tensors that no step made, by (kind, name) of their `Source`: inputs, parameters, buffers, attributes.
        before: how many tokens a cache held already.
    """

    inputs: Inputs
    output: Tensor
    trace: Trace
    values: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)
    cached_tokens: int = 0


@dataclass(frozen=True)
class MaskArgument:
    """An argument that is a mask.

    Attributes:
        name: as the target calls it.
        form: its shape in letters: "(B, T)", "(T, T)", "(B, 1, 1, T)", …
        dtype: torch.bool, or a floating dtype: 0 and −inf are added to the scores; int64: 1 and 0.
        true_keeps: whether True (or 1) means that a token is seen.
        declared: the polarity that its name promises by convention (key_padding_mask: True hides; attention_mask:
            1 keeps); None where the field has no one meaning.
        effective: whether it changes the output at all.
        hides: whether a token that it hides changes nothing any more.
    """

    name: str
    form: str
    dtype: torch.dtype
    true_keeps: bool
    declared: bool | None = None
    effective: bool = True
    hides: bool = True


@dataclass(frozen=True)
class CacheUse:
    """How a target is given a cache.

    Attributes:
        kind: "object" (made first and passed in; it comes back, or is changed in place), "grown" (None at first, then
            what came back), "buffers" (kept in the module, which is told a position or a flag).
        argument: the name of the argument: the cache's, the position's or the flag's.
        capacity: whether there are slots beyond those used.
    """

    kind: str
    argument: str
    capacity: bool = False
