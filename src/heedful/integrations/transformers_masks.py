"""Translate the mask functions of transformers into heedful masks, without evaluating them for every entry."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.integrations.lazy_mask import LazyMask
from heedful.integrations.sharded_tokens import check_sharded_tokens
from heedful.intervals import Intervals
from heedful.masks import Band, Causal, Dense, Documents, Grid, KeyRanges, Mask
from heedful.sharded import current

MaskFunction: TypeAlias = Callable[..., Any]

_MASKING_MODULE: str = "transformers.masking_utils"


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Bool[Tensor, "B keys"] | None = None,
    *,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **_: Any,
) -> LazyMask | None:
    """Make the mask of one type of layer, through the interface of transformers.

    transformers calls this once per forward pass for each type of layer, and passes the result to all layers of it.

    Args:
        batch_size, q_length, kv_length: B, Tq, Tk.
        q_offset, kv_offset: the positions of the first query and the first key.
        mask_function: the keys that a query sees, padding aside, as composed by transformers. Default: causal.
        attention_mask: Boolean (B, keys), True = a real token. Keys beyond it are not real tokens.
        allow_is_causal_skip, allow_is_bidirectional_skip: whether the model accepts None for a mask that hides nothing.
        device: the device of the mask.
        config: the config of the model.

    Returns:
        The mask as a tensor (B, 1, Tq, Tk) without memory, or None if it hides nothing. If tokens are sharded over
        ranks, it is of all tokens, and the tensor has the shape of those of this rank.

    Raises:
        ArgumentError: the mask function belongs to the model or the user, attention weights are requested, or the
            tokens are sharded and the arguments are of others.
    """
    if _requests_weights(config):
        raise weights_error()
    sharded, shape = current(), (batch_size, q_length, kv_length)
    grid = Grid(*shape, int(q_offset) - kv_offset, torch.device(device))
    if sharded is not None:
        check_sharded_tokens(sharded, grid, attention_mask)
        grid = grid._replace(Tq=sharded.tokens, Tk=sharded.tokens)
    with torch._C.DisableTorchFunction():  # a recording of the model has no use for these steps
        reader = _MaskFunctionReader(grid, int(q_offset), positions_count=sharded is None)
        pattern = reader.read(mask_function) if mask_function else _causal(grid)
        mask = _lower(pattern, _real_keys(attention_mask, kv_offset, grid.Tk), grid)
    if sharded is not None:
        own = len(sharded.places)
        return LazyMask(mask, (batch_size, own, own), grid.device, sharded)
    can_skip = allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == 1)
    if mask is None and can_skip:
        return None
    return LazyMask(mask, shape, grid.device)


def _requests_weights(config: Any) -> bool:
    """Check whether the config or the call requests weights, which some models hide from their layers."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return getattr(config, "output_attentions", False) or "attentions" in (collected or ())


def weights_error() -> ArgumentError:
    """Return the error for a request of attention weights."""
    return ArgumentError(
        "output_attentions",
        expected='False: the attention implementation "heedful" never computes the weights as a tensor',
        received="True",
        remedy='Use model.set_attn_implementation("eager"), or heedful.record with a few tokens.',
    )


# --- transformers' mask functions ---------------------------------------------------------------------


@dataclass(frozen=True)
class _MaskFunctionReader:
    """Translates mask functions for the queries and keys of a grid.

    transformers composes its mask functions of closures. The name of a closure identifies the method here that
    translates it, and its variables are the arguments of that method.

    Attributes:
        grid: the queries and keys.
        positions: the positions of the queries as the mask function counts them: that of the first query, or (B, Tq) if
            sequences are packed.
        positions_count: whether positions that jump stand for packed sequences; those of sharded tokens jump anyway.
    """

    grid: Grid
    positions: int | Tensor
    positions_count: bool = True

    def read(self, function: MaskFunction) -> Mask | None:
        """Return the mask of a function, or None if it hides nothing."""
        name = (
            function.__qualname__ if getattr(function, "__module__", "") == _MASKING_MODULE else ""
        )
        translate = _TRANSLATIONS.get(name.partition(".")[0])
        if translate is None:
            raise _unknown_function_error(function)
        cells = function.__closure__ or ()
        variables = zip(function.__code__.co_freevars, cells, strict=True)
        return translate(self, **{name: cell.cell_contents for name, cell in variables})

    def causal(self) -> Mask | None:
        return _causal(self.grid)

    def bidirectional(self) -> None:
        return None

    def intersection(self, mask_functions: tuple[MaskFunction, ...]) -> Mask | None:
        masks = [mask for mask in map(self.read, mask_functions) if mask is not None]
        return reduce(and_, masks) if masks else None

    def sliding_window(self, sliding_window: int) -> Mask | None:
        if self.grid.shift + self.grid.Tq <= sliding_window:
            return None
        return Band(sliding_window - 1, self.grid.Tk, align="end")

    def bidirectional_window(self, sliding_window: int) -> Mask | None:
        if max(self.grid.Tq, self.grid.Tk) <= sliding_window:
            return None
        return Band(sliding_window, sliding_window, align="end")

    def chunks(self, chunk_size: int, left_padding: Tensor) -> Mask:
        """Return the mask of chunks, which are counted from the first real token."""
        i, positions = self.grid.positions(), self.positions
        if isinstance(positions, int):
            positions = positions + torch.arange(self.grid.Tq, device=self.grid.device)
        start = i - (positions - left_padding.unsqueeze(-1)).remainder(chunk_size)
        return KeyRanges(Intervals.single(start, start + chunk_size, self.grid.Tk))

    def packed_sequences(self, packed_sequence_mask: Tensor) -> Mask | None:
        return Documents(packed_sequence_mask) if self.positions_count else None

    def packed_positions(self, mask_function: MaskFunction, position_ids: Tensor) -> Mask | None:
        """Read a function whose positions restart in each packed sequence.

        Within a sequence they differ only by a constant from the positions in the batch entry.
        """
        reader = _MaskFunctionReader(self.grid, position_ids) if self.positions_count else self
        return reader.read(mask_function)


