"""Compare the outputs of two modules on the same inputs."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from heedful.conversion.adapters.adapter import AdaptedModule
from heedful.conversion.certificate import Certificate, largest_difference, largest_magnitude
from heedful.conversion.weight_map import ParameterSlice

# Rounding in float64 costs about 1e-16 of the size of the scores, so even scores of a million stay far below this.
# A misplaced weight costs about 1.
TOLERANCE: float = 1e-9

# The float64 scores of 256 tokens take 1 MB per head and batch entry, which is cheap even for a layer of a real model.
MAX_TOKENS: int = 256
BATCH: int = 2


def certify(source: AdaptedModule, target: AdaptedModule, remarks: tuple[str, ...]) -> Certificate:
    """Compare the outputs of two modules of the same sizes, dtype and device."""
    original, converted = source.weight_map.settings, target.weight_map.settings
    causal = bool(converted.causal if original.causal is None else original.causal)
    weight = source.weight_map.slices["query"][0].view(source.module)
    inputs = random_inputs(weight.shape[-1], original.context_length, converted.context_length)
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # for a module that draws even in eval mode
        in_float64 = (torch.device("cpu"), torch.float64)
        in_own_dtype = (weight.device, weight.dtype)
        expected, received, expected_in_dtype, received_in_dtype = (
            outputs(adapted, inputs, causal, *arithmetic)
            for arithmetic in (in_float64, in_own_dtype)
            for adapted in (source, target)
        )
    return Certificate(
        source=original.module,
        target=converted.module,
        difference=largest_difference(expected, received),
        scale=largest_magnitude(expected),
        tolerance=TOLERANCE,
        inputs=tuple(tuple(x.shape) for x in inputs),
        difference_in_dtype=largest_difference(expected_in_dtype, received_in_dtype),
        dtype=weight.dtype,
        carried=carried_parameters(source, target),
        source_call=source.adapter.call_text(source.module, causal),
        target_call=target.adapter.call_text(target.module, causal),
        remarks=remarks,
    )


def random_inputs(d_in: int, *context_lengths: int | None) -> list[Tensor]:
    """Return standard normal inputs (B, T, d_in) in float64, for several T up to what both modules accept."""
    max_tokens = min([MAX_TOKENS, *(length for length in context_lengths if length is not None)])
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(BATCH, T, d_in, generator=generator, dtype=torch.float64, device="cpu")
        for T in sorted({1, min(2, max_tokens), (max_tokens + 1) // 2, max_tokens})
    ]


@torch.no_grad()
def outputs(
    adapted: AdaptedModule,
    inputs: list[Tensor],
    causal: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> list[Tensor]:
    """Return the outputs of a copy of the module in eval mode, as float64 on the CPU."""
    module = copy.deepcopy(adapted.module).to(device=device, dtype=dtype).eval()
    return [
        adapted.adapter.call(module, x.to(device, dtype), causal).to("cpu", torch.float64)
        for x in inputs
    ]


def carried_parameters(source: AdaptedModule, target: AdaptedModule) -> tuple[tuple[str, str], ...]:
    """Return the names of the source's and the target's parameters for each field of the target."""
    pairs = []
    for field, destinations in target.weight_map.slices.items():
        origins = source.weight_map.slices.get(field)
        default = "identity" if field == "output" else "zeros"
        origin = default if origins is None else slice_names(origins)
        pairs.append((origin, slice_names(destinations)))
    return tuple(pairs)


def slice_names(slices: tuple[ParameterSlice, ...]) -> str:
    """Return the name of a single slice, or the first and the last of several."""
    return str(slices[0]) if len(slices) == 1 else f"{slices[0]} … {slices[-1]}"
