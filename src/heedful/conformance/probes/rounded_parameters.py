"""Probe: a trained number acts on the output by more than a whole number made of it, which has no gradient."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.differentiation import DifferentiationPoint
from heedful.conformance.probes.gradient_lines import leaves_of, line_in_target
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding

ROUNDING = ("__int__", "__index__", "long", "int")


@probe("gradient-wrong")
def rounded_parameters(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Note the parameters of which the target makes whole numbers, and check that they have a gradient otherwise."""
    point = DifferentiationPoint.of(evidence)
    with (rounded := _Rounded()):
        loss = point.loss()
    if not rounded.tensors:
        return
    trained = {*map(id, leaves_of(loss))}
    names = {id(leaf): name for name, leaf in point.leaves.items()}
    for tensor, place in rounded.tensors:
        behind = {*map(id, leaves_of(tensor))}
        lost = [name for leaf, name in names.items() if leaf in behind]
        if lost and not trained & behind:
            yield Finding(
                "gradient-wrong",
                "bug",
                f"A whole number is made of the parameter {lost[0]}, which has no gradient: training never "
                "changes the parameter.",
                ANY_CALL,
                place,
                "Let the parameter act on the output by a product or a sum as well, or keep it as a plain number.",
            )
            return


class _Rounded(TorchFunctionMode):
    """Note the tensors with a gradient of which whole numbers are made, and the lines that make them."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[tuple[Tensor, SourceLine | None]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in ROUNDING and args[0].requires_grad:
            self.tensors.append(
                (args[0], line_in_target(sys._getframe(1), DifferentiationPoint.loss.__code__))
            )
        return func(*args, **(kwargs or {}))
