"""The target of a check as it was given, and copies of it; nothing else is ever run."""

from __future__ import annotations

import copy
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from heedful.conformance.calling.options import option, option_with
from heedful.conformance.recording.target_source import own_text
from heedful.errors import ArgumentError
from heedful.observation.leaves import with_changed_leaves

# Unlike `.to(dtype)`, these keep complex tables of rotary angles complex.
CASTS: Mapping[torch.dtype, Callable[[nn.Module], nn.Module]] = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.bfloat16: nn.Module.bfloat16,
    torch.float16: nn.Module.half,
}

SPREAD = 0.3
"""The standard deviation of the numbers that take the place of a trained tensor of zeros."""

LEAF: re.Pattern[str] = re.compile(r"[.\[]")  # begins the path of a leaf within an argument
# Entries of a matrix that is as good as zero, and of one that was never initialized.
TINY, HUGE = 1e-4, 1e6


class TargetError(Exception):
    """A call that is shown to be valid failed in the target's code; the cause is the target's own exception."""


class ConstructorError(TargetError):
    """The constructor of a target fails whatever it is given; the cause is the exception."""


@dataclass(frozen=True, eq=False)
class Target:
    """The module or function to check, as the caller passed it.

    Attributes:
        name: The name of the class or function.
        callee: A function, or a module that is copied and never run itself.
        guessed: The arguments of its constructor that were guessed, so that its sizes may not fit one another.
        needed: The arguments that a call has to give in spite of their defaults.
        uninitialised: The names of the parameters to which the constructor gave no numbers, if we have called it.
        with_key_heads: Returns the module built with a number of heads of keys and values, if the check may choose it;
            None if it may not.
    """

    name: str
    callee: Callable[..., Any]
    guessed: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    uninitialised: tuple[str, ...] = ()
    with_key_heads: Callable[[int], Any] | None = None

    @property
    def module(self) -> nn.Module | None:
        return self.callee if isinstance(self.callee, nn.Module) else None

    @property
    def forward(self) -> Callable[..., Any]:
        """The function whose signature is that of a call."""
        return self.callee.forward if isinstance(self.callee, nn.Module) else self.callee

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of a call, which takes long to find out."""
        return inspect.signature(self.forward)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of a call, by name."""
        return self.signature.parameters

    @cached_property
    def hiding(self) -> tuple[str, ...]:
        """The names of the module's parameters that hide what depends on them, such as a gate of zeros."""
        return () if self.module is None else tuple(_hiding_parameters(self.module))

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the parameters of a call that have no default, and of those that it has to give nevertheless."""
        without_default = (name for name, it in self.parameters.items() if is_required(it))
        return (*without_default, *self.needed)

    def bound(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return named arguments as positional ones as far as possible, and the rest by keyword.

        The name of a leaf within an argument, such as "batch['tokens']" or "features[0]", replaces that leaf.
        """
        parameters = self.signature.parameters
        stars = (it.name for it in parameters.values() if it.kind is it.VAR_POSITIONAL)
        rest = next(stars, "")
        holder = {rest: (None,)} if f"{rest}[0]" in arguments else {}
        whole = _with_leaves({**holder, **arguments})
        others = whole.pop(rest, ())
        bound = self.signature.bind(**whole)
        return (*bound.args, *others), bound.kwargs

    def copied(self, dtype: torch.dtype, *, train: bool = False) -> Callable[..., Any]:
        """Return a copy of the module in a dtype, in evaluation or training mode; a function is returned as it is.

        Trained tensors of zeros alone, such as a gate that opens in training, have other numbers in the copy.
        """
        if self.module is None:
            return self.callee
        module = CASTS[dtype](copy.deepcopy(self.module, _empty_dictionaries(self.module)))
        _replace_numbers(module, self.hiding)
        module.train(train)  # its result is not used: a module may override it and return nothing
        return module


def _hiding_parameters(module: nn.Module) -> Iterator[str]:
    """Yield the names of trained tensors of zeros alone, and of those of ones that mix two terms: they hide a term."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter) or not parameter.is_floating_point():
            continue
        if parameter.device.type != "cpu" or not parameter.requires_grad:
            continue
        if not parameter.any() or (bool((parameter == 1).all()) and _mixes(module, name)):
            yield name


def _replace_numbers(module: nn.Module, parameters: Collection[str]) -> None:
    """Give some parameters of a module random numbers, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in map(module.get_parameter, parameters):
            numbers = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(numbers * SPREAD if numbers.numel() > 1 else torch.tensor(SPREAD))


def _mixes(module: nn.Module, path: str) -> bool:
    """Check whether the code of a parameter's owner subtracts it from 1: `alpha * x + (1 - alpha) * y`."""
    owner, _, name = path.rpartition(".")
    code = own_text(module.get_submodule(owner))
    return re.search(rf"\b1(\.0)? - (self\.)?{re.escape(name)}\b", code) is not None


