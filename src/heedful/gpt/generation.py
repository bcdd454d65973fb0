"""Generation of new tokens after prompts, and the sampling of each token.

The model reads at most `context_length` tokens. When the context is full, the oldest half is dropped and the newer half
is read again from position 0 on. The position at which a window begins (`window_start`) depends only on the number of
tokens before the step, not on which of them were the prompt, nor on the rest of the batch. So the logits of each step
are those that the model computes for its window without a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError
from heedful.gpt.model import GPT
from heedful.masks import Padding
from heedful.nn import KVCache
from heedful.parallel.axes import Group
from heedful.textbook.checks import check_sizes


@dataclass(frozen=True)
class Sampling:
    """The way in which a token is chosen from its logits.

    Args:
        temperature: divides the logits; below 1 likely tokens become likelier. 0 always takes the likeliest token.
        top_k: sample from the k likeliest tokens only (Fan et al. 2018, section 5.4).
        top_p: sample from the smallest set of likeliest tokens that together have this probability (Holtzman et al.
            2020, section 3.1).
        seed: the seed of the random numbers; None uses torch's global generator.

    Raises:
        ArgumentError: the temperature is below 0, top_k below 1, top_p outside (0, 1], or the seed outside
            0 … 2^63 - 1.

    Examples:
        >>> logits = torch.tensor([[0.1, 0.7, 0.2]]).log()
        >>> Sampling(temperature=0).sample(logits, generator=None)
        tensor([1])
        >>> Sampling(top_k=1).sample(logits, generator=None)
        tensor([1])
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
                remedy="0 takes the likeliest token; 1 samples from the model's own probabilities.",
            )
        if self.top_k is not None:
            check_sizes(top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ArgumentError(
                "top_p",
                expected="a probability above 0, up to 1",
                received=repr(self.top_p),
                remedy="0.9 excludes the unlikely tokens that together have a probability of 0.1.",
            )
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ArgumentError(
                "seed",
                expected="a whole number from 0 to 2^63 - 1",
                received=repr(self.seed),
                remedy="Any of these will do; the same seed samples the same tokens.",
            )

    def generator(self, device: torch.device) -> torch.Generator | None:
        """Return a new generator with the seed, or None for torch's global one."""
        return None if self.seed is None else torch.Generator(device).manual_seed(self.seed)

    def sample(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Choose one token per row.

        Args:
            logits: (B, vocab_size), of any floating-point dtype.
            generator: the source of random numbers; None uses torch's global one.

        Returns:
            The tokens: (B,), int64.

        Raises:
            ArgumentError: the largest logit of a row is NaN or infinite.
        """
        largest = logits.amax(dim=-1, keepdim=True)
        if not largest.isfinite().all():  # NaN is the largest as well
            raise ArgumentError(
                "logits",
                expected="finite largest logits",
                received=str(largest[~largest.isfinite()][0].item()),
                remedy="The model computes no numbers: its weights are damaged, or its training diverged.",
            )
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        # Subtracting the largest in float64 keeps the likeliest token's logit at 0 for tiny temperatures.
        logits = ((logits.double() - largest.double()) / self.temperature).float()
        if self.top_k is not None:
            likeliest = logits.topk(min(self.top_k, logits.shape[-1])).values
            logits = logits.masked_fill(logits < likeliest[:, -1:], -torch.inf)
        if self.top_p is not None:
            descending, order = logits.sort(descending=True)
            probabilities = descending.softmax(dim=-1)
            preceding = probabilities.cumsum(dim=-1) - probabilities  # 0 for the likeliest token
            descending = descending.masked_fill(preceding >= self.top_p, -torch.inf)
            logits = logits.scatter(-1, order, descending)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator).squeeze(-1)


GREEDY: Sampling = Sampling(temperature=0.0)

NextTokens = list[int | None]


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampling: Sampling = Sampling(),
    stop: int | None = None,
    group: Group | None = None,
) -> list[list[int]]:
    """Generate a continuation of each prompt.

    Args:
        model: the model, in training or eval mode; it runs without dropout, and its mode is restored.
        prompts: token ids, at least one prompt with at least one token; their lengths may differ and may exceed the
            context.
        tokens: the maximum number of new tokens per prompt.
        sampling: how tokens are chosen; `GREEDY` takes the likeliest.
        stop: the token that ends a text; it is not part of the result.
        group: ranks of which each keeps some keys and values of every layer (`ShardedKVCache`), so that longer texts
            fit. All ranks call generate() alike, and get the same tokens; sampling needs the same seed on all.

    Returns:
        The new tokens of each prompt, without the prompt. A prompt's tokens do not depend on the rest of the batch,
        apart from the random numbers of sampling.

    Raises:
        ArgumentError: there is no prompt, a prompt is empty, or an id is outside the vocabulary.
        RankError: with a group, a rank generates other tokens than the rest, or has ended.

    Examples:
        >>> from heedful.gpt import GPT, GPTConfig
        >>> config = GPTConfig.llama(vocab_size=50, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1)
        >>> texts = generate(GPT(config), [[1, 2, 3], [4]], tokens=5, sampling=Sampling(seed=0))
        >>> [len(text) for text in texts]
        [5, 5]
    """
    texts: list[list[int]] = [[] for _ in prompts]
    for step in stream(model, prompts, tokens=tokens, sampling=sampling, stop=stop, group=group):
        for text, token in zip(texts, step, strict=True):
            if token is not None:
                text.append(token)
    return texts


def stream(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    sampling: Sampling = Sampling(),
    stop: int | None = None,
    group: Group | None = None,
) -> Iterator[NextTokens]:
    """Generate a continuation of each prompt, one step at a time.

    The arguments and errors are those of `generate`.

    Returns:
        An iterator over steps: the next token of each prompt, or None once its text has ended.

    Examples:
        >>> from heedful.gpt import GPT, GPTConfig
        >>> config = GPTConfig.llama(vocab_size=50, d_model=16, num_layers=1, num_heads=2, num_kv_heads=1)
        >>> len(list(stream(GPT(config), [[1, 2, 3]], tokens=4)))
        4
    """
    check_sizes(tokens=tokens)
    if not prompts or not all(prompts):
        raise ArgumentError(
            "prompts",
            expected="one prompt or more, each of one token or more",
            received=f"lengths {[len(prompt) for prompt in prompts]}",
            remedy="To begin a new text, pass the token that ends a text.",
        )
    return _steps(Reader(model, prompts, tokens, group), tokens, sampling, stop)


@torch.inference_mode()
def _steps(
    reader: Reader, tokens: int, sampling: Sampling, stop: int | None
) -> Iterator[NextTokens]:
    generator = sampling.generator(reader.device)
    ended = [False] * len(reader.texts)
    for _ in range(tokens):
        chosen = sampling.sample(reader.logits(), generator).tolist()
        ended = [done or token == stop for done, token in zip(ended, chosen, strict=True)]
        if all(ended):
            return
        yield [None if done else token for done, token in zip(ended, chosen, strict=True)]
        reader.append(chosen)


class Reader:
    """Texts that grow by a token at a time, and the model that reads each token once, by means of caches.

    Args:
        model: the model.
        prompts: the texts to begin with; shorter ones are padded on the left.
        growth: the maximum number of tokens that will be appended to each text.
        group: the ranks that the caches are sharded over; None: they are not.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        growth: int,
        group: Group | None = None,
    ) -> None:
        self.model: GPT = model
        self.device: torch.device = model.head.weight.device
        self.texts: list[list[int]] = [list(prompt) for prompt in prompts]
        self.context_length: int = model.config.context_length
        self.capacity: int = min(max(map(len, prompts)) + growth, self.context_length)
        self.starts: list[int] = []  # of the windows in the caches; empty before the first step
        self.caches: Sequence[KVCache] = []
        self._group: Group | None = group

    def append(self, tokens: Sequence[int]) -> None:
        """Append one token to each text."""
        for text, token in zip(self.texts, tokens, strict=True):
            text.append(token)

    def logits(self) -> Tensor:
        """Return the logits of the token after each text: (B, vocab_size)."""
        starts = [window_start(len(text), self.context_length) for text in self.texts]
        if starts != self.starts:
            self.starts = starts
            self.caches = self.model.new_caches(len(starts), self.capacity, self._group)
        windows = [text[start:] for text, start in zip(self.texts, starts, strict=True)]
        past, T = self.caches[0].length, max(map(len, windows))
        rows = [([0] * (T - len(window)) + window)[past:] for window in windows]
        tokens = torch.tensor(rows, device=self.device)  # (B, T - past)
        mask = positions = None
        if any(len(window) < T for window in windows):
            lengths = torch.tensor([len(window) for window in windows], device=self.device)
            mask = Padding(lengths, side="left")
            slots = torch.arange(past, T, device=self.device)
            positions = slots - (T - lengths).unsqueeze(-1)
            positions = positions.clamp(min=0)  # padding needs a valid position, whichever it is
        with evaluating(self.model):
            hidden, self.caches = self.model.read(tokens, mask, positions, self.caches)
            return self.model.head(hidden[:, -1])


def window_start(length: int, context_length: int) -> int:
    """Return the start of the window that predicts the token after `length` tokens.

    The start moves by half a context at a time.

    Examples:
        >>> [window_start(length, context_length=4) for length in range(1, 9)]
        [0, 0, 0, 0, 2, 2, 4, 4]
    """
    half = max(context_length // 2, 1)
    return -(-max(length - context_length, 0) // half) * half


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in eval mode inside the block, and restore its mode afterwards."""
    was_training = model.training
    if was_training:
        model.eval()  # visits every submodule, so only when needed
    try:
        yield
    finally:
        if was_training:
            model.train()
