"""What an attention module consists of, wherever it keeps it: `read` takes it out, `write` puts it in.

H heads, K features of a head's queries and keys, V of its values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

import torch
from torch import Tensor, nn

from heedful.errors import ArgumentError

QKV = ("query", "key", "value")


@dataclass(frozen=True)
class Place:
    """Where a module keeps one matrix of weights, or one vector of biases.

    Attributes:
        parameter: its name, with dots, as in `named_parameters`.
        part: from which of its output features to which, where one parameter holds several projections.
        transposed: whether it is (in, out) rather than `nn.Linear`'s (out, in).
    """

    parameter: str
    part: tuple[int, int] | None = None
    transposed: bool = False

    def stored(self, module: nn.Module) -> Tensor:
        return attrgetter(self.parameter)(module)

    def view(self, module: nn.Module) -> Tensor:
        """Weights (out, in) or biases (out,) in the parameter's own memory, so for reading and writing alike."""
        stored = self.stored(module)
        oriented = stored.mT if self.transposed and stored.ndim == 2 else stored
        return oriented if self.part is None else oriented[slice(*self.part)]

    def __str__(self) -> str:
        return self.parameter + ("[{}:{}]".format(*self.part) if self.part else "")


# For each field of `Projections` that a module has, where; several places (a wrapper's heads) follow each
# other along the output features.
Places: TypeAlias = dict[str, tuple[Place, ...]]


@dataclass(frozen=True)
class Settings:
    """What an attention module is told rather than learns.

    Attributes:
        module: its class's name, for messages.
        num_heads: how many heads.
        causal: whether a token is kept from seeing what comes after; None where each call decides.
        dropout: the probability that training zeroes a weight.
        output_dropout: the probability that training zeroes a feature of the output.
        context_length: the most tokens it accepts; None where it has no limit of its own.
    """

    module: str
    num_heads: int
    causal: bool | None
    dropout: float = 0.0
    output_dropout: float = 0.0
    context_length: int | None = None


@dataclass(frozen=True)
class Anatomy:
    """One module's settings, and where it keeps its weights."""

    settings: Settings
    places: Places


def layer_places(module: nn.Module, layer: str, field: str) -> Places:
    """The places of one whole layer: `nn.Linear`, or transformers' `Conv1D`, whose weight is (in, out)."""
    found = module.get_submodule(layer)
    places: Places = {
        field: (Place(f"{layer}.weight", transposed=not isinstance(found, nn.Linear)),)
    }
    if found.bias is not None:
        places[f"{field}_bias"] = (Place(f"{layer}.bias"),)
    return places


def output_places(module: nn.Module) -> Places:
    """The places of `out_proj`; none where the module lacks it."""
    return layer_places(module, "out_proj", "output") if hasattr(module, "out_proj") else {}


def hidden_from(tokens: int, device: torch.device) -> Tensor:
    """What causality hides, Boolean (T, T), True = hidden: for callees that want the other polarity."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(diagonal=1)


@dataclass(frozen=True, eq=False)
class Projections:
    """The form that all weights pass through: an attention's projections by head, each as out × in.

    Attributes:
        settings: what comes with the weights.
        query, key: (H, K, d_in).
        value: (H, V, d_in).
        output: (d_out, H*V), or None where the heads' contexts, side by side, are the output.
        query_bias, key_bias: (H, K) or None. value_bias: (H, V) or None. output_bias: (d_out,) or None.
    """

    settings: Settings
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
        return self.query.shape[2]

    @property
    def key_dim(self) -> int:
        return self.query.shape[1]

    @property
    def value_dim(self) -> int:
        return self.value.shape[1]

    @property
    def context_dim(self) -> int:
        """H*V: the features of all heads' contexts, side by side."""
        return self.settings.num_heads * self.value_dim

    @property
    def output_dim(self) -> int:
        return self.context_dim if self.output is None else self.output.shape[0]

    @property
    def has_qkv_bias(self) -> bool:
        return any(getattr(self, f"{role}_bias") is not None for role in QKV)


def neutral(projections: Projections, field: str) -> Tensor:
    """What lacking a field amounts to: the identity (H*V, H*V) for `output`, zeros (features,) for a bias."""
    if field == "output":
        return torch.eye(projections.context_dim).to(projections.value)
    if field == "output_bias":
        return torch.zeros(projections.output_dim).to(projections.value)
    weight: Tensor = getattr(projections, field.removesuffix("_bias"))
    return torch.zeros(weight.shape[:2].numel()).to(weight)


def read(module: nn.Module, anatomy: Anatomy) -> Projections:
    """Copy a module's weights into the common form.

    Raises:
        ArgumentError: features that its heads do not divide; keys and values shared by groups of heads.
    """

    def whole(field: str) -> Tensor:
        # `cat` copies even a single tensor, so nothing that is read shares memory with the module.
        return torch.cat([place.view(module).detach() for place in anatomy.places[field]])

    def by_head(field: str) -> Tensor:
        return split_heads(whole(field), field, anatomy.settings)

    def where_present(take: Callable[[str], Tensor], field: str) -> Tensor | None:
        return take(field) if field in anatomy.places else None

    projections = Projections(
        settings=anatomy.settings,
        query=by_head("query"),
        key=by_head("key"),
        value=by_head("value"),
        output=where_present(whole, "output"),
        query_bias=where_present(by_head, "query_bias"),
        key_bias=where_present(by_head, "key_bias"),
        value_bias=where_present(by_head, "value_bias"),
        output_bias=where_present(whole, "output_bias"),
    )
    queries, keys = (t.shape[:2].numel() for t in (projections.query, projections.key))
    if queries != keys:
        raise ArgumentError(
            "keys",
            expected=f"{queries} features, as many as the queries of {anatomy.settings.module}",
            received=f"{keys}: heads in groups that share keys and values",
            remedy="Repeat each key and value head for every query head of its group first.",
        )
    return projections


def split_heads(tensor: Tensor, field: str, settings: Settings) -> Tensor:
    """(H*D, …) → (H, D, …)."""
    if tensor.shape[0] % settings.num_heads:
        raise ArgumentError(
            "num_heads",
            expected=f"a divisor of the {tensor.shape[0]} features of the {field} of {settings.module}",
            received=repr(settings.num_heads),
            remedy="Correct the module's number of heads.",
        )
    return tensor.unflatten(0, (settings.num_heads, -1))


@torch.no_grad()
def write(projections: Projections, module: nn.Module, anatomy: Anatomy) -> None:
    """Copy the common form into a module whose sizes fit; a field that only the module has becomes neutral."""
    for field, places in anatomy.places.items():
        weights: Tensor | None = getattr(projections, field)
        if weights is None:
            weights = neutral(projections, field)
        elif not field.startswith("output"):
            weights = weights.flatten(0, 1)
        views = [place.view(module) for place in places]
        pieces = weights.split([view.shape[0] for view in views])
        for view, piece in zip(views, pieces, strict=True):
            view.copy_(piece)
