"""New tokens after prompts: read what there is, choose what comes next, and read on with that.

The model reads at most `context_length` tokens. When they are full, the oldest half is dropped and the newer half is
read again, from position 0 on. Where a step's window begins depends on how many tokens precede it alone
(`window_start`), not on which of them were the prompt, nor on what else is in the batch: each step's logits are those
that the model gives for its window without any cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.gpt.sampling import Choice
from heedful.gpt.model import GPT
from heedful.masks import Padding
from heedful.nn import KVCache
from heedful.textbook.checks import check_sizes

Step = list[int | None]


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    choice: Choice = Choice(),  # noqa: B008 - frozen
    stop: int | None = None,
) -> list[list[int]]:
    """What the model says after each prompt, without the prompt.

    Args:
        model: in training or eval mode, which it has again afterwards; nothing is dropped.
        prompts: token ids, one list or more, of any lengths, also beyond the context.
        tokens: the most new tokens for each prompt.
        choice: how they are chosen; `GREEDY` takes the likeliest.
        stop: the token that ends a text; it is not part of the result.

    Raises:
        ArgumentError: no prompt, one without tokens or with ids outside the vocabulary.
    """
    texts: list[list[int]] = [[] for _ in prompts]
    for step in stream(model, prompts, tokens=tokens, choice=choice, stop=stop):
        for text, token in zip(texts, step, strict=True):
            if token is not None:
                text.append(token)
    return texts


def stream(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    choice: Choice = Choice(),  # noqa: B008 - frozen
    stop: int | None = None,
) -> Iterator[Step]:
    """As `generate`, step by step: each prompt's next token, or None once its text has ended."""
    check_sizes(tokens=tokens)
    if not prompts or not all(prompts):
        raise ArgumentError(
            "prompts",
            expected="one prompt or more, each of one token or more",
            received=f"lengths {[len(prompt) for prompt in prompts]}",
            remedy="To begin from nothing, begin with the token that ends a text.",
        )
    return _steps(Reader(model, prompts, tokens), tokens, choice, stop)


@torch.inference_mode()
def _steps(reader: Reader, tokens: int, choice: Choice, stop: int | None) -> Iterator[Step]:
    generator = choice.generator(reader.device)
    ended = [False] * len(reader.texts)
    for _ in range(tokens):
        chosen = choice.tokens(reader.logits(), generator).tolist()
        ended = [done or token == stop for done, token in zip(ended, chosen, strict=True)]
        if all(ended):
            return
        yield [None if done else token for done, token in zip(ended, chosen, strict=True)]
        reader.append(chosen)


class Reader:
    """Texts that grow by a token each, and what the model makes of them; what was read once is kept in caches.

    Args:
        model: reads.
        prompts: the texts to begin with; the shorter ones are padded on the left.
        growth: the most tokens that will be appended to each.
    """

    def __init__(self, model: GPT, prompts: Sequence[Sequence[int]], growth: int) -> None:
        self.model, self.device = model, model.head.weight.device
        self.texts = [list(prompt) for prompt in prompts]
        self.context_length = model.config.context_length
        self.capacity = min(max(map(len, prompts)) + growth, self.context_length)
        self.starts: list[int] = []  # where the windows in the caches begin; none is there yet
        self.caches: list[KVCache] = []

    def append(self, tokens: Sequence[int]) -> None:
        """One more token for each text."""
        for text, token in zip(self.texts, tokens, strict=True):
            text.append(token)

    def logits(self) -> Tensor:
        """Of the token after each text: (B, vocab_size)."""
        starts = [window_start(len(text), self.context_length) for text in self.texts]
        if starts != self.starts:
            self.starts, self.caches = starts, self.model.new_caches(len(starts), self.capacity)
        windows = [text[start:] for text, start in zip(self.texts, starts, strict=True)]
        past, T = self.caches[0].length, max(map(len, windows))
        rows = [([0] * (T - len(window)) + window)[past:] for window in windows]
        tokens = torch.tensor(rows, device=self.device)  # (B, T - past)
        mask = positions = None
        if any(len(window) < T for window in windows):
            lengths = torch.tensor([len(window) for window in windows], device=self.device)
            mask = Padding(lengths, side="left")
            slots = torch.arange(past, T, device=self.device)
            positions = (slots - (T - lengths).unsqueeze(-1)).clamp(
                min=0
            )  # the padding's matter to no one
        with evaluating(self.model):
            hidden, self.caches = self.model.read(tokens, mask, positions, self.caches)
            return self.model.head(hidden[:, -1])


def window_start(length: int, context_length: int) -> int:
    """Where the window begins that predicts the token after `length` tokens: it moves by half a context."""
    half = max(context_length // 2, 1)
    return -(-max(length - context_length, 0) // half) * half


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards the mode that it was."""
    was_training = model.training
    if was_training:
        model.eval()  # asks every module, so not for nothing
    try:
        yield
    finally:
        if was_training:
            model.train()
