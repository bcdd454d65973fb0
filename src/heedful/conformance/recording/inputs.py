"""The tokens that a target is run on, in one layout for all targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

# The seed of the first token that `Inputs.changed` draws, far from those of whole inputs, which would repeat them.
CHANGES = 1_000_003


@dataclass(frozen=True, eq=False)
class Inputs:
    """Sequences of tokens, in one layout for all targets.

    Attributes:
        arguments: The arguments that have one row for each token: x alone, or query, key and value. Each is
            (B, T, …), or (B, T) int64 for a model that reads token ids.
        vocabulary: The number of token ids; 0 if tokens are vectors.
    """

    arguments: Mapping[str, Tensor]
    vocabulary: int = 0

    @property
    def sizes(self) -> tuple[int, int]:
        """The batch size B and the number of tokens T."""
        B, T = next(iter(self.arguments.values())).shape[:2]
        return B, T

    def changed(self, b: int, t: int, only: Sequence[str] | None = None) -> Inputs:
        """Return inputs with another token at position t of batch entry b: a random vector or another id.

        Args:
            b: The batch entry.
            t: The position of the token.
            only: The names of the arguments to change; all of them by default.
        """

        def change(tensor: Tensor) -> Tensor:
            tensor = tensor.clone()
            if self.vocabulary:
                ids = ordinary_ids(self.vocabulary)
                step = 1 + t % max(len(ids) - 1, 1)
                tensor[b, t] = ids.start + (tensor[b, t] - ids.start + step) % len(ids)
            else:
                generator = torch.Generator().manual_seed(CHANGES + 7919 * b + t)
                vector = torch.randn(tensor[b, t].shape, generator=generator, dtype=torch.float64)
                tensor[b, t] = vector.to(tensor.dtype)
            return tensor

        names = self.arguments if only is None else only
        return self._with({name: change(self.arguments[name]) for name in names})

    def tokens(self, start: int, stop: int) -> Inputs:
        """Return the tokens from `start` up to `stop`, without `stop`, of every batch entry."""
        return self._with(
            {name: tensor[:, start:stop].clone() for name, tensor in self.arguments.items()}
        )

    def entry(self, b: int) -> Inputs:
        """Return batch entry b alone, with B = 1."""
        return self._with(
            {name: tensor[b : b + 1].clone() for name, tensor in self.arguments.items()}
        )

    def scaled(self, factor: float) -> Inputs:
        """Return inputs whose vectors are multiplied by a factor; token ids stay as they are."""
        if self.vocabulary:
            return self
        return self._with({name: tensor * factor for name, tensor in self.arguments.items()})

    def alike(self) -> Inputs:
        """Return inputs in which each sequence repeats its first token."""
        return self._with(
            {name: it[:, :1].expand_as(it).clone() for name, it in self.arguments.items()}
        )

    def _with(self, arguments: Mapping[str, Tensor]) -> Inputs:
        return replace(self, arguments={**self.arguments, **arguments})


def ordinary_ids(vocabulary: int) -> range:
    """Return the ids of a vocabulary's upper half: padding and other special tokens have the first ones."""
    return range(vocabulary // 2 if vocabulary > 3 else 0, vocabulary)
