"""A GPT: tokens become vectors, blocks of attention and MLP add to them, and each predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.errors import ArgumentError
from heedful.gpt.config import GPTConfig
from heedful.masks import Causal, KeyRanges, Mask
from heedful.modes import eager
from heedful.nn import KVCache, MultiHeadAttention, RotaryEmbedding


class MLP(nn.Module):
    """What each token computes by itself: wider, bent, and back. SwiGLU (Shazeer 2020) has a gate instead of a bend.

    Takes and gives x (…, d_model).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, M = config.d_model, config.d_mlp
        self.activation = config.activation
        if self.activation == "swiglu":
            self.gate = nn.Linear(C, M, bias=config.bias)
        self.up = nn.Linear(C, M, bias=config.bias)
        self.down = nn.Linear(M, C, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        widened = self.up(x)  # (…, d_mlp)
        if self.activation == "swiglu":
            activated = F.silu(self.gate(x)) * widened
        else:
            approximation = "tanh" if self.activation == "gelu_tanh" else "none"
            activated = F.gelu(widened, approximate=approximation)
        return self.down(activated)


class Block(nn.Module):
    """Attention, then an MLP, each on normalised input and added to what came in: pre-norm, as GPT-2 and Llama.

    Takes x (B, T, d_model) and what `MultiHeadAttention` takes, gives (B, T, d_model) and the cache with x's keys in
    it, or None without one.
    """

    def __init__(self, config: GPTConfig, rotary: RotaryEmbedding | None) -> None:
        super().__init__()
        self.attention_norm = norm(config)
        self.attention = MultiHeadAttention(
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
        self.mlp_norm = norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

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
    """A decoder-only transformer (Radford et al. 2019), of GPT-2's family or Llama's (Touvron et al. 2023).

    Weights begin as GPT-2's: normal with deviation 0.02, biases 0; what blocks add is scaled by 1/√(2 · layers),
    because that many terms add up.

    Args:
        config: its shape.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        V, C = config.vocab_size, config.d_model
        learned = config.positions == "learned"
        rotary = None if learned else RotaryEmbedding(config.head_dim, base=config.rotary_base)
        self.token_embedding = nn.Embedding(V, C)
        self.position_embedding = nn.Embedding(config.context_length, C) if learned else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, rotary) for _ in range(config.num_layers))
        self.norm = norm(config)
        self.head = nn.Linear(C, V, bias=False)
        if config.tied:
            self.head.weight = self.token_embedding.weight
        self._initialise()

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        caches: list[KVCache] | None = None,
    ) -> Tensor | tuple[Tensor, list[KVCache]]:
        """The logits of each next token.

        Args:
            tokens: (B, T), int64.
            mask: what each token may see beside those up to it: `Documents(ids)` for packed sequences,
                `Padding(lengths, side="left")`; or a Boolean tensor, True = attend. It covers the cache's keys too.
            positions: (T,) or (B, T), int64: where each token stands; None: from the caches' length on.
            caches: one `KVCache` a layer, as `new_caches` makes them.

        Returns:
            Logits (B, T, vocab_size), or (logits, caches) when caches were given.

        Raises:
            ArgumentError: tokens of another rank, dtype or vocabulary; more than positions or caches hold.
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
        """What `head` makes logits of: (B, T, d_model). For a loss in chunks, whose logits never stand all at once."""
        return self.read(tokens, mask, positions, None)[0]

    def read(
        self,
        tokens: Tensor,
        mask: Mask | Tensor | None,
        positions: Tensor | None,
        caches: Sequence[KVCache] | None,
    ) -> tuple[Tensor, list[KVCache]]:
        """As `forward`, but (B, T, d_model) before the head: generation needs the logits of the last token alone."""
        self._check(tokens, caches)
        T, past = tokens.shape[1], caches[0].length if caches else 0
        if positions is None:
            positions = torch.arange(past, past + T, device=tokens.device)
        if isinstance(mask, Mask):
            mask = lowered(mask, tokens, past)
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

    def new_caches(self, batch: int, capacity: int) -> list[KVCache]:
        """An empty cache for each layer, of the model's dtype and device, for `capacity` tokens."""
        H, D, weight = self.config.num_kv_heads, self.config.head_dim, self.head.weight
        return [
            KVCache.empty(batch, H, capacity, D, dtype=weight.dtype, device=weight.device)
            for _ in self.blocks
        ]

    @torch.no_grad()
    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:  # norms' weights stay 1
                adds = name.endswith(("out_proj.weight", "down.weight"))
                parameter.normal_(std=0.02 / math.sqrt(2 * len(self.blocks)) if adds else 0.02)

    def _check(self, tokens: Tensor, caches: Sequence[KVCache] | None) -> None:
        V = self.config.vocab_size
        if tokens.dim() != 2 or tokens.dtype != torch.int64 or outside(tokens, V):
            raise ArgumentError(
                "tokens",
                expected=f"int64 (B, T) from 0 to {V - 1}",
                received=f"{tokens.dtype} {tuple(tokens.shape)}"
                + (f" from {tokens.min()} to {tokens.max()}" if tokens.numel() else ""),
                remedy="Encode the text by the tokenizer that the model was trained with.",
            )
        if caches is not None and len(caches) != len(self.blocks):
            raise ArgumentError(
                "caches",
                expected=f"one for each of the {len(self.blocks)} layers",
                received=f"{len(caches)}",
                remedy="Begin with model.new_caches(batch, capacity).",
            )

    def _check_positions(self, positions: Tensor) -> None:
        most = self.config.context_length
        if outside(positions, most):
            raise ArgumentError(
                "positions",
                expected=f"0 to {most - 1}: positions are learned for context_length={most} tokens",
                received=f"{positions.min()} to {positions.max()}",
                remedy="Pass fewer tokens; generate() keeps to a window of the newest.",
            )


def lowered(mask: Mask, tokens: Tensor, past: int) -> Mask:
    """The mask's runs, worked out once for all layers; what has none stays as it is."""
    B, T = tokens.shape
    seen = mask & Causal(align="end")
    runs = seen.intervals(T, past + T, batch=B, device=tokens.device)
    return mask if runs is None else KeyRanges(runs)


def outside(indices: Tensor, size: int) -> bool:
    """Whether any index is not in 0 … size - 1; looked at only where nothing watches or compiles."""
    return eager(indices) and bool(((indices < 0) | (indices >= size)).any())


def norm(config: GPTConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019), over d_model."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)
