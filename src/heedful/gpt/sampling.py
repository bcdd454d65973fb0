"""Which token comes next: the likeliest, or one drawn from the likely ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.textbook.checks import check_sizes


@dataclass(frozen=True)
class Choice:
    """How a token is chosen by its logits.

    Args:
        temperature: divides the logits; below 1 the likely become likelier. 0: always the likeliest (greedy).
        top_k: draw from the k likeliest alone.
        top_p: draw from the likeliest alone, as few as together have this probability (Holtzman et al. 2020).
        seed: what is drawn from; None: torch's global generator.

    Raises:
        ArgumentError: a temperature below 0, a top_k below 1, a top_p outside (0, 1], a seed outside 0 … 2^63 - 1.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ArgumentError(
                "temperature",
                expected="a finite number of at least 0",
                received=repr(self.temperature),
                remedy="0 takes the likeliest token, 1 draws as the model says.",
            )
        if self.top_k is not None:
            check_sizes(top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ArgumentError(
                "top_p",
                expected="a probability above 0, up to 1",
                received=repr(self.top_p),
                remedy="0.9 leaves out the unlikely tokens that together have 0.1.",
            )

        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ArgumentError(
                "seed",
                expected="a whole number from 0 to 2^63 - 1",
                received=repr(self.seed),
                remedy="Any will do; the same draws the same again.",
            )

    def generator(self, device: torch.device) -> torch.Generator | None:
        """A new one, at the seed; None: torch's global one."""
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)

    def tokens(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """One for each row: logits (B, vocab_size) to int64 (B,)."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        logits = logits.float() / self.temperature
        if self.top_k is not None:
            likeliest = logits.topk(min(self.top_k, logits.shape[-1])).values
            logits = logits.masked_fill(logits < likeliest[:, -1:], -torch.inf)
        if self.top_p is not None:
            descending, order = logits.sort(descending=True)
            probabilities = descending.softmax(dim=-1)
            likelier = (
                probabilities.cumsum(dim=-1) - probabilities
            )  # 0 for the likeliest: it always stays
            descending = descending.masked_fill(likelier >= self.top_p, -torch.inf)
            logits = logits.scatter(-1, order, descending)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(-1)


GREEDY = Choice(temperature=0.0)
