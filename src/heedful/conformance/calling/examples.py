"""Examples of a target's arguments, and the calling conventions that follow from them; nothing is guessed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.arguments import token_arguments
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.causality import causal_flag, mask_by_caller
from heedful.conformance.calling.convention import CallingConvention, Constants
from heedful.conformance.calling.conventional import IMAGE_LENGTHS
from heedful.conformance.calling.declared import declared_number
from heedful.conformance.calling.decoder_steps import attends_to_keys, full_lengths, readings
from heedful.conformance.calling.discovery import LESS_EXACT, TRIAL_SIZES
from heedful.conformance.calling.example_tokens import (
    features_of,
    first_tokens,
    leaves_by_name,
    of_layout,
    token_layouts,
    token_names,
)
from heedful.conformance.calling.exceptions import exits_as_errors
from heedful.conformance.calling.influence import mixes_sequences
from heedful.conformance.calling.isolation import seeded
from heedful.conformance.calling.options import option
from heedful.conformance.calling.resizing import (
    Axes,
    Resized,
    adds_up,
    are_lengths,
    axes_of,
    copied,
    telling_sequence,
)
from heedful.conformance.calling.second_sequence import with_second_sequence
from heedful.conformance.calling.structures import names_within
from heedful.conformance.calling.target import CASTS, LEAF, Target, TargetError
from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.errors import ArgumentError
from heedful.observation.leaves import leaves_of, with_changed_leaves

FEW = 2  # sequences that are enough where the number of tokens cannot be small
TRIAL_BATCHES, TRIAL_TOKENS = (3, 2), (5, 4, 3, 2, 1)  # the first that differ from the example's


class Example:
    """The arguments of a call, as positional and as keyword arguments.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.

    Attributes:
        args: The positional arguments.
        kwargs: The keyword arguments.
        source: The call that the arguments were captured from, for the report; "" if they were not captured.

    Examples:
        >>> import torch
        >>> from heedful import check
        >>> from heedful.conformance import Example
        >>> def attend(a, b, c, *, hidden=None):
        ...     scores = a @ b.mT / a.shape[-1] ** 0.5
        ...     return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ c
        >>> hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
        >>> check(attend, example=Example(*torch.randn(3, 2, 5, 8), hidden=hidden)).ok
        True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.source: str = ""

    def __repr__(self) -> str:
        named = (f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"Example({', '.join([*map(repr, self.args), *named])})"

    def copied(self) -> Example:
        """Return a copy that shares no storage and no graph, on the CPU."""
        args = tuple(map(copied, self.args))
        return Example(*args, **{name: copied(value) for name, value in self.kwargs.items()})


def as_example(target: Target, example: Any) -> Example:
    """Return an example in any of the forms that `check` takes, as an `Example`.

    Raises:
        ArgumentError: The function that should make the example raises an exception.
    """
    if callable(example):
        try:
            example = example()
        except Exception as error:
            raise ArgumentError(
                option("example"),
                expected="a function without parameters that returns the arguments of a call",
                received=f"one that raises {type(error).__name__}: {error}",
                remedy="Call it in Python to see the whole traceback.",
            ) from error
    match example:
        case Example():
            return example
        case Mapping():
            return Example(**example)
        case tuple() | list():
            return Example(*example)
        case Tensor():
            try:
                inspect.signature(target.forward).bind(example)
            except TypeError:  # it is passed to every argument that takes tokens
                return _passed_to_all(target, example)
    return Example(example)


def _passed_to_all(target: Target, tokens: Tensor) -> Example:
    """Return an example in which every argument that takes tokens gets the same ones."""
    taking, constants = token_arguments(target)

    def value(constant: Any) -> Any:
        return constant(*tokens.shape[:2], tokens.dtype) if callable(constant) else constant

    others = {name: value(constant) for name, constant in constants.items()}
    return Example(**dict.fromkeys(taking, tokens), **others)


def find_example_convention(
    target: Target, example: Any, causal: bool | None
) -> tuple[CallingConvention, torch.dtype]:
    """Return the convention of the call that an example makes, and the dtype of the tokens, as `find_convention` does.

    The example is first run as it is. Then, axes of the same size vary together: those of the batch size and those of
    the number of tokens. If the target runs with the example's sizes alone, they are fixed. A second sequence is
    held if the tokens of the first one attend to each other.

    Raises:
        TargetError: The target raises an exception when it is called with the example.
        ArgumentError: The example does not fit the signature, has no tokens, or gives no row for each token.
    """
    given = as_example(target, example)
    arguments = _named(target, given)
    _run_as_given(target, given)
    errors: list[Exception] = []
    for convention, sizes in _conventions(target, arguments, causal):
        for dtype in (torch.float64, torch.float32):
            caller = Caller(target, convention, dtype, target.copied(dtype))
            try:
                exact = _is_exact(caller, *sizes)
            except Exception as error:  # noqa: BLE001 - the next convention may work
                errors.append(error)
                continue
            if exact or dtype == torch.float32:
                return with_second_sequence(caller).convention, dtype
    first = errors[0] if errors else TypeError("it has no tensor of tokens")
    raise ArgumentError(
        option("example"),
        expected="a call whose first tensor holds tokens, (B, T, C), (B, H, T, D), (T, C) or (B, T) ids, "
        "and whose result has one row for each token, or at least one for each sequence",
        received=f"a call of {target.name} that runs, but with other tokens raises {type(first).__name__}: {first}",
        remedy="Give an example of the attention itself, not of a module that only selects or counts.",
    ) from first


def _named(target: Target, example: Example) -> dict[str, Any]:
    """Return the arguments by name.

    Raises:
        ArgumentError: They do not fit the target's signature.
    """
    try:
        bound = inspect.signature(target.forward).bind(*example.args, **example.kwargs)
    except TypeError as error:
        raise ArgumentError(
            option("example"),
            expected=f"the arguments of {target.name}({', '.join(target.parameters)})",
            received=f"{len(example.args)} positional ones{_listed(example.kwargs)}: {error}",
            remedy="Give those that a call of it takes.",
        ) from error
    arguments = dict(bound.arguments)
    for name, parameter in target.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    return arguments


def _listed(keywords: Mapping[str, Any]) -> str:
    return f" and {', '.join(keywords)}" if keywords else ""


def _run_as_given(target: Target, example: Example) -> None:
    """Call the target with the example, in the example's own dtype.

    Raises:
        TargetError: The target raises an exception.
    """
    values = [leaf for _, leaf in leaves_of((example.args, example.kwargs))]
    dtypes = [value.dtype for value in values if isinstance(value, Tensor) and value.dtype in CASTS]
    callee, own = target.copied((dtypes or [torch.float32])[0]), example.copied()
    try:
        with torch.no_grad(), exits_as_errors(), seeded():
            callee(*own.args, **own.kwargs)
    except Exception as error:
        raise TargetError(target.name) from error


def _is_exact(caller: Caller, B: int, T: int) -> bool:
    """Call the target with tokens of the given sizes, and check that no step on the way has fewer digits than float64.

    Raises:
        TypeError: The result has no row for each token.
    """
    inputs = caller.draw(B, T)
    with torch.no_grad(), caller.isolated():
        trace = caller.trace(caller.arguments(inputs))
    if caller.convention.rows(trace.result, B, T) is None:
        raise TypeError(f"the result has no row for each of {T} tokens")
    return not any(trace[index].dtype in LESS_EXACT for index in steps_from_tokens(trace.steps))


# --- conventions -------------------------------------------------------------------------------------


def _conventions(
    target: Target, arguments: Mapping[str, Any], causal: bool | None
) -> Iterator[tuple[CallingConvention, tuple[int, int]]]:
    """Yield the conventions that an example may follow, each with the sizes B and T of a trial.

    The ids in other arguments than the first one come last, such as the words about an image.
    """
    first = first_tokens(target, arguments)
    yield from _of_decoder_steps(target, arguments, first)
    if first is None:
        return
    ids = (
        name
        for name, it in leaves_by_name(arguments).items()
        if isinstance(it, Tensor) and it.dtype == torch.int64 and it.dim() == 2
    )
    for tokens in dict.fromkeys((first, *ids)):
        yield from _of_tokens(target, arguments, causal, tokens)


def _of_tokens(
    target: Target, arguments: Mapping[str, Any], causal: bool | None, first: str
) -> Iterator[tuple[CallingConvention, tuple[int, int]]]:
    """Yield the conventions in which an argument, or a leaf of one, holds the tokens."""
    arguments = {**arguments, **_leaves_beside(first, arguments)}
    tokens = token_names(target, first, arguments)
    others = {name: value for name, value in arguments.items() if name not in tokens}
    others = {
        name: _without(tokens, name, value)
        for name, value in others.items()
        if not LEAF.search(name)
    }
    flags = {name: it for name, it in causal_flag(target, causal).items() if name not in arguments}
    taken = [arguments[name] for name in tokens]
    same = all(it is taken[0] or torch.equal(it, taken[0]) for it in taken)
    bases = [
        (
            replace(
                base,
                same_tokens=same,
                visible_keys=mask_by_caller(target, causal),
                from_example=True,
                guessed=bool(others),
                other_features={
                    name: features_of(base.layout, arguments[name].shape) for name in tokens[1:]
                },
                leaf_names=names_within(target),
            ),
            sizes,
        )
        for base, sizes in token_layouts(target, arguments, tokens)
    ]
    window = declared_number(target.module, names.WINDOWS) or 0
    found = [it for base in bases for it in _of_other_sizes(*base, others, flags, window)]
    found += [it for base in bases for it in _of_its_length(*base, others, flags)]
    packed = any(are_lengths(it, sizes) for it in others.values() for _, sizes in bases)
    for rows in ({}, {"rows_before": 1}, {"pooled": True}, *([{"packed": True}] if packed else [])):
        yield from ((replace(convention, **rows), sizes) for convention, sizes in found)


def _of_decoder_steps(
    target: Target, arguments: Mapping[str, Any], first: str | None
) -> Iterator[tuple[CallingConvention, tuple[int, int]]]:
    """Yield the conventions in which a decoder's step looks at the tokens of an encoder, if the example is one.

    Those in which sequences mix come last.
    """
    mixed: list[tuple[CallingConvention, tuple[int, int]]] = []
    leaves, called = leaves_by_name(arguments), names_within(target)
    for reading in readings(target, leaves, first):
        keys, axes = reading.keys, reading.axes
        beside = {**arguments, **_leaves_beside(keys, arguments)}
        base, sizes = of_layout(reading.layout, (keys,), tuple(leaves[keys].shape))
        resized = {
            name: Resized(_without((keys,), name, value), axes)
            for name, value in beside.items()
            if name != keys and not LEAF.search(name)
        }
        most = min((it.most_tokens for it in resized.values()), default=None, key=_or_endless)
        lengths = {
            name: full_lengths
            for name, it in leaves.items()
            if called.get(name, name) in names.VALID_LENGTHS or "len" in called.get(name, name)
            if isinstance(it, Tensor) and it.dim() == 1 and not it.is_floating_point()
        }
        convention = replace(
            base,
            constants={**resized, **lengths},
            from_example=True,
            guessed=True,
            max_tokens=most,
            pooled=True,
            leaf_names=called,
        )
        caller = Caller(target, convention, torch.float64, target.copied(torch.float64))
        if attends_to_keys(caller):
            found = convention, _trial_sizes(sizes, most)
            if mixes_sequences(caller, caller.draw(*TRIAL_SIZES)) is False:
                yield found
                return
            mixed.append(found)
    yield from mixed


def _of_other_sizes(
    base: CallingConvention,
    sizes: tuple[int, int],
    others: Constants,
    flags: Constants,
    window: int,
) -> Iterator[tuple[CallingConvention, tuple[int, int]]]:
    """Yield conventions in which all arguments vary with the sizes of the tokens.

    An image keeps more than one window, which is `window` pixels wide: within a single one, nothing is shifted.
    """
    if sizes[0] == 1 and any(
        isinstance(it, Tensor) and adds_up(it, sizes[1]) for it in others.values()
    ):
        return  # the lengths of sequences in a row are those of this row
    for axes in axes_of(sizes, first=base.layout.startswith("(B")):
        sequence = telling_sequence(others, axes)
        resized = {name: Resized(value, axes, sequence) for name, value in others.items()}
        most = min((it.most_tokens for it in resized.values()), default=None, key=_or_endless)
        convention = replace(base, constants={**resized, **flags}, max_tokens=most)
        batch, tokens = _trial_sizes(sizes, most)
        yield convention, (batch, tokens)
        if base.is_image:  # windows and strides divide these
            for pixels in (it for it in IMAGE_LENGTHS if window**2 < it < sizes[1]):
                yield replace(convention, fixed_sizes=(batch, pixels)), (batch, pixels)


def _of_its_length(
    base: CallingConvention, sizes: tuple[int, int], others: Constants, flags: Constants
) -> Iterator[tuple[CallingConvention, tuple[int, int]]]:
    """Yield conventions in which all arguments keep the example's number of tokens, for few sequences if possible."""
    B, T = sizes
    for batch in (FEW, B) if B > FEW else (B,):
        axes = Axes(None if batch == B else B, None)
        held = {name: Resized(value, axes) for name, value in others.items()}
        yield replace(base, constants={**held, **flags}, fixed_sizes=(batch, T)), (batch, T)


def _leaves_beside(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of the argument that a leaf with a name belongs to; nothing for a whole argument."""
    if name in arguments:
        return {}
    owner = LEAF.split(name, maxsplit=1)[0]
    return {f"{owner}{path}": leaf for path, leaf in leaves_of(arguments[owner])}


def _without(tokens: Sequence[str], name: str, value: Any) -> Any:
    """Return an argument in which placeholders stand for the leaves that hold tokens."""

    def kept(path: str, leaf: Any) -> Any:
        return torch.empty(()) if f"{name}{path}" in tokens else leaf

    return with_changed_leaves(value, kept)


def _trial_sizes(sizes: tuple[int, int], most_tokens: int | None) -> tuple[int, int]:
    """Return sizes unlike those of the example and unlike each other, as far as its arguments reach."""
    B, T = sizes
    batch = next(it for it in TRIAL_BATCHES if it != B) if B > 1 else B
    tokens = (it for it in TRIAL_TOKENS if it not in (T, batch) and it <= (most_tokens or it))
    return batch, next(tokens, T)


def _or_endless(number: int | None) -> float:
    return float("inf") if number is None else number
