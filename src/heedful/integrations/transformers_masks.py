"""What transformers wants masked, as a heedful mask: read from its mask functions, never built."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.integrations.unbuilt_mask import UnbuiltMask
from heedful.intervals import Intervals
from heedful.masks import Band, Causal, Dense, Documents, Grid, KeyRanges, Mask

_HOME = "transformers.masking_utils"


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: Tensor | None = None,
    *,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **_: Any,
) -> UnbuiltMask | None:
    """transformers' mask interface: called once in a forward pass for each kind of layer, its result given to them all.

    Args:
        batch_size, q_length, kv_length: B, Tq, Tk.
        q_offset, kv_offset: the positions of the first query and the first key.
        mask_function: what a query sees of real tokens, composed by transformers; None: causal.
        attention_mask: Boolean (B, keys), True = a real token; what it does not reach is none.
        allow_is_causal_skip, allow_is_bidirectional_skip: whether the model takes None for a mask that hides nothing.
        config: the model's.

    Returns:
        The mask as a tensor (B, 1, Tq, Tk) without entries, or None where it hides nothing.

    Raises:
        ArgumentError: a mask function of the model's or the user's own; attention weights are asked for.
    """
    if _weights_are_wanted(config):
        raise refused_weights()
    grid = Grid(batch_size, q_length, kv_length, int(q_offset) - kv_offset, torch.device(device))
    pattern = _Reader(grid, int(q_offset)).read(mask_function) if mask_function else _causal(grid)
    mask = _lowered(pattern, _real_keys(attention_mask, kv_offset, kv_length), grid)
    can_skip = allow_is_bidirectional_skip or (allow_is_causal_skip and q_length == 1)
    if mask is None and can_skip:
        return None
    return UnbuiltMask(mask, (batch_size, q_length, kv_length), grid.device)


def _weights_are_wanted(config: Any) -> bool:
    """By the configuration, or by the call: some models hide that from their layers, but not what they collect."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return getattr(config, "output_attentions", False) or "attentions" in (collected or ())


def refused_weights() -> ArgumentError:
    """The error for whoever asks for attention weights."""
    return ArgumentError(
        "output_attentions",
        expected='False: the attention implementation "heedful" never forms the weights',
        received="True",
        remedy='Take model.set_attn_implementation("eager"), or heedful.record and a few tokens.',
    )


# --- what transformers' mask functions say ------------------------------------------------------------


@dataclass(frozen=True)
class _Reader:
    """Reads a mask function for the queries and keys of a grid.

    Attributes:
        positions: of the queries in their sequence, as the mask function counts them: the first one's, or
            (B, Tq) where sequences are packed.
    """

    grid: Grid
    positions: int | Tensor

    def read(self, function: Callable) -> Mask | None:
        """The mask; None where it hides nothing.

        transformers composes its mask functions of closures, whose name and variables tell what they do.
        """
        inner = function.__qualname__ if getattr(function, "__module__", "") == _HOME else ""
        read = _MEANINGS.get(inner.partition(".")[0])
        if read is None:
            raise _unknown(function)
        cells = function.__closure__ or ()
        variables = zip(function.__code__.co_freevars, cells, strict=True)
        return read(self, **{name: cell.cell_contents for name, cell in variables})

    def causal(self) -> Mask | None:
        return _causal(self.grid)

    def bidirectional(self) -> None:
        return None

    def both(self, mask_functions: tuple[Callable, ...]) -> Mask | None:
        masks = [mask for mask in map(self.read, mask_functions) if mask is not None]
        return reduce(and_, masks) if masks else None

    def newest(self, sliding_window: int) -> Mask | None:
        if self.grid.shift + self.grid.Tq <= sliding_window:
            return None
        return Band(sliding_window - 1, self.grid.Tk, align="end")

    def near(self, sliding_window: int) -> Mask | None:
        if max(self.grid.Tq, self.grid.Tk) <= sliding_window:
            return None
        return Band(sliding_window, sliding_window, align="end")

    def chunk(self, chunk_size: int, left_padding: Tensor) -> Mask:
        """Positions are counted from the first real token, and cut into chunks."""
        i, positions = self.grid.positions(), self.positions
        if isinstance(positions, int):
            positions = positions + torch.arange(self.grid.Tq, device=self.grid.device)
        start = i - (positions - left_padding.unsqueeze(-1)).remainder(chunk_size)
        return KeyRanges(Intervals.single(start, start + chunk_size, self.grid.Tk))

    def packed(self, packed_sequence_mask: Tensor) -> Mask:
        return Documents(packed_sequence_mask)

    def within_documents(self, mask_function: Callable, position_ids: Tensor) -> Mask | None:
        """Inside a document, positions and places in the batch entry differ by a constant only."""
        return _Reader(self.grid, position_ids).read(mask_function)


