"""Multi-head attention as one ships it: the textbook's steps, with the fastest kernel there is in their middle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.functional import attention
from heedful.masks import Causal, Mask, Window
from heedful.nn.cache import KVCache
from heedful.nn.checks import (
    as_mask,
    check_call,
    check_cross_attention,
    check_groups,
    check_rotary,
    check_window,
    size_of_heads,
)
from heedful.nn.rotary import RotaryEmbedding
from heedful.textbook.checks import check_dropout, check_sizes


class MultiHeadAttention(nn.Module):
    """Self-attention, or with `d_context` cross-attention (Vaswani et al. 2017, §3.2.2).

    Heads may share keys and values in groups (Ainslie et al. 2023), positions may be rotary (Su et al. 2021). The
    weights are those of `W_query`, `W_key`, `W_value`, `out_proj`, as in the textbook.

    Args:
        d_model: features of a token, in and out.
        num_heads: query heads.
        num_kv_heads: key/value heads, a divisor of num_heads; None: num_heads.
        head_dim: features of each head; None: d_model / num_heads.
        d_context: features of a context's token. Given, the module is cross-attention: each call takes a context, all
            of which every token sees.
        dropout: the probability that training drops a weight. In evaluation none is.
        bias: whether the four projections add one.
        rotary: turns queries and keys to their positions; None: the module knows nothing of positions.
        window: how many of the newest keys a token sees, its own included; None: all before it.
        causal: whether a token is kept from seeing what comes after it; in self-attention alone.
        softcap: scores become softcap · tanh(scores / softcap).
        kernel: as `heedful.attention` takes it.

    Raises:
        ArgumentError: sizes below 1 or that do not divide, a dropout outside [0, 1], options that contradict one
            another; the text says which.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        d_context: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        rotary: RotaryEmbedding | None = None,
        window: int | None = None,
        causal: bool = True,
        softcap: float | None = None,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        check_sizes(d_model=d_model, num_heads=num_heads)
        Hq, Hkv = num_heads, num_heads if num_kv_heads is None else num_kv_heads
        D = size_of_heads(d_model, num_heads) if head_dim is None else head_dim
        d_source = d_model if d_context is None else d_context
        check_sizes(num_kv_heads=Hkv, head_dim=D, d_context=d_source)
        check_dropout(dropout)
        check_groups(Hq, Hkv)
        check_rotary(rotary, D)
        check_window(window, causal)
        if d_context is not None:
            check_cross_attention(rotary, window)
        self.d_model, self.d_context = d_model, d_context
        self.num_heads, self.num_kv_heads, self.head_dim = Hq, Hkv, D
        self.dropout, self.softcap, self.kernel = dropout, softcap, kernel
        self.causal, self.window = causal and d_context is None, window
        self.W_query = nn.Linear(d_model, Hq * D, bias=bias)
        self.W_key = nn.Linear(d_source, Hkv * D, bias=bias)
        self.W_value = nn.Linear(d_source, Hkv * D, bias=bias)
        self.out_proj = nn.Linear(Hq * D, d_model, bias=bias)
        self.rotary = rotary
        self.own_mask = _own_mask(self.causal, window)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor | tuple[Tensor, KVCache]:
        """Let the tokens attend to one another, or to the context.

        Args:
            x: (B, T, d_model), or (T, d_model) without a batch.
            context: (B, Tk, d_context), or (Tk, d_context): whom a cross-attention attends to.
            mask: what tokens may see besides the module's own causality or window: `Padding(lengths)`,
                `Documents(ids)`, …; or a Boolean tensor that broadcasts to (B, num_heads, T, Tk), True = attend.
                Tk counts a cache's keys too.
            positions: (T,) or (B, T), int64: where the tokens stand, for rotary; None: from the cache's length on.
            cache: the keys and values of earlier tokens, which x follows.

        Returns:
            The output, of the shape of x; with a cache, (output, the cache with x in it).

        Raises:
            ArgumentError: shapes that do not fit, a context where the module takes none, a cache where it does.
        """
        check_call(self.d_model, self.d_context, x, context, cache)
        tokens = _batched(x)  # (B, T, d_model)
        source = tokens if context is None else _batched(context)  # (B, Tk, d_context)
        B, T, Tk = tokens.shape[0], tokens.shape[1], source.shape[1]
        Hq, Hkv, D = self.num_heads, self.num_kv_heads, self.head_dim

        queries = self.W_query(tokens)  # (B, T, Hq*D)
        keys = self.W_key(source)  # (B, Tk, Hkv*D)
        values = self.W_value(source)

        queries_by_head = queries.view(B, T, Hq, D).transpose(1, 2)  # (B, Hq, T, D)
        keys_by_head = keys.view(B, Tk, Hkv, D).transpose(1, 2)  # (B, Hkv, Tk, D)
        values_by_head = values.view(B, Tk, Hkv, D).transpose(1, 2)

        if self.rotary is not None:
            if positions is None:
                past = 0 if cache is None else cache.length
                positions = torch.arange(past, past + T, device=x.device)
            queries_by_head = self.rotary(queries_by_head, positions)
            keys_by_head = self.rotary(keys_by_head, positions)
        if cache is not None:
            keys_by_head, values_by_head, cache = cache.append(keys_by_head, values_by_head)

        context_by_head = attention(
            queries_by_head,
            keys_by_head,
            values_by_head,
            self._visible(mask, T),
            softcap=self.softcap,
            dropout_p=self.dropout if self.training else 0.0,
            kernel=self.kernel,
        )
        assert isinstance(context_by_head, Tensor)  # not asked for the lse
        contexts = context_by_head.transpose(1, 2).flatten(2)  # (B, T, Hq*D)
        output = self.out_proj(contexts).view_as(x)
        return output if cache is None else (output, cache)

    def _visible(self, mask: Mask | Tensor | None, T: int) -> Mask | None:
        """The module's own mask and the caller's, for T tokens that are the newest."""
        given = as_mask(mask)
        own = self.own_mask
        needs_alignment = given is not None and given.positional
        if T == 1 and self.window is None and not needs_alignment:
            own = None  # the newest token sees all there is
        if given is None or own is None:
            return given or own
        return given & own

    def extra_repr(self) -> str:
        settings = {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        settings |= {"head_dim": self.head_dim, "causal": self.causal, "window": self.window}
        settings |= {"dropout": self.dropout, "softcap": self.softcap, "kernel": self.kernel}
        return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _batched(tokens: Tensor) -> Tensor:
    """(T, features) as a batch of one."""
    return tokens if tokens.dim() == 3 else tokens[None]


def _own_mask(causal: bool, window: int | None) -> Mask | None:
    """What the module itself lets tokens see, who are the newest: None for all."""
    if window is not None:
        return Window(window, align="end")
    return Causal(align="end") if causal else None
