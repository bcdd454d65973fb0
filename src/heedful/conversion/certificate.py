"""The proof of a conversion: two modules' outputs on fresh inputs, and the largest difference between them."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.conversion.anatomy import Place
from heedful.conversion.kind import Subject

# Rounding in float64 costs about 1e-16 of the scores' size; even scores of a million stay far below this.
# A weight in the wrong place costs about 1.
TOLERANCE = 1e-9

# Float64 scores of 256 tokens take 1 MB a head and batch entry, so certifying a real model's layer is cheap.
LONGEST = 256
BATCH = 2


@dataclass(frozen=True)
class Certificate:
    """What was carried from one module into another, and how far their outputs are apart.

    Both are compared in eval mode, on standard normal inputs from a generator of the certificate's own, as copies:
    neither a mode nor the global random state is touched.

    Attributes:
        source, target: the two classes' names.
        difference: the largest absolute difference of outputs, both computed in float64 on the CPU; NaN if an
            output is NaN.
        difference_in_dtype: the same in the modules' own dtype on their own device. It tells what rounding does,
            and decides nothing.
        dtype: the modules' own.
        scale: the source's largest absolute output, in float64.
        inputs: the inputs' shapes (B, T, d_in): 1 token, few, and as many as both accept, 256 at most.
        carried: pairs of names: the source's parameter, or "identity" or "zeros" where it has none, and the
            target's, with the rows of output features if it is a part of one.
        source_call, target_call: how each was called. A module without causality of its own gets it here.
        remarks: what differs without making outputs differ: dropout, the most tokens, what was left behind.
    """

    source: str
    target: str
    difference: float
    difference_in_dtype: float
    dtype: torch.dtype
    scale: float
    inputs: tuple[tuple[int, ...], ...]
    carried: tuple[tuple[str, str], ...]
    source_call: str
    target_call: str
    remarks: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether float64 outputs differ by rounding alone: by at most 1e-9 of the source's largest output."""
        return self.difference <= TOLERANCE * self.scale

    def __str__(self) -> str:
        width = max(len(origin) for origin, _ in self.carried)
        return "\n".join(
            [
                f"{self.source} → {self.target}: {'the same function' if self.exact else 'NOT the same function'}",
                f"  outputs differ by {self.difference:.1e} in float64 (allowed: {TOLERANCE:.0e} of {self.scale:.3g})",
                f"  outputs differ by {self.difference_in_dtype:.1e} in {self.dtype}",
                f"  inputs  {', '.join(map(str, self.inputs))}",
                f"  source  {self.source_call}",
                f"  target  {self.target_call}",
                *(f"  {origin:<{width}} → {destination}" for origin, destination in self.carried),
                *(f"  {remark}" for remark in self.remarks),
            ]
        )


def certify(source: Subject, target: Subject, remarks: tuple[str, ...]) -> Certificate:
    """Compare two modules of the same sizes, dtype and device."""
    ours, theirs = source.anatomy.settings, target.anatomy.settings
    causal = bool(theirs.causal if ours.causal is None else ours.causal)
    weight = source.anatomy.places["query"][0].view(source.module)
    inputs = fresh_inputs(weight.shape[-1], ours.context_length, theirs.context_length)
    devices = [weight.device] if weight.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):  # for a module that draws even in eval mode
        in_float64 = (torch.device("cpu"), torch.float64)
        in_own_dtype = (weight.device, weight.dtype)
        expected, received, expected_in_dtype, received_in_dtype = (
            outputs(subject, inputs, causal, *arithmetic)
            for arithmetic in (in_float64, in_own_dtype)
            for subject in (source, target)
        )
    return Certificate(
        source=ours.module,
        target=theirs.module,
        difference=largest_difference(expected, received),
        difference_in_dtype=largest_difference(expected_in_dtype, received_in_dtype),
        dtype=weight.dtype,
        scale=torch.stack([output.abs().max() for output in expected]).max().item(),
        inputs=tuple(tuple(x.shape) for x in inputs),
        carried=carried(source, target),
        source_call=source.kind.usage(source.module, causal),
        target_call=target.kind.usage(target.module, causal),
        remarks=remarks,
    )


def fresh_inputs(d_in: int, *context_lengths: int | None) -> list[Tensor]:
    """Standard normal (B, T, d_in) in float64, for several T up to what both modules accept."""
    longest = min([LONGEST, *(length for length in context_lengths if length is not None)])
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(BATCH, T, d_in, generator=generator, dtype=torch.float64, device="cpu")
        for T in sorted({1, min(2, longest), (longest + 1) // 2, longest})
    ]


@torch.no_grad()
def outputs(
    subject: Subject, inputs: list[Tensor], causal: bool, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """What a copy of the module gives for each input in eval mode, as float64 on the CPU."""
    module = copy.deepcopy(subject.module).to(device=device, dtype=dtype).eval()
    return [
        subject.kind.call(module, x.to(device, dtype), causal).to("cpu", torch.float64)
        for x in inputs
    ]


def largest_difference(expected: list[Tensor], received: list[Tensor]) -> float:
    differences = [(a - b).abs().max() for a, b in zip(expected, received, strict=True)]
    return torch.stack(differences).max().item()  # unlike Python's max, never loses a NaN


def carried(source: Subject, target: Subject) -> tuple[tuple[str, str], ...]:
    """For each field of the target, the names of what it came from and where it went."""
    pairs = []
    for field, destinations in target.anatomy.places.items():
        origins = source.anatomy.places.get(field)
        made_up = "identity" if field == "output" else "zeros"
        pairs.append((made_up if origins is None else names(origins), names(destinations)))
    return tuple(pairs)


def names(places: tuple[Place, ...]) -> str:
    return str(places[0]) if len(places) == 1 else f"{places[0]} … {places[-1]}"
