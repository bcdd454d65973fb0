"""The common form of all attention weights, in which they are read from one module and written into another.

H is the number of heads, K the features of a head's queries and keys, V the features of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.conversion.weight_map import QKV, AttentionSettings, WeightMap
from heedful.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Projections:
    """The projections of an attention module, split by head, each with its output features first.

    Attributes:
        settings: the settings of the module.
        query, key: (H, K, d_in).
        value: (H, V, d_in).
        output: (d_out, H*V), or None if the output is the concatenated contexts of the heads.
        query_bias, key_bias: (H, K) or None.
        value_bias: (H, V) or None.
        output_bias: (d_out,) or None.
    """

    settings: AttentionSettings
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    output_bias: Tensor | None

    @property
    def d_in(self) -> int:
        """The number of features of an input token."""
        return self.query.shape[2]

    @property
    def key_dim(self) -> int:
        """K: the features of a head's queries and keys."""
        return self.query.shape[1]

    @property
    def value_dim(self) -> int:
        """V: the features of a head's values."""
        return self.value.shape[1]

    @property
    def context_dim(self) -> int:
        """H*V: the features of the concatenated contexts of all heads."""
        return self.settings.num_heads * self.value_dim

    @property
    def output_dim(self) -> int:
        """The features of the output."""
        return self.context_dim if self.output is None else self.output.shape[0]

    @property
    def has_qkv_bias(self) -> bool:
        """True if the query, key or value projection has a bias."""
        return any(getattr(self, f"{role}_bias") is not None for role in QKV)


def read_projections(module: nn.Module, weight_map: WeightMap) -> Projections:
    """Copy the weights of a module into the common form.

    Raises:
        ArgumentError: the number of heads does not divide the features, or groups of heads share keys and values.
    """

    def whole(field: str) -> Tensor:
        # `cat` copies even a single tensor, so that the result shares no memory with the module.
        return torch.cat([part.view(module).detach() for part in weight_map.slices[field]])

    def by_head(field: str) -> Tensor:
        return split_heads(whole(field), field, weight_map.settings)

    def if_present(read: Callable[[str], Tensor], field: str) -> Tensor | None:
        return read(field) if field in weight_map.slices else None

    projections = Projections(
        settings=weight_map.settings,
        query=by_head("query"),
        key=by_head("key"),
        value=by_head("value"),
        output=if_present(whole, "output"),
        query_bias=if_present(by_head, "query_bias"),
        key_bias=if_present(by_head, "key_bias"),
        value_bias=if_present(by_head, "value_bias"),
        output_bias=if_present(whole, "output_bias"),
    )
    query_features = projections.query.shape[:2].numel()
    key_features = projections.key.shape[:2].numel()
    if query_features != key_features:
        raise ArgumentError(
            "keys",
            expected=f"{query_features} features, as many as the queries of {weight_map.settings.module}",
            received=f"{key_features}: heads in groups that share keys and values",
            remedy="Repeat each key and value head for every query head of its group first.",
        )
    return projections


def split_heads(tensor: Tensor, field: str, settings: AttentionSettings) -> Tensor:
    """Split the first dimension into heads: (H*D, …) → (H, D, …)."""
    if tensor.shape[0] % settings.num_heads:
        raise ArgumentError(
            "num_heads",
            expected=f"a divisor of the {tensor.shape[0]} features of the {field} of {settings.module}",
            received=repr(settings.num_heads),
            remedy="Correct the module's number of heads.",
        )
    return tensor.unflatten(0, (settings.num_heads, -1))


@torch.no_grad()
def write_projections(projections: Projections, module: nn.Module, weight_map: WeightMap) -> None:
    """Copy weights in the common form into a module of the same sizes.

    A field that only the module has is set to its neutral value.
    """
    for field, slices in weight_map.slices.items():
        weights: Tensor | None = getattr(projections, field)
        if weights is None:
            weights = neutral_value(projections, field)
        elif not field.startswith("output"):
            weights = weights.flatten(0, 1)
        views = [part.view(module) for part in slices]
        pieces = weights.split([view.shape[0] for view in views])
        for view, piece in zip(views, pieces, strict=True):
            view.copy_(piece)


def neutral_value(projections: Projections, field: str) -> Tensor:
    """Return the value that has the same effect as lacking a field.

    For `output` this is the identity (H*V, H*V), for a bias it is zeros (features,).
    """
    if field == "output":
        return torch.eye(projections.context_dim).to(projections.value)
    if field == "output_bias":
        return torch.zeros(projections.output_dim).to(projections.value)
    weight: Tensor = getattr(projections, field.removesuffix("_bias"))
    return torch.zeros(weight.shape[:2].numel()).to(weight)


def is_neutral(projections: Projections, field: str) -> bool:
    """Check whether the module would compute the same without a field."""
    weights: Tensor | None = getattr(projections, field)
    if weights is None:
        return True
    neutral = neutral_value(projections, field)
    return weights.numel() == neutral.numel() and bool(
        (weights.flatten() == neutral.flatten()).all()
    )
