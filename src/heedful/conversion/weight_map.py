"""The settings of an attention module, and the parameters in which it stores its weights."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from torch import Tensor, nn

QKV: tuple[str, str, str] = ("query", "key", "value")


@dataclass(frozen=True)
class ParameterSlice:
    """A parameter, or a part of one, that stores one weight matrix or bias vector.

    Attributes:
        parameter: the dotted name of the parameter, as in `named_parameters`.
        rows: the first output feature and the one after the last, if one parameter stores several projections.
        transposed: whether the weight is (in, out) rather than (out, in) as in `nn.Linear`.
    """

    parameter: str
    rows: tuple[int, int] | None = None
    transposed: bool = False

    def stored(self, module: nn.Module) -> Tensor:
        """Return the whole parameter."""
        return attrgetter(self.parameter)(module)

    def view(self, module: nn.Module) -> Tensor:
        """Return a view of the weight (out, in) or bias (out,), through which it can be read and written."""
        stored = self.stored(module)
        oriented = stored.mT if self.transposed and stored.ndim == 2 else stored
        return oriented if self.rows is None else oriented[slice(*self.rows)]

    def __str__(self) -> str:
        return self.parameter + ("[{}:{}]".format(*self.rows) if self.rows else "")


# The slices that store each field of `Projections` which the module has. Several slices, such as a wrapper's heads, are
# concatenated along the output features.
WeightSlices: TypeAlias = dict[str, tuple[ParameterSlice, ...]]


@dataclass(frozen=True)
class AttentionSettings:
    """The settings of an attention module that are not trained.

    Attributes:
        module: the name of its class, for messages.
        num_heads: the number of heads.
        causal: whether the module masks future tokens; None if each call decides.
        dropout: the dropout probability of the attention weights.
        output_dropout: the dropout probability of the output features.
        context_length: the maximum number of tokens; None if the module has no limit.
    """

    module: str
    num_heads: int
    causal: bool | None
    dropout: float = 0.0
    output_dropout: float = 0.0
    context_length: int | None = None


@dataclass(frozen=True)
class WeightMap:
    """The settings of one module, and the parameter slices that store its weights."""

    settings: AttentionSettings
    slices: WeightSlices


def layer_slices(module: nn.Module, layer: str, field: str) -> WeightSlices:
    """Return the slices of one layer, which is an `nn.Linear` or transformers' `Conv1D` with its weight (in, out)."""
    submodule = module.get_submodule(layer)
    transposed = not isinstance(submodule, nn.Linear)
    slices: WeightSlices = {field: (ParameterSlice(f"{layer}.weight", transposed=transposed),)}
    if submodule.bias is not None:
        slices[f"{field}_bias"] = (ParameterSlice(f"{layer}.bias"),)
    return slices


def output_slices(module: nn.Module) -> WeightSlices:
    """Return the slices of `out_proj`, or none if the module has no such layer."""
    return layer_slices(module, "out_proj", "output") if hasattr(module, "out_proj") else {}
