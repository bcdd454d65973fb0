"""A GPT: token embeddings, blocks of attention and MLP, and a head that predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.masks import Causal, KeyRanges, Mask
from heedful.modes import eager
from heedful.nn import KVCache, MultiHeadAttention, RotaryEmbedding, ShardedKVCache
from heedful.parallel.axes import Group
from heedful.sharded import all_tokens, default_positions


class MLP(nn.Module):
    """The feed-forward layer of a block (Vaswani et al. 2017, section 3.3), or SwiGLU (Shazeer 2020, equation 6).

    Args:
        config: the GPT's configuration.

    Shape:
        x (…, d_model) → (…, d_model)
    """

    # Which layers a tensor-parallel plan splits, by outputs and by inputs: each rank has some of the features.
    column_parallel: ClassVar[tuple[str, ...]] = ("gate", "up")
    row_parallel: ClassVar[tuple[str, ...]] = ("down",)

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, M = config.d_model, config.d_mlp
        self.activation: str = config.activation
        if self.activation == "swiglu":
            self.gate: nn.Linear = nn.Linear(C, M, bias=config.bias)
        self.up: nn.Linear = nn.Linear(C, M, bias=config.bias)
        self.down: nn.Linear = nn.Linear(M, C, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        widened = self.up(x)  # (…, d_mlp)
        if self.activation == "swiglu":
            activated = F.silu(self.gate(x)) * widened
        else:
            approximation = "tanh" if self.activation == "gelu_tanh" else "none"
            activated = F.gelu(widened, approximate=approximation)
        return self.down(activated)


class Block(nn.Module):
    """A block of a GPT: attention and an MLP, each with normalised inputs and a residual connection (pre-norm).

    Args:
        config: the GPT's configuration.
        rotary: the rotary embedding of all blocks; None with learned positions.

    Shape:
        x (B, T, d_model) → (B, T, d_model), with the extended cache, or None without a cache
    """

    def __init__(self, config: GPTConfig, rotary: RotaryEmbedding | None) -> None:
        super().__init__()
        self.attention_norm: nn.Module = build_norm(config)
        self.attention: MultiHeadAttention = MultiHeadAttention(
            config.d_model,
            config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dropout=config.dropout,
            bias=config.bias,
            rotary=rotary,
            window=config.window,
            kernel=config.kernel,
        )
        self.mlp_norm: nn.Module = build_norm(config)
        self.mlp: MLP = MLP(config)
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Mask | Tensor | None, positions: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, KVCache | None]:
        normalised = self.attention_norm(x)
        attended = self.attention(normalised, mask=mask, positions=positions, cache=cache)
        if cache is not None:
            attended, cache = attended
        x = x + self.dropout(attended)
        normalised = self.mlp_norm(x)
        x = x + self.dropout(self.mlp(normalised))
        return x, cache


class GPT(nn.Module):
    """A decoder-only transformer of GPT-2's family (Radford et al. 2019) or Llama's (Touvron et al. 2023).

    Weights are initialised as in GPT-2 (section 2.3): normal with a standard deviation of 0.02, and biases with 0. The
    projections that add to the residual stream are scaled by 1/√(2 · num_layers), because that many terms are summed.

    Args:
        config: the shape.

    Examples:
        >>> model = GPT(GPTConfig.gpt2(vocab_size=50, d_model=16, num_layers=1, num_heads=2))
        >>> model(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 50])
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config: GPTConfig = config
        V, C = config.vocab_size, config.d_model
        learned = config.positions == "learned"
        rotary = None if learned else RotaryEmbedding(config.head_dim, base=config.rotary_base)
        self.token_embedding: nn.Embedding = nn.Embedding(V, C)
        self.position_embedding: nn.Embedding | None = (
            nn.Embedding(config.context_length, C) if learned else None
        )
        self.dropout: nn.Dropout = nn.Dropout(config.dropout)
        self.blocks: nn.ModuleList = nn.ModuleList(
            Block(config, rotary) for _ in range(config.num_layers)
        )
        self.norm: nn.Module = build_norm(config)
        self.head: nn.Linear = nn.Linear(C, V, bias=False)
        if config.tied:
            self.head.weight = self.token_embedding.weight
        self._initialise()

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor | tuple[Tensor, list[KVCache]]:
        """Compute the logits of each next token.

        Args:
            tokens: (B, T), int64.
            mask: restricts causal attention further: `Documents(ids)` for packed sequences,
                `Padding(lengths, side="left")` for prompts of different lengths, or a Boolean tensor, True = attend. It
                covers the keys in the caches as well.
            positions: (T,) or (B, T), int64; by default they continue after the tokens in the caches.
            caches: one `KVCache` per layer, as `new_caches` returns them.

        Returns:
            Logits (B, T, vocab_size); with caches, a pair of these logits and the extended caches.

        Raises:
            ArgumentError: the tokens have another rank or dtype or are outside the vocabulary, or there are more tokens
                than positions or than the caches can hold.
        """
        hidden, extended = self.read(tokens, mask, positions, caches)
        logits = self.head(hidden)
        return logits if caches is None else (logits, extended)

    def hidden(
        self,
        tokens: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Compute the input of `head`, for a loss that does not need all logits at once.

        Args:
            tokens: (B, T), int64.
            mask: as in `forward`.
            positions: as in `forward`.

        Returns:
            (B, T, d_model).

        Raises:
            ArgumentError: as in `forward`.
        """
        return self.read(tokens, mask, positions, None)[0]

    def read(
        self,
        tokens: Tensor,
        mask: Mask | Tensor | None,
        positions: Tensor | None,
        caches: Sequence[KVCache] | None,
    ) -> tuple[Tensor, list[KVCache]]:
        """Compute the input of `head` and extend the caches, for generation, which needs the last token's logits only.

        Args:
            tokens: (B, T), int64.
            mask: as in `forward`.
            positions: as in `forward`.
            caches: as in `forward`.

        Returns:
            The input of `head`, (B, T, d_model), and one extended cache per layer, or None for each without caches.

        Raises:
            ArgumentError: as in `forward`.
        """
        self._check(tokens, caches)
        T, past = tokens.shape[1], caches[0].length if caches else 0
        if positions is None:
            positions = default_positions(past, T, tokens.device)
        if isinstance(mask, Mask):
            mask = lower(mask, tokens, past)
        x = self.token_embedding(tokens)  # (B, T, C)
        if self.position_embedding is not None:
            self._check_positions(positions)
            x = x + self.position_embedding(positions)
        x = self.dropout(x)
        extended = []
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x, cache = block(x, mask, positions, cache)
            extended.append(cache)
        hidden = self.norm(x)
        return hidden, extended

    @property
    def parameter_count(self) -> int:
        """The number of parameters; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def new_caches(
        self, batch: int, capacity: int, group: Group | None = None
    ) -> Sequence[KVCache]:
        """Create an empty cache for each layer, with the model's dtype and device.

        Args:
            batch: the number of sequences.
            capacity: the maximum number of tokens of each.
            group: the ranks that the caches are sharded over; None: they are not.

        Examples:
            >>> model = GPT(GPTConfig.gpt2(vocab_size=50, d_model=16, num_layers=2, num_heads=2))
            >>> logits, caches = model(torch.tensor([[1, 2, 3]]), caches=model.new_caches(1, capacity=8))
            >>> [cache.length for cache in caches]
            [3, 3]
        """
        H, D, weight = self.config.num_kv_heads, self.config.head_dim, self.head.weight
        sizes, like = (batch, H, capacity, D), {"dtype": weight.dtype, "device": weight.device}
        if group is None:
            return [KVCache.empty(*sizes, **like) for _ in self.blocks]
        return [ShardedKVCache.on_ranks(group, *sizes, **like) for _ in self.blocks]

    @torch.no_grad()
    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:  # the weights of norms stay 1
                residual = name.endswith(("out_proj.weight", "down.weight"))
                parameter.normal_(std=0.02 / math.sqrt(2 * len(self.blocks)) if residual else 0.02)

    def _check(self, tokens: Tensor, caches: Sequence[KVCache] | None) -> None:
        V = self.config.vocab_size
        if tokens.dim() != 2 or tokens.dtype != torch.int64 or any_outside(tokens, V):
            raise ArgumentError(
                "tokens",
                expected=f"int64 (B, T) from 0 to {V - 1}",
                received=f"{tokens.dtype} {tuple(tokens.shape)}"
                + (f" from {tokens.min()} to {tokens.max()}" if tokens.numel() else ""),
                remedy="Encode the text with the tokenizer that the model was trained with.",
            )
        if caches is not None and len(caches) != len(self.blocks):
            raise ArgumentError(
                "caches",
                expected=f"one cache for each of the {len(self.blocks)} layers",
                received=f"{len(caches)}",
                remedy="Create them with model.new_caches(batch, capacity).",
            )

    def _check_positions(self, positions: Tensor) -> None:
        context_length = self.config.context_length
        if any_outside(positions, context_length):
            raise ArgumentError(
                "positions",
                expected=f"0 to {context_length - 1}, because {context_length=} positions are learned",
                received=f"{positions.min()} to {positions.max()}",
                remedy="Pass fewer tokens; generate() reads a window of the newest ones.",
            )


def lower(mask: Mask, tokens: Tensor, past: int) -> Mask:
    """Lower a mask once for all layers; a mask that is not made of key ranges is returned as it is."""
    B, T = tokens.shape[0], all_tokens(tokens.shape[1])
    seen = mask & Causal(align="end")
    runs = seen.intervals(T, past + T, batch=B, device=tokens.device)
    return mask if runs is None else KeyRanges(runs)


def any_outside(indices: Tensor, size: int) -> bool:
    """Check in eager mode whether any index is outside 0 … size - 1; otherwise return False without looking."""
    return eager(indices) and bool(((indices < 0) | (indices >= size)).any())


def build_norm(config: GPTConfig) -> nn.Module:
    """Build a LayerNorm (Ba et al. 2016) or an RMSNorm (Zhang & Sennrich 2019) over d_model."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)
