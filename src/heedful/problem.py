"""One attention problem: the tensors and options of a call, checked once, when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from heedful import dropout
from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.lazy import lazy
from heedful.masks import Dense, Grid, Mask
from heedful.masks.checks import check_dense_layout, check_no_array
from heedful.modes import any_set, is_causal_bias, values_known
from heedful.shapes import Sizes, broadcasts, read_sizes, times

DTYPES: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# A call of up to so many decodes: reading keys and values, and the call itself, take most of the time.
FEW_QUERIES: int = 8


@dataclass(frozen=True, eq=False, repr=False)
class AttentionProblem:
    """softmax(cap(scale · Q Kᵀ) + bias, masked) V, as data. Its users need not check anything again.

    Args:
        query: (B, Hq, Tq, D), floating point.
        key: (B, Hkv, Tk, D), where Hkv divides Hq: query head h reads key head h // (Hq // Hkv).
        value: (B, Hkv, Tk, Dv).
        mask: which keys each query may see; a Boolean tensor (True = attend) stands for `Dense`. None: all keys.
        bias: added to the scores after the soft-cap: floating point, broadcastable to (B, Hq, Tq, Tk).
        scale: multiplies the dot products; None: 1/√D.
        softcap: scores become softcap · tanh(scores / softcap); None: they stay as they are.
        sinks: (Hq,) logits of one more key per head, whose value is 0.
        dropout_p: the probability of dropping a weight; the others are scaled by 1/(1 − p).
        return_lse: whether the caller wants the log-sum-exp, too.
        placement: where queries, keys and heads stand among all, for dropout; None: they are all.

    Raises:
        ArgumentError: the arguments do not fit together; the message says what would fit, and the remedy.

    Examples:
        >>> query = torch.zeros(1, 4, 5, 8)
        >>> AttentionProblem(query, query, query, Dense(torch.eye(5).bool())).pairs
        20
    """

    query: Float[Tensor, "B Hq Tq D"]
    key: Float[Tensor, "B Hkv Tk D"]
    value: Float[Tensor, "B Hkv Tk Dv"]
    mask: Mask | Bool[Tensor, " ..."] | None = None
    bias: Float[Tensor, " ..."] | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Float[Tensor, " Hq"] | None = None
    dropout_p: float = 0.0
    return_lse: bool = False
    placement: dropout.Placement | None = None

    def __post_init__(self) -> None:
        _check_tensors(self.query, self.key, self.value)
        _check_numbers(self.scale, self.softcap, self.dropout_p)
        if self.scale == 0:  # all scores are 0, also where the dot products would overflow
            object.__setattr__(self, "query", self.query * 0)
        Hq = self.sizes.Hq
        if self.bias is not None:
            check_bias(self.bias, self.sizes, self.query)
        if self.sinks is not None:
            _check_sinks(self.sinks, Hq, self.query)
        if self.mask is not None:
            object.__setattr__(self, "mask", _checked_mask(self.mask, self.sizes))
            # Building the grid checks the rest of the mask. Without keys there is nothing to hide.
            if self.grid.Tk == 0:
                object.__setattr__(self, "mask", None)

    def __repr__(self) -> str:
        tensors = (("query", self.query), ("key", self.key), ("value", self.value))
        shapes = ", ".join(f"{name} {times(tensor.shape)}" for name, tensor in tensors)
        mask = "" if self.mask is None else f", mask={self.mask!r}"
        return f"AttentionProblem({shapes}, {str(self.query.dtype).removeprefix('torch.')}{mask})"

    @lazy
    def sizes(self) -> Sizes:
        """B, Hq, Hkv, Tq, Tk, D, Dv."""
        return read_sizes(self.query, self.key, self.value)

    @property
    def factor(self) -> float:
        """The factor of the dot products: the scale if there is one, else 1/√D."""
        return 1 / math.sqrt(max(self.sizes.D, 1)) if self.scale is None else self.scale

    @property
    def output_bytes(self) -> int:
        """The size of the output, and of the log-sum-exp if the caller wants it."""
        B, Hq, _, Tq, _, _, Dv = self.sizes
        size = self.query.element_size()
        return B * Hq * Tq * (Dv * size + (max(size, 4) if self.return_lse else 0))

    @property
    def needs_grad(self) -> bool:
        """True if a backward pass may follow."""
        if not torch.is_grad_enabled():
            return False
        if self.query.requires_grad or self.key.requires_grad or self.value.requires_grad:
            return True
        bias, sinks = self.bias, self.sinks
        return (bias is not None and bias.requires_grad) or (
            sinks is not None and sinks.requires_grad
        )

    # The forms of the mask

    @lazy
    def grid(self) -> Grid:
        """The queries and keys, aligned as the mask says."""
        assert isinstance(self.mask, Mask)
        return self.mask.grid(
            self.sizes.Tq, self.sizes.Tk, batch=self.sizes.B, device=self.query.device
        )

    @lazy
    def plain_causal(self) -> bool:
        """True if the mask equals PyTorch's ``is_causal=True``."""
        return isinstance(self.mask, Mask) and self.mask.is_plain_causal(self.grid)

    @lazy
    def intervals(self) -> Intervals | None:
        """The mask as key ranges; None without a mask, and for a mask that only a dense tensor can express."""
        return self.mask.intervals_on(self.grid) if isinstance(self.mask, Mask) else None

    @lazy
    def dense_mask(self) -> Bool[Tensor, "B Hq Tq Tk"] | None:
        """The mask as Boolean (B or 1, Hq or 1, Tq, Tk), True = attend; None without a mask."""
        if self.intervals is not None:
            return self.intervals.dense().unsqueeze(1)
        if self.mask is None:
            return None
        assert isinstance(self.mask, Mask)
        dense = self.mask.dense_on(self.grid)
        _check_dense(self.mask, dense, self.sizes, self.query)
        return dense

    def visible(self, first: int, last: int) -> Bool[Tensor, "B Hq Tq keys"] | None:
        """Return columns first … last − 1 of the dense mask; with intervals, without building the rest."""
        if self.intervals is not None:
            return self.intervals.keys(first, last).unsqueeze(1)
        return None if self.dense_mask is None else self.dense_mask[..., first:last]

    @lazy
    def unseen_keys(self) -> Bool[Tensor, "B 1 Tk 1"] | None:
        """The keys that no query may see: Boolean (B or 1, 1, Tk, 1); None if every key is seen."""
        if self.mask is None or (self.plain_causal and self.sizes.Tq >= self.sizes.Tk):
            return None
        if self.intervals is not None:
            unseen = self.intervals.unseen_keys()
        else:
            assert self.dense_mask is not None
            unseen = ~self.dense_mask.flatten(1, 2).any(dim=1)
        return unseen[:, None, :, None] if any_set(unseen, when_tracing=True) else None

    @lazy
    def empty_rows(self) -> Bool[Tensor, "B Hq Tq 1"] | None:
        """The queries that see no key: Boolean (B or 1, Hq or 1, Tq, 1); None if every query sees one."""
        if self.mask is None or self.plain_causal:
            return None
        if self.intervals is not None:
            empty = self.intervals.empty_rows().unsqueeze(1)
        else:
            assert self.dense_mask is not None
            empty = ~self.dense_mask.any(dim=-1)
        return empty.unsqueeze(-1) if any_set(empty, when_tracing=True) else None

    @lazy
    def pairs(self) -> int | None:
        """The number of visible (query, key) pairs, over all batch entries and heads; None if values are unknown."""
        B, Hq, _, Tq, Tk, _, _ = self.sizes
        if self.mask is None:
            return B * Hq * Tq * Tk
        if self.intervals is not None:
            pairs = self.intervals.pairs().expand(B).sum() * Hq
        else:
            assert self.dense_mask is not None
            pairs = self.dense_mask.expand(B, Hq, -1, -1).sum()
        return int(pairs) if values_known(pairs) else None

    # The tensors that the kernels written in PyTorch compute with

    def seen_key_and_value(
        self,
    ) -> tuple[Float[Tensor, "B Hkv Tk D"], Float[Tensor, "B Hkv Tk Dv"]]:
        """Return key and value with 0 where no query may see them, so that NaN there does no harm."""
        unseen = self.unseen_keys
        if unseen is None:
            return self.key, self.value
        return self.key.masked_fill(unseen, 0), self.value.masked_fill(unseen, 0)

    def widened(
        self,
    ) -> tuple[Float[Tensor, "B Hq Tq D"], Float[Tensor, "B Hq Tk D"], Float[Tensor, "B Hq Tk Dv"]]:
        """Return query, key and value in float32 or better.

        Key and value are 0 where no query may see them, and their heads are repeated for their query heads.
        """
        _, Hq, Hkv, *_ = self.sizes
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        key, value = (
            tensor.to(dtype).repeat_interleave(Hq // max(Hkv, 1), dim=1)
            for tensor in self.seen_key_and_value()
        )
        return self.query.to(dtype), key, value

    def draw_seed(self) -> Int64[Tensor, ""]:
        """Return the seed of the placement, or draw one."""
        return dropout.draw_seed() if self.placement is None else self.placement.seed

    def dropout_factors(
        self, seed: int | Tensor, first: int, last: int
    ) -> Float[Tensor, "B Hq Tq keys"]:
        """Return what dropout multiplies the weights of keys first … last − 1 by: 0 or 1 / (1 − p).

        The factors (B, Hq, Tq, last − first) have the dtype of the weights, float32 or better.

        Args:
            seed: `draw_seed()`, drawn once for all keys.
            first: the first key.
            last: one past the last key.
        """
        B, Hq, _, Tq, *_ = self.sizes
        device, head = self.query.device, 0
        queries, keys = torch.arange(Tq, device=device), torch.arange(first, last, device=device)
        if self.placement is not None:
            queries, keys = self.placement.queries, self.placement.keys[first:last]
            head = self.placement.first_head
        kept = dropout.kept(
            seed,
            self.dropout_p,
            torch.arange(B, device=device).view(-1, 1, 1, 1),
            torch.arange(head, head + Hq, device=device).view(-1, 1, 1),
            queries.view(-1, 1),
            keys,
        )
        return kept.to(torch.promote_types(self.query.dtype, torch.float32)) / max(
            1 - self.dropout_p, 2**-32
        )


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    tensors = (("query", query), ("key", key), ("value", value))
    for name, tensor in tensors:
        check_no_array(name, tensor)
        if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES:
            raise ArgumentError(
                name,
                expected="a tensor of float64, float32, bfloat16 or float16",
                received=str(getattr(tensor, "dtype", type(tensor).__name__)),
                remedy="Convert it, for example by .to(torch.float32).",
            )
        check_dense_layout(name, tensor)
    if query.dtype == key.dtype == value.dtype and query.device == key.device == value.device:
        return
    attribute = "device" if query.dtype == key.dtype == value.dtype else "dtype"
    raise ArgumentError(
        "query, key, value",
        expected=f"one {attribute}",
        received=", ".join(f"{name} {getattr(tensor, attribute)}" for name, tensor in tensors),
        remedy=f"Convert them to one {attribute} by .to(…).",
    )


def _check_numbers(scale: float | None, softcap: float | None, dropout_p: float) -> None:
    if scale is not None and not math.isfinite(scale):
        raise ArgumentError(
            "scale",
            expected="a finite number, or None for 1/√D",
            received=repr(scale),
            remedy="The scale multiplies the dot products.",
        )
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ArgumentError(
            "softcap",
            expected="a finite number above 0, or None for no cap",
            received=repr(softcap),
            remedy="Gemma 2 uses 50.0.",
        )
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(
            "dropout_p",
            expected="a probability from 0 to 1",
            received=repr(dropout_p),
            remedy="It is the share of weights to drop; pass 0.0 in evaluation.",
        )


def check_bias(bias: Tensor, sizes: Sizes, query: Tensor) -> None:
    """Raise ArgumentError unless the bias broadcasts to the scores and fits the query's device."""
    B, Hq, _, Tq, Tk, _, _ = sizes
    _check_companion("bias", bias, query)
    if is_causal_bias(bias):
        raise ArgumentError(
            "bias",
            expected="a tensor of numbers to add to the scores",
            received="torch.nn.attention.bias.CausalBias, which stands for a mask",
            remedy='Pass mask=Causal(align="start") for upper left, mask=Causal(align="end") for lower right.',
        )
    if not broadcasts(tuple(bias.shape), (B, Hq, Tq, Tk)):
        raise ArgumentError(
            "bias",
            expected=f"a shape that broadcasts to (B={B}, Hq={Hq}, Tq={Tq}, Tk={Tk})",
            received=f"shape {tuple(bias.shape)}",
            remedy="Use size 1 for a dimension that shares the bias; one bias per head is (Hq, Tq, Tk).",
        )


def _check_sinks(sinks: Tensor, Hq: int, query: Tensor) -> None:
    _check_companion("sinks", sinks, query)
    if tuple(sinks.shape) != (Hq,):
        raise ArgumentError(
            "sinks",
            expected=f"shape (Hq={Hq},)",
            received=f"shape {tuple(sinks.shape)}",
            remedy="There is one sink logit for each query head. "
            "Sink tokens are a mask: Sinks(4) | Window(256).",
        )


def _check_companion(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise ArgumentError unless the tensor is floating point and on the query's device."""
    check_no_array(name, tensor)
    if not isinstance(tensor, Tensor) or tensor.dtype not in DTYPES:
        hint = " A Boolean tensor is a mask: pass it as mask=…" if name == "bias" else ""
        raise ArgumentError(
            name,
            expected="a floating-point tensor",
            received=str(getattr(tensor, "dtype", type(tensor).__name__)),
            remedy=f"Its values enter the softmax.{hint}",
        )
    if not is_causal_bias(tensor):
        check_dense_layout(name, tensor)
    if tensor.device != query.device:
        raise ArgumentError(
            name,
            expected=f"a tensor on {query.device}, the query's device",
            received=f"one on {tensor.device}",
            remedy="Move it by .to(query.device).",
        )


def _checked_mask(mask: Mask | Tensor, sizes: Sizes) -> Mask:
    """Return the mask, from a Boolean tensor if it is one, if it fits the number of query heads."""
    check_no_array("mask", mask)
    if isinstance(mask, Tensor):
        _check_not_padding(mask, sizes)
        mask = Dense(mask)
    if not isinstance(mask, Mask):
        named = isinstance(mask, type) and issubclass(mask, Mask)
        raise ArgumentError(
            "mask",
            expected="a mask such as Causal(), a Boolean tensor, or None",
            received=f"the class {mask.__name__}" if named else f"{type(mask).__name__} {mask!r}",
            remedy=f"Make a mask of it: {mask.__name__}(…)."
            if named
            else "See heedful.masks; masks combine by & and |.",
        )
    if mask.heads not in (None, sizes.Hq):
        raise ArgumentError(
            "mask",
            expected=f"a mask for {sizes.Hq} query heads, or one for all",
            received=f"one for {mask.heads}",
            remedy="A mask's heads are query heads, not key/value heads.",
        )
    return mask


def _check_not_padding(mask: Tensor, sizes: Sizes) -> None:
    """Raise ArgumentError for a mask of real tokens (B, Tk), as tokenizers and transformers make them."""
    B, _, _, Tq, Tk, _, _ = sizes
    dense = mask.dtype == torch.bool and (mask.shape[0] in (1, Tq) if mask.dim() else False)
    if mask.dim() != 2 or mask.is_floating_point() or dense or tuple(mask.shape) != (B, Tk):
        return
    raise ArgumentError(
        "mask",
        expected=f"a tensor that broadcasts to (B={B}, Hq, Tq={Tq}, Tk={Tk}), or a mask such as Padding",
        received=f"{mask.dtype} {tuple(mask.shape)}, which looks like one entry for each token",
        remedy='Pass Padding(mask.sum(-1)), or Padding(mask.sum(-1), side="left"), combined with Causal() by &.',
    )


def _check_dense(mask: Mask, dense: Tensor, sizes: Sizes, query: Tensor) -> None:
    """Raise ArgumentError unless a mask's Boolean tensor is one: the native kernel reads its memory as it is."""
    B, Hq, _, Tq, Tk, _, _ = sizes
    if (
        dense.dtype == torch.bool
        and dense.device == query.device
        and dense.dim() == 4
        and broadcasts(tuple(dense.shape), (B, Hq, Tq, Tk))
    ):
        return
    raise ArgumentError(
        "mask",
        expected=f"Boolean values that broadcast to (B={B}, Hq={Hq}, Tq={Tq}, Tk={Tk}), on {query.device}",
        received=f"{mask!r} with {dense.dtype} {tuple(dense.shape)} on {dense.device}",
        remedy="The mask's method sees(b, h, q, k, grid) returns True where query q may see key k.",
    )
