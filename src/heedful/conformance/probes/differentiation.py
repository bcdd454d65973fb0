"""Differentiate a weighted sum of a subject's outputs with respect to its tokens and parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.inputs import Inputs


@dataclass(frozen=True, eq=False)
class DifferentiationPoint:
    """A fresh copy of a subject, its inputs, and the leaves that gradients are taken with respect to.

    Attributes:
        subject: the copy.
        inputs: its inputs, made of the leaves where these are tokens.
        leaves: tokens and parameters by name.
    """

    subject: Subject
    inputs: Inputs
    leaves: dict[str, Tensor]

    @classmethod
    def of(cls, evidence: Evidence, inputs: Inputs | None = None) -> DifferentiationPoint:
        """Make a point at some inputs, or else at those of the evidence."""
        subject, inputs = evidence.subject.fresh(), inputs or evidence.inputs
        leaves: dict[str, Tensor] = {}
        if not inputs.vocabulary:
            # Self-attention called as (query, key, value) gets three leaves for one tensor.
            arguments = {
                name: tokens.clone().requires_grad_() for name, tokens in inputs.arguments.items()
            }
            leaves = {f"the argument {name}": tokens for name, tokens in arguments.items()}
            inputs = replace(inputs, arguments=arguments)
        if subject.module is not None:
            frozen = {id(part.weight) for part in subject.module.modules() if _has_padding(part)}
            leaves |= {
                name: parameter
                for name, parameter in subject.module.named_parameters()
                if id(parameter) not in frozen
            }
        return cls(subject, inputs, leaves)

    def loss(self) -> Tensor:
        """Return the sum of the outputs, each multiplied by a random weight: a scalar."""
        output = self.subject.run(self.inputs)
        return (output * random_like(output, "output")).sum()


def random_like(tensor: Tensor, name: str) -> Tensor:
    """Return standard normal numbers of a tensor's shape and dtype, the same for the same name."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)


def _has_padding(module: nn.Module) -> bool:
    """Return True for an embedding with a padding row, which gets no gradient by design."""
    return isinstance(module, nn.Embedding) and module.padding_idx is not None
