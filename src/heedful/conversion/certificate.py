"""The certificate of a conversion: the largest difference between the outputs of two models on the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.shapes import times
from heedful.tables import table


@dataclass(frozen=True, repr=False)
class Certificate:
    """The difference between the outputs of a converted model and those of its source.

    Both are compared in eval mode, on inputs from a generator of their own. Copies are compared, so that neither the
    mode of a model nor the global random state changes.

    Attributes:
        source, target: the names of the two classes.
        difference: the largest absolute difference between outputs, both computed in float64 on the CPU; NaN if an
            output is NaN.
        scale: the largest absolute output of the source, in float64.
        tolerance: the difference, relative to the scale, that rounding alone may cause.
        inputs: the shapes of the inputs.
        quantity: what is compared, such as "outputs" or "logits".
        difference_in_dtype: the same difference in the models' own dtype on their own device, if it was measured. It
            shows the effect of rounding, and does not affect `exact`.
        dtype: the models' own dtype, if `difference_in_dtype` was measured.
        carried: pairs of a parameter of the source and the parameter of the target that it was copied to. The first is
            "identity" or "zeros" if the source has no such parameter. The second includes the rows if it is a part of a
            parameter.
        source_call, target_call: the calls that were compared. The mask is an argument of the call if the module has
            none of its own.
        remarks: differences that do not affect the outputs in eval mode, such as dropout.

    Examples:
        >>> certificate = Certificate("A", "B", 1e-12, 2.0, tolerance=1e-10, inputs=((2, 5, 3),))
        >>> certificate.exact
        True
    """

    source: str
    target: str
    difference: float
    scale: float
    tolerance: float
    inputs: tuple[tuple[int, ...], ...]
    quantity: str = "outputs"
    difference_in_dtype: float | None = None
    dtype: torch.dtype | None = None
    carried: tuple[tuple[str, str], ...] = ()
    source_call: str | None = None
    target_call: str | None = None
    remarks: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """True if the outputs differ by rounding alone."""
        return self.difference <= self.tolerance * self.scale

    def __repr__(self) -> str:
        return f"Certificate({self._verdict}; {self._differences[0]})"

    @property
    def _verdict(self) -> str:
        verdict = "the same function" if self.exact else "NOT the same function"
        return f"{self.source} → {self.target}: {verdict}"

    @property
    def _differences(self) -> list[str]:
        allowed = f"{self.tolerance:.0e} of {self.scale:.3g}"
        lines = [f"{self.quantity} differ by {self.difference:.1e} in float64 (allowed: {allowed})"]
        if self.difference_in_dtype is not None:
            lines.append(
                f"{self.quantity} differ by {self.difference_in_dtype:.1e} in {self.dtype}"
            )
        return lines

    def _repr_html_(self) -> str:
        """Return the verdict and the weights that were carried over, for a notebook."""
        facts = [("differences", "; ".join(self._differences))]
        facts.append(("inputs", ", ".join(map(times, self.inputs))))
        facts += [("source", self.source_call)] if self.source_call else []
        facts += [("target", self.target_call)] if self.target_call else []
        facts += [("remark", remark) for remark in self.remarks]
        carried = table(self.carried, header=("parameter of the source", "parameter of the target"))
        folded = f"<details><summary>{len(self.carried)} parameters</summary>{carried}</details>"
        mark = "✓" if self.exact else "✗"
        return table(facts, caption=f"{mark} {self._verdict}") + (folded if self.carried else "")

    def __str__(self) -> str:
        lines = [self._verdict, *(f"  {line}" for line in self._differences)]
        lines.append(f"  inputs  {', '.join(map(str, self.inputs))}")
        if self.source_call is not None:
            lines.append(f"  source  {self.source_call}")
        if self.target_call is not None:
            lines.append(f"  target  {self.target_call}")
        width = max((len(origin) for origin, _ in self.carried), default=0)
        lines += [f"  {origin:<{width}} → {destination}" for origin, destination in self.carried]
        lines += [f"  {remark}" for remark in self.remarks]
        return "\n".join(lines)


def largest_difference(expected: Sequence[Tensor], received: Sequence[Tensor]) -> float:
    """Return the largest absolute difference between two lists of tensors, or NaN if one contains NaN."""
    return largest_magnitude([a - b for a, b in zip(expected, received, strict=True)])


def largest_magnitude(tensors: Sequence[Tensor]) -> float:
    """Return the largest absolute value in a list of tensors, or NaN if one contains NaN."""
    # Unlike Python's max, torch's never loses a NaN.
    return torch.stack([tensor.abs().max() for tensor in tensors]).max().item()