_TRANSLATIONS: dict[str, Callable[..., Mask | None]] = {
    "causal_mask_function": _MaskFunctionReader.causal,
    "bidirectional_mask_function": _MaskFunctionReader.bidirectional,
    "and_masks": _MaskFunctionReader.intersection,
    "sliding_window_overlay": _MaskFunctionReader.sliding_window,
    "sliding_window_bidirectional_overlay": _MaskFunctionReader.bidirectional_window,
    "chunked_overlay": _MaskFunctionReader.chunks,
    "packed_sequence_mask_function": _MaskFunctionReader.packed_sequences,
    "remap_positions_for_packed_sequence": _MaskFunctionReader.packed_positions,
}


def _causal(grid: Grid) -> Mask | None:
    """Return the causal mask, or None if even the first query sees every key."""
    return None if grid.shift >= grid.Tk - 1 else Causal(align="end")


def _unknown_function_error(function: MaskFunction) -> ArgumentError:
    name = getattr(function, "__qualname__", type(function).__name__)
    return ArgumentError(
        "mask_function",
        expected="a combination of transformers' own causal, sliding, chunked, bidirectional and packed masks",
        received=f"{getattr(function, '__module__', '')}.{name}".partition(".<locals>")[0],
        remedy='Such a mask needs Tq x Tk entries: use model.set_attn_implementation("sdpa") for this '
        "model, or pass it a Boolean attention_mask (B, 1, Tq, Tk), True = attend.",
    )


# --- lowering, once for all layers --------------------------------------------------------------------


def _lower(pattern: Mask | None, real: Tensor | None, grid: Grid) -> Mask | None:
    """Restrict a pattern to the real keys, in a form that each layer can lower again at no cost."""
    at_end = grid.shift == grid.Tk - grid.Tq
    if real is None and (pattern is None or (pattern.constant and at_end)):
        return pattern  # heedful.masks caches the key ranges of such patterns
    ranges = None if real is None else _single_range(real, grid)
    # Padding with holes has more than two key ranges per query.
    if real is not None and ranges is None:
        tokens = Dense(real[:, None, None, :])
        return tokens if pattern is None else Dense(pattern.dense_on(grid) & tokens.tensor)
    if pattern is not None:
        visible = pattern.key_ranges(grid)
        assert visible is not None  # every pattern above has key ranges
        ranges = visible if ranges is None else visible & ranges
    assert ranges is not None
    return KeyRanges(ranges)


def _real_keys(attention_mask: Tensor | None, first: int, Tk: int) -> Tensor | None:
    """Return which keys are real tokens, Boolean (B, Tk), or None if all are."""
    if attention_mask is None:
        return None
    real = attention_mask[:, first : first + Tk]
    if real.shape[1] < Tk:  # a static cache that is not yet full
        return torch.nn.functional.pad(real, (0, Tk - real.shape[1]))
    return None if bool(real.all()) else real


def _single_range(real: Tensor, grid: Grid) -> Intervals | None:
    """Return the range of real keys of each batch entry, or None if the real keys of one have a gap."""
    flags = real.to(torch.uint8)
    count = real.sum(dim=1)
    first = flags.argmax(dim=1)
    past = torch.where(count > 0, grid.Tk - flags.flip(1).argmax(dim=1), first)
    if bool((past - first != count).any()):
        return None
    start, stop = (edge.unsqueeze(1).expand(-1, grid.Tq) for edge in (first, past))
    return Intervals.single(start, stop, grid.Tk)
