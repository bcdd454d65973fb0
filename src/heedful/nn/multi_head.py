"""Multi-head attention for production: the steps of the textbook's module, with the fastest kernel available."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Bool, Float, Int
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
    default_head_dim,
)
from heedful.nn.rotary import RotaryEmbedding
from heedful.nn.sharded_cache import ShardedKVCache
from heedful.sharded import all_tokens, default_positions, refuse
from heedful.textbook.checks import check_dropout, check_sizes


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention or, with `d_context`, cross-attention (Vaswani et al. 2017, §3.2.2).

    Heads may share keys and values in groups (Ainslie et al. 2023), and positions may be rotary (Su et al. 2021). As in
    the textbook, the weights are those of the layers `W_query`, `W_key`, `W_value` and `out_proj`.

    Args:
        d_model: the number of features of a token, in the input and in the output.
        num_heads: the number of query heads.
        num_kv_heads: the number of key/value heads, a divisor of num_heads. Default: num_heads.
        head_dim: the number of features of each head. Default: d_model / num_heads.
        d_context: the number of features of a context token. If given, the module is cross-attention: each call takes a
            context, and every token attends to all of it.
        dropout: the dropout probability of the attention weights in training mode.
        bias: whether the four projections have a bias.
        rotary: the rotary embedding that rotates queries and keys according to their positions. Default: none, so that
            the module does not depend on positions.
        window: the number of newest keys that a token attends to, including its own. Default: all earlier keys.
        causal: whether future tokens are masked. It only affects self-attention.
        softcap: the bound c of the scores, which become c · tanh(scores / c). Default: no bound.
        kernel: the kernel, as in `heedful.attention`.

    Raises:
        ArgumentError: a size is below 1 or not divisible, the dropout lies outside [0, 1], or two options contradict
            each other.

    Examples:
        >>> import torch
        >>> from heedful import Padding
        >>> from heedful.nn import MultiHeadAttention
        >>> attention = MultiHeadAttention(d_model=8, num_heads=4, num_kv_heads=2)
        >>> x = torch.randn(2, 5, 8)
        >>> attention(x).shape
        torch.Size([2, 5, 8])
        >>> attention(x, mask=Padding(torch.tensor([5, 3]))).shape
        torch.Size([2, 5, 8])
    """

    # Which layers a tensor-parallel plan splits, by outputs and by inputs: each rank has some of the heads.
    column_parallel: ClassVar[tuple[str, ...]] = ("W_query", "W_key", "W_value")
    row_parallel: ClassVar[tuple[str, ...]] = ("out_proj",)

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
        D = default_head_dim(d_model, num_heads) if head_dim is None else head_dim
        d_source = d_model if d_context is None else d_context
        check_sizes(num_kv_heads=Hkv, head_dim=D, d_context=d_source)
        check_dropout(dropout)
        check_groups(Hq, Hkv)
        check_rotary(rotary, D)
        check_window(window, causal)
        if d_context is not None:
            check_cross_attention(rotary, window)
        self.d_model: int = d_model
        self.d_context: int | None = d_context
        self.num_heads: int = Hq
        self.num_kv_heads: int = Hkv
        self.head_dim: int = D
        self.dropout: float = dropout
        self.softcap: float | None = softcap
        self.kernel: str = kernel
        self.causal: bool = causal and d_context is None
        self.window: int | None = window
        self.W_query: nn.Linear = nn.Linear(d_model, Hq * D, bias=bias)
        self.W_key: nn.Linear = nn.Linear(d_source, Hkv * D, bias=bias)
        self.W_value: nn.Linear = nn.Linear(d_source, Hkv * D, bias=bias)
        self.out_proj: nn.Linear = nn.Linear(Hq * D, d_model, bias=bias)
        self.rotary: RotaryEmbedding | None = rotary
        self.own_mask: Mask | None = _own_mask(self.causal, window)

    def forward(
        self,
        x: Float[Tensor, "*B T d_model"],
        context: Float[Tensor, "*B Tk d_context"] | None = None,
        *,
        mask: Mask | Bool[Tensor, ...] | None = None,
        positions: Int[Tensor, "*#B T"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "*B T d_model"] | tuple[Float[Tensor, "*B T d_model"], KVCache]:
        """Compute the attention of the tokens to each other, or to the context.

        Args:
            x: (B, T, d_model), or (T, d_model) without a batch.
            context: (B, Tk, d_context) or (Tk, d_context): the tokens that cross-attention attends to.
            mask: a restriction in addition to the module's own causality or window, such as `Padding(lengths)` or
                `Documents(ids)`; or a Boolean tensor that broadcasts to (B, num_heads, T, Tk), True = attend. Tk
                includes the keys in the cache.
            positions: (T,) or (B, T), int64: the positions of the tokens, for rotary embeddings. Default: consecutive
                positions, starting at the length of the cache.
            cache: the keys and values of earlier tokens, which x continues.

        Returns:
            The output, of the shape of x. With a cache, the output and the new cache.

        Raises:
            ArgumentError: the shapes do not fit, or the module does not accept a context or a cache.
        """
        check_call(self.d_model, self.d_context, x, context, cache)
        tokens = _batched(x)  # (B, T, d_model)
        source = tokens if context is None else _batched(context)  # (B, Tk, d_context)
        B, T, Tk, D = *tokens.shape[:2], source.shape[1], self.head_dim

        queries = self.W_query(tokens)  # (B, T, Hq*D)
        keys = self.W_key(source)  # (B, Tk, Hkv*D)
        values = self.W_value(source)

        Hq, Hkv = queries.shape[2] // D, keys.shape[2] // D  # with tensor parallelism, of this rank
        queries_by_head = queries.view(B, T, Hq, D).transpose(1, 2)  # (B, Hq, T, D)
        keys_by_head = keys.view(B, Tk, Hkv, D).transpose(1, 2)  # (B, Hkv, Tk, D)
        values_by_head = values.view(B, Tk, Hkv, D).transpose(1, 2)

        if self.rotary is not None:
            if positions is None:
                past = 0 if cache is None else cache.length
                positions = default_positions(past, T, x.device)
            queries_by_head = self.rotary(queries_by_head, positions)
            keys_by_head = self.rotary(keys_by_head, positions)
        if cache is not None:
            refuse("a cache of keys and values")
            keys_by_head, values_by_head, cache = cache.append(keys_by_head, values_by_head)

        attend = cache.attend if isinstance(cache, ShardedKVCache) else attention
        context_by_head = attend(
            queries_by_head,
            keys_by_head,
            values_by_head,
            self._combined_mask(mask, T),
            softcap=self.softcap,
            dropout_p=self.dropout if self.training else 0.0,
            kernel=self.kernel,
        )
        assert isinstance(context_by_head, Tensor)  # because the lse was not requested
        contexts = context_by_head.transpose(1, 2).flatten(2)  # (B, T, Hq*D)
        output = self.out_proj(contexts).view_as(x)
        return output if cache is None else (output, cache)

    def _combined_mask(self, mask: Mask | Tensor | None, T: int) -> Mask | None:
        """Return the intersection of the module's own mask and the caller's, for the T newest tokens."""
        own_mask, call_mask = self.own_mask, as_mask(mask)
        needs_alignment = call_mask is not None and call_mask.positional
        if all_tokens(T) == 1 and self.window is None and not needs_alignment:
            own_mask = None  # the newest token may attend to every key
        if call_mask is None or own_mask is None:
            return own_mask if call_mask is None else call_mask
        return call_mask & own_mask

    def extra_repr(self) -> str:
        """Return the settings for `print(module)`."""
        settings = {"num_heads": self.num_heads, "num_kv_heads": self.num_kv_heads}
        settings |= {"head_dim": self.head_dim, "causal": self.causal, "window": self.window}
        settings |= {"dropout": self.dropout, "softcap": self.softcap, "kernel": self.kernel}
        return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _batched(tokens: Tensor) -> Tensor:
    """Return (T, features) as a batch of one."""
    return tokens if tokens.dim() == 3 else tokens[None]


def _own_mask(causal: bool, window: int | None) -> Mask | None:
    """Return the mask that the module applies in every call. The queries are the newest tokens."""
    if window is not None:
        return Window(window, align="end")
    return Causal(align="end") if causal else None
