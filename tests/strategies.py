"""Hypothesis strategies for masks of every class and combination, and for whole attention problems."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from heedful.intervals import Intervals
from heedful.masks import (
    Band,
    Causal,
    Dense,
    Documents,
    KeyRanges,
    Mask,
    Padding,
    Prefix,
    Sinks,
    Window,
)


@st.composite
def masks(draw, B: int, Hq: int, Tq: int, Tk: int, *, dense: bool = True) -> Mask:
    """Draw a mask for these sizes: one of any class, or a combination of up to three."""
    align = draw(st.sampled_from(["start", "end"] + ([None] if Tq == Tk else [])))
    lengths = st.lists(st.integers(0, Tk), min_size=B, max_size=B)
    few = st.integers(0, max(Tq, Tk) + 2)
    choices = [
        st.builds(Causal, st.just(align)),
        st.builds(Window, few.map(lambda n: n + 1), st.just(align)),
        st.builds(Band, few, few, st.just(align)),
        st.builds(Prefix, lengths, st.just(align)),
        st.builds(Padding, lengths, st.sampled_from(["right", "left"])),
        st.builds(Sinks, few),
        st.lists(
            st.lists(st.integers(0, 3), min_size=Tk, max_size=Tk).map(sorted),
            min_size=B,
            max_size=B,
        ).map(lambda ids: Documents(torch.tensor(ids, dtype=torch.long).reshape(B, Tk), align)),
    ]
    edges = st.lists(few, min_size=B * Tq, max_size=B * Tq).map(
        lambda numbers: torch.tensor(numbers, dtype=torch.long).reshape(B, Tq)
    )
    choices.append(
        st.builds(lambda start, stop: KeyRanges(Intervals.single(start, stop, Tk)), edges, edges)
    )
    if dense:
        shape = st.tuples(*(st.sampled_from([1, n]) for n in (B, Hq, Tq, Tk)))
        choices.append(st.builds(_random_dense, shape, st.integers(0, 2**31)))
    mask = draw(st.one_of(choices))
    for _ in range(draw(st.integers(0, 2))):
        other = draw(st.one_of(choices))
        mask = mask & other if draw(st.booleans()) else mask | other
    return mask


def _random_dense(shape: tuple[int, ...], seed: int) -> Dense:
    return Dense(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4)


@dataclass
class Call:
    """The arguments of one call of attention."""

    tensors: dict[str, torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def to(self, dtype: torch.dtype) -> "Call":
        """Return the same numbers in another dtype, as leaves that require gradients."""
        tensors = {
            name: tensor.detach().to(dtype).requires_grad_()
            for name, tensor in self.tensors.items()
        }
        return Call(tensors, self.options)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `attention` by name."""
        return self.tensors | self.options


@st.composite
def calls(
    draw,
    *,
    dtype: torch.dtype = torch.float32,
    max_size: int = 12,
    extras: tuple[str, ...] = ("bias", "softcap", "sinks"),
) -> Call:
    """Draw query, key and value of any sizes and strides, a mask or none, and the options named in `extras`."""
    B, Hkv, group = (draw(st.integers(1, 3)) for _ in range(3))
    Hq = Hkv * group
    Tq, Tk = draw(st.integers(1, max_size)), draw(st.integers(1, max_size))
    if draw(st.booleans()):
        Tk = Tq
    D, Dv = draw(st.integers(1, max_size)), draw(st.integers(1, max_size))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    layout = draw(st.sampled_from(["heads first", "tokens first", "packed", "every other token"]))
    tensors = {
        "query": _strided((B, Hq, Tq, D), layout, generator).to(dtype),
        "key": _strided((B, Hkv, Tk, D), layout, generator).to(dtype),
        "value": _strided((B, Hkv, Tk, Dv), layout, generator).to(dtype),
    }
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["mask"] = draw(masks(B, Hq, Tq, Tk))
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(0.05, 2.0))
    if "softcap" in extras and draw(st.booleans()):
        options["softcap"] = draw(st.floats(0.5, 20.0))
    if "bias" in extras and draw(st.booleans()):
        shape = draw(st.tuples(*(st.sampled_from([1, n]) for n in (B, Hq, Tq, Tk))))
        tensors["bias"] = torch.randn(shape, generator=generator).to(dtype)
    if "sinks" in extras and draw(st.booleans()):
        tensors["sinks"] = torch.randn(Hq, generator=generator).to(dtype)
    return Call(tensors, options)


def _strided(
    shape: tuple[int, int, int, int], layout: str, generator: torch.Generator
) -> torch.Tensor:
    """Return random numbers in one of the layouts that models produce; the last dimension is contiguous."""
    B, H, T, D = shape
    if layout == "tokens first":
        return torch.randn(B, T, H, D, generator=generator).transpose(1, 2)
    if layout == "packed":  # a slice of a projection that holds query, key and value
        return torch.randn(B, T, 3, H, D, generator=generator)[:, :, 1].transpose(1, 2)
    if layout == "every other token":
        return torch.randn(B, H, 2 * T, D, generator=generator)[:, :, ::2]
    return torch.randn(shape, generator=generator)