def is_required(parameter: inspect.Parameter) -> bool:
    """Check whether a call has to give a parameter."""
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _with_leaves(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which those whose names are paths have replaced the leaves of others."""
    if not any(LEAF.search(name) for name in arguments):
        return dict(arguments)
    owners = {name: LEAF.split(name, maxsplit=1)[0] for name in arguments}
    whole = {name: value for name, value in arguments.items() if owners[name] == name}
    for owner in {owner for name, owner in owners.items() if owner != name}:

        def change(path: str, leaf: Any, owner: str = owner) -> Any:
            return arguments.get(f"{owner}{path}", leaf)

        whole[owner] = with_changed_leaves(whole[owner], change)
    return whole


def make_target(instance: Any) -> Target:
    """Return a target that holds a copy of a module, or a function.

    Raises:
        TargetError: The constructor of a module did not call that of nn.Module.
        ArgumentError: The instance cannot be called or copied.
    """
    instance = getattr(instance, "_orig_mod", instance)  # the argument of torch.compile
    _check_callable(instance)
    _check_constructed(instance)
    _check_forward(instance)
    if instance is F.scaled_dot_product_attention:  # a built-in without a signature
        instance = scaled_dot_product_attention
    if not isinstance(instance, nn.Module):
        return Target(getattr(instance, "__name__", type(instance).__name__), instance)
    try:
        module = copied_module(instance).cpu()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ArgumentError(
            option("target"),
            expected="a module that copy.deepcopy can copy, because only copies are run",
            received=f"{type(instance).__name__}, which raises {type(error).__name__}: {error}",
            remedy="Pass a module that has just been built, or its class.",
        ) from error
    _randomize_constants(module)
    return Target(type(instance).__name__, module)


def copied_module(module: nn.Module) -> nn.Module:
    """Return a copy of a module, in which the results that it stores have no graph, because deepcopy refuses them."""
    return copy.deepcopy(module, _detached_results(module))


def is_from_torch(module: nn.Module | None) -> bool:
    """Check whether a module is one of PyTorch's own."""
    return type(module).__module__.startswith("torch.")


def is_from_transformers(module: nn.Module | None) -> bool:
    """Check whether a module is one of transformers' own, whose models make the masks."""
    return type(module).__module__.startswith("transformers.")


def _check_callable(instance: Any) -> None:
    """Raise an `ArgumentError` for what cannot be called, or would call into a module that is not copied."""
    if not callable(instance):
        raise ArgumentError(
            option("target"),
            expected="a module, the class of one, or a function",
            received=repr(instance),
            remedy="Name the class of the attention, or a function of (query, key, value).",
        )
    for attribute in ("__self__", "func"):  # of a bound method, and of functools.partial
        if isinstance(owner := getattr(instance, attribute, None), nn.Module):
            raise ArgumentError(
                option("target"),
                expected="a module itself, which can be copied",
                received=f"a bound call of {type(owner).__name__}",
                remedy="Pass the module; the check calls its forward.",
            )


def _check_constructed(instance: Any) -> None:
    """Raise a `TargetError` for a module whose constructor does not call that of nn.Module."""
    if isinstance(instance, nn.Module) and "_modules" not in vars(instance):
        cause = "the constructor does not call that of nn.Module: super().__init__()"
        raise TargetError(type(instance).__name__) from AttributeError(cause)


def _check_forward(instance: Any) -> None:
    """Raise an `ArgumentError` for a module without a forward of its own."""
    if not isinstance(instance, nn.Module) or type(instance).forward is not nn.Module.forward:
        return
    if "forward" in vars(instance):
        return
    parts = [name for name, _ in instance.named_modules() if name]
    raise ArgumentError(
        option("target"),
        expected="a module with a method forward, which a call of it runs",
        received=f"{type(instance).__name__}, which defines none",
        remedy="Define forward(self, x, …) in the class"
        + (f", or check a module within it: {option_with('module', parts[0])}." if parts else "."),
    )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Call PyTorch's function of this name, whose own signature Python cannot inspect."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal)


def _detached_results(module: nn.Module) -> dict[int, Any]:
    """Return detached copies, by id, of results that a module stores."""
    values = [value for part in module.modules() for value in pytree.tree_leaves(vars(part))]
    results = (value for value in values if isinstance(value, Tensor) and not value.is_leaf)
    return {id(tensor): tensor.detach().clone() for tensor in results}


def _empty_dictionaries(module: nn.Module) -> dict[int, Any]:
    """Return copies, by id, of empty dictionaries that a module holds, such as those of hooks.

    There are ten of them for each layer, and deepcopy would take half of its time for them.
    """
    held = (value for part in module.modules() for value in vars(part).values())
    return {id(it): type(it)() for it in held if type(it) in (dict, OrderedDict) and not it}


def made_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module, without those that a lazy layer makes in its first call."""
    yield from (it for it in module.parameters() if not is_lazy(it))


def tables(module: nn.Module) -> Iterator[Tensor]:
    """Yield the matrices that a user's modules hold themselves, such as positions, and embeddings.

    Axes of size 1 are left out.
    """
    for part in module.modules():
        if type(part).__module__.startswith("torch.") and not isinstance(part, nn.Embedding):
            continue
        found = (it.squeeze() for it in part.parameters(recurse=False) if not is_lazy(it))
        yield from (it for it in found if it.dim() == 2)


def _randomize_constants(module: nn.Module) -> None:
    """Give random values to constant matrices and to zeros: a projection or gain of zeros would hide all before it.

    A matrix whose entries are all tiny hides it, too, since differences that it lets through look like rounding. Frozen
    weights that no initialization can have made are memory that a checkpoint is to fill, unless they are a mask: two
    numbers alone.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made_parameters(module):
            if not parameter.any() and parameter.numel() == 1:
                parameter.fill_(0.5)  # a gate that starts closed
            if parameter.numel() < 2 or not parameter.is_floating_point() or parameter.is_meta:
                continue
            matrix = parameter.dim() >= 2
            constant = bool((parameter == parameter.flatten()[0]).all())
            constant |= matrix and bool(parameter.abs().max() < TINY)
            unfilled = not parameter.requires_grad and not bool((parameter.abs() < HUGE).all())
            unfilled = unfilled and parameter.unique().numel() > 2
            if unfilled or (constant and (matrix or not parameter.any())):
                size = parameter.shape[-1] ** -0.5 if matrix else 0.1
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_(noise * size)