_MEANINGS: dict[str, Callable[..., Mask | None]] = {
    "causal_mask_function": _Reader.causal,
    "bidirectional_mask_function": _Reader.bidirectional,
    "and_masks": _Reader.both,
    "sliding_window_overlay": _Reader.newest,
    "sliding_window_bidirectional_overlay": _Reader.near,
    "chunked_overlay": _Reader.chunk,
    "packed_sequence_mask_function": _Reader.packed,
    "remap_positions_for_packed_sequence": _Reader.within_documents,
}


def _causal(grid: Grid) -> Mask | None:
    """Causal, unless already the first query sees every key."""
    return None if grid.shift >= grid.Tk - 1 else Causal(align="end")


def _unknown(function: Callable) -> ArgumentError:
    name = getattr(function, "__qualname__", type(function).__name__)
    return ArgumentError(
        "mask_function",
        expected="what transformers composes itself of causal, sliding, chunked, bidirectional and packed masks",
        received=f"{getattr(function, '__module__', '')}.{name}".partition(".<locals>")[0],
        remedy='Such a mask needs Tq x Tk entries: take model.set_attn_implementation("sdpa") for this '
        "model, or pass it a Boolean attention_mask (B, 1, Tq, Tk), True = attend.",
    )


# --- lowered once, for all layers ---------------------------------------------------------------------


def _lowered(pattern: Mask | None, real: Tensor | None, grid: Grid) -> Mask | None:
    """The pattern cut to the real keys, in a form that costs a layer nothing to lower again."""
    at_end = grid.shift == grid.Tk - grid.Tq
    if real is None and (pattern is None or (pattern.constant and at_end)):
        return pattern  # of whose runs heedful.masks keeps the last few
    runs = None if real is None else _single_run(real, grid)
    if real is not None and runs is None:  # padding with holes: beyond two runs of keys a query
        tokens = Dense(real[:, None, None, :])
        return tokens if pattern is None else Dense(pattern.dense_on(grid) & tokens.tensor)
    if pattern is not None:
        seen = pattern.key_ranges(grid)
        assert seen is not None  # every pattern above has runs
        runs = seen if runs is None else seen & runs
    assert runs is not None
    return KeyRanges(runs)


def _real_keys(attention_mask: Tensor | None, first: int, Tk: int) -> Tensor | None:
    """Which of the keys are real tokens: Boolean (B, Tk); None where all are."""
    if attention_mask is None:
        return None
    real = attention_mask[:, first : first + Tk]
    if real.shape[1] < Tk:  # a static cache, not yet full
        return torch.nn.functional.pad(real, (0, Tk - real.shape[1]))
    return None if bool(real.all()) else real


def _single_run(real: Tensor, grid: Grid) -> Intervals | None:
    """The run of real keys of each batch entry; None where one has a hole."""
    flags = real.to(torch.uint8)
    count = real.sum(dim=1)
    first = flags.argmax(dim=1)
    past = torch.where(count > 0, grid.Tk - flags.flip(1).argmax(dim=1), first)
    if bool((past - first != count).any()):
        return None
    start, stop = (edge.unsqueeze(1).expand(-1, grid.Tq) for edge in (first, past))
    return Intervals.single(start, stop, grid.Tk)
