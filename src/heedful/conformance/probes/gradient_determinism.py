"""Check that the same backward pass gives the same gradients each time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.differentiation import DifferentiationPoint
from heedful.conformance.probes.gradient_lines import find_gradient_line
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Fact, Finding

SUMMATION_ORDER = 1e-6  # the largest relative difference that another order of summation explains


@probe("gradient-not-deterministic")
def gradient_determinism(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Repeat the same backward pass. The gradients must be bitwise equal."""
    passes = [_run_backward(evidence, seed) for seed in (1, 2, 3)]
    losses = [loss for loss, _ in passes]
    if any(loss is None or loss != losses[0] for loss in losses):
        return  # there is no gradient, or the forward pass itself is random
    _, first = passes[0]
    for _, gradients in passes[1:]:
        for name, gradient in gradients.items():
            difference = (gradient - first[name]).abs().max().item()
            if not difference > 0:
                continue
            largest = first[name].abs().max().item()
            B, T = evidence.inputs.sizes
            yield Finding(
                "gradient-not-deterministic",
                "bug" if difference > SUMMATION_ORDER * largest else "suspicious",
                f"Repeating the same backward pass changes the gradient of {name} by {difference:.3g}; its largest "
                f"entry is {largest:.3g}.",
                f"B = {B}, T = {T}",
                find_gradient_line(evidence),
            )
            return


def _run_backward(evidence: Evidence, seed: int) -> tuple[float | None, dict[str, Tensor]]:
    """Return the loss of a seeded forward pass, and gradients of a backward pass under another seed."""
    point = DifferentiationPoint.of(evidence)
    loss = point.loss()
    if not loss.requires_grad:
        return None, {}
    torch.manual_seed(seed)
    if isinstance(attempt(lambda: point.subject.backward(loss)), Exception):
        return None, {}  # the finding "gradient-wrong" reports it
    gradients = {name: leaf.grad for name, leaf in point.leaves.items() if leaf.grad is not None}
    return loss.item(), gradients
