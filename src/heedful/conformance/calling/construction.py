"""Build a module from its class, with conventional values for the arguments that its constructor needs."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.configuration import Configuration, Section
from heedful.conformance.calling.constructor_parameters import (
    allows_cache,
    guessed_parameters,
    heads_sliced,
    is_configuration,
    single_heads,
    type_hints,
    unstated_parameters,
)
from heedful.conformance.calling.conventional import (
    DROPOUT,
    GUESSES,
    HEAD_SIZE,
    OTHER_WIDTHS,
    SIZES,
    conventional_values,
    value_by_name,
    value_by_type,
)
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    described_with_line,
    exits_as_errors,
    own_frames,
    raising_line,
)
from heedful.conformance.calling.failures import refuses_what_it_demands
from heedful.conformance.calling.isolation import seeded, uninitialised_as_nan
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.options import constructor_with, option
from heedful.conformance.calling.parts import (
    ROTARY,
    handed_texts,
    layer_by_name,
    makes_layer,
    padding_id,
    part_classes,
    takes_embedding,
    takes_layer,
)
from heedful.conformance.calling.sequences import SIDES, sequence_parameters, several_numbers
from heedful.conformance.calling.small_sizes import shorter_contexts, small_sizes
from heedful.conformance.calling.target import ConstructorError
from heedful.conformance.calling.unfilled_memory import fill_memory
from heedful.conformance.recording.source import (
    SourceLine,
    fields_read,
    sections_read,
    texts_compared,
)
from heedful.errors import ArgumentError

OWN_FAULT: re.Pattern[str] = re.compile(
    r"^\w+\.__init__\(\) (missing \d|got an unexpected keyword)|\bfloat\b.*\b(int|integer)|\bint.*\bfloat\b"
)
"""What a TypeError says about a wrong call of a layer, or about a float where a size is needed."""
NO_SEQUENCE: re.Pattern[str] = re.compile(
    r"'int' object is not (subscriptable|iterable)|'int' has no len|can only concatenate list"
)
NO_TENSOR: re.Pattern[str] = re.compile(
    r"'int' object has no attribute '(dim|shape|size|weight|to)'"
)
OF_TABLES: re.Pattern[str] = re.compile(r"embed|vectors|matrix|pretrained")
"""What the names of parameters contain that take a table of trained embeddings."""
PLURAL: re.Pattern[str] = re.compile(r"(dims|sizes|units|widths|channels|hiddens)$")
"""How the names of parameters end that may take a list of widths."""
QUOTED: re.Pattern[str] = re.compile(r"'(\w+)'")


def instantiate(target: Any, arguments: Mapping[str, Any]) -> Any:
    """Return an instance of a class, or anything else unchanged.

    Raises:
        ArgumentError: The class cannot be built, or there are arguments for something that is no class.
    """
    return instantiate_filled(target, arguments)[0]


def instantiate_filled(target: Any, arguments: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return what `instantiate` does, and the parameters that the constructor left unfilled; they have numbers now."""
    if inspect.isclass(target):
        with seeded(), uninitialised_as_nan():
            instance = build(target, arguments)
        return instance, fill_memory(instance)
    if arguments:
        raise ArgumentError(
            option("arguments"),
            expected="no arguments for a target that is already built",
            received=", ".join(arguments),
            remedy="Pass the class instead of an instance.",
        )
    return target, ()


def build(cls: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a class with the given arguments, and with conventional values for the others that it requires.

    Dropout rates with a default of 0 are set as well, because nothing can be learned from a rate of 0, and several
    heads or sequences where one is the default. If the class takes a configuration, arguments that the constructor
    lacks are put there; a field of an unknown name gets the first text that the class compares it with, or a small
    number. If the constructor raises, other widths are tried, because it may have defaults that the usual one does
    not fit.

    Raises:
        ArgumentError: An argument is unknown, a value cannot be guessed, or the constructor raised an exception.
        ConstructorError: The constructor raises whatever it is given.
    """
    small = small_sizes(cls, arguments)
    if small:
        built = attempt(lambda: _called(cls, _values(cls, {**arguments, **small})))
        if not isinstance(built, Exception):
            return built
    values = _values(cls, arguments)
    try:
        return _called_small(cls, values, arguments)
    except ArgumentError as error:
        field = _unknown_field(error)
        if field is not None and field not in arguments:
            given = {**arguments, field: _value_of_field(cls, field, arguments)}
            built = attempt(lambda: build(cls, given))
            if not isinstance(built, Exception):
                return built
        if isinstance(error.__cause__, ArgumentError | None):
            raise
        unsure = any(isinstance(value, float) for value in arguments.values())
        unsure |= _hands_arguments_on(cls)
        if _is_own_fault(
            error.__cause__, guessed=unsure or bool(guessed_parameters(cls, arguments))
        ):
            raise ConstructorError(cls.__name__) from error.__cause__
        for changed in _alternatives(cls, arguments, error.__cause__):
            built = attempt(lambda changed=changed: _called(cls, changed))
            if not isinstance(built, Exception):
                return built
        raise


def _called_small(
    cls: Callable[..., Any], values: Mapping[str, Any], arguments: Mapping[str, Any]
) -> Any:
    """Call a class, and once more for fewer tokens if it keeps a mask for thousands of them."""
    built = _called(cls, values)
    shorter = shorter_contexts(cls, built, arguments)
    if not shorter:
        return built
    again = attempt(lambda: _called(cls, _values(cls, {**arguments, **shorter})))
    return built if isinstance(again, Exception) else again


def _unknown_field(error: ArgumentError) -> str | None:
    """Return the field of a configuration for which a constructor found no value; None if that is not the error."""
    cause = error.__cause__
    if isinstance(cause, AttributeError) and isinstance(cause.obj, Configuration):
        return cause.name
    return error.argument if cause is None else None  # it was read as config["field"]


def _value_of_field(cls: Callable[..., Any], field: str, arguments: Mapping[str, Any]) -> Any:
    """Return the value that a field of a configuration may have, if its name is not a conventional one."""
    conventional = conventional_values(arguments)
    texts, value = texts_compared(cls).get(field), value_by_name(field, conventional)
    return texts[0] if texts else GUESSES[0] if value is None else value


def _hands_arguments_on(cls: Callable[..., Any]) -> bool:
    """Check whether a constructor takes any arguments, which may be those of the class that it inherits from."""
    kinds = {it.kind for it in inspect.signature(cls).parameters.values()}
    return not kinds.isdisjoint((inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD))


def _is_own_fault(error: BaseException, *, guessed: bool) -> bool:
    """Check whether a constructor raises whatever it is given.

    It refuses the sizes that it demands, reads a name that exists nowhere, omits an argument of a layer, or passes it
    the result of a division, which is a float even if there is no remainder.
    """
    if refuses_what_it_demands(error):
        return True
    if raising_line(error) is None or (guessed and not isinstance(error, NameError)):
        return False
    if is_missing_name(error):
        return True
    return isinstance(error, TypeError) and OWN_FAULT.search(str(error)) is not None


def _alternatives(
    cls: Callable[..., Any], arguments: Mapping[str, Any], error: BaseException
) -> Iterator[dict[str, Any]]:
    """Yield other values for a constructor that rejects the usual ones: the likeliest first, and other widths last.

    A window has two sides, and a list of widths two entries, if one number is refused. What has the name of an
    image's side may be a width. A parameter that is handed on gets a text with which another class compares it, and one
    that is compared here gets each of the other texts. Each flag is set the other way round. A name of embeddings gets
    a table of them if a tensor is expected. A parameter that is None by default gets its conventional value if the
    message of the exception names it, or a line through which an exception because of None passes does. So do the
    parameters of an inherited constructor that it misses.
    """
    message, place = describe_exception(error), raising_line(error)
    about_none = place is not None and ("NoneType" in message or place.source.startswith("assert"))
    passed = (SourceLine.at(it.f_code.co_filename, line) for it, line in own_frames(error))
    named = " ".join((message, *(it.source for it in passed))) if about_none else message
    guessed = guessed_parameters(cls, arguments)
    values = _values(cls, arguments)
    conventional = conventional_values(arguments)
    single = single_heads(cls, arguments)
    if single:
        yield _values(cls, {**arguments, **dict.fromkeys(single, 1)})
    missing = {
        name: value_by_name(name, conventional)
        for name, it in inspect.signature(cls).parameters.items()
        if it.default is None and name not in values and re.search(rf"\b{name}\b", named)
    }
    if _hands_arguments_on(cls):
        for name in QUOTED.findall(message) if "required" in message else ():
            value = value_by_name(name, conventional)
            missing[name] = GUESSES[0] if value is None else value
    if missing:
        yield {**values, **missing}
    windows = {name: SIDES for name in values if name in names.WINDOWS and name not in arguments}
    if windows and NO_SEQUENCE.search(message):
        yield {**values, **windows}
    plural = [it for it in values if PLURAL.search(it) and it not in arguments]
    if plural and NO_SEQUENCE.search(message):
        yield {**values, **{name: [conventional[names.WIDTHS[0]]] * 2 for name in plural}}
    sides = [it for it in values if it in names.IMAGE_SIDES and it not in arguments]
    if sides:  # the size of features rather than of an image
        yield {**values, **dict.fromkeys(sides, conventional[names.WIDTHS[0]])}
    tables = [it for it in values if OF_TABLES.search(it) and it not in (*arguments, *SIZES)]
    if tables and NO_TENSOR.search(message):
        shape = conventional[names.VOCABULARY_SIZES[0]], conventional[names.WIDTHS[0]]
        yield {**values, **{name: torch.randn(shape) for name in tables}}
    axes = [it for it in values if it in names.PIXEL_AXES and it not in arguments]
    if axes:  # a width rather than a number of axes
        yield {**values, **dict.fromkeys(axes, conventional[names.WIDTHS[0]])}
    configured = [it for it in values if isinstance(values[it], Configuration)]
    if configured and Configuration.__name__ in message:  # used as a number
        yield {**values, **dict.fromkeys(configured, conventional[names.WIDTHS[0]])}
    required = unstated_parameters(cls, arguments)
    texts = {name: text for name, text in handed_texts(cls).items() if name in required}
    if texts:
        yield {**values, **texts}
    for name, compared in texts_compared(cls).items():
        if name in required and isinstance(values.get(name), str):
            yield from ({**values, name: text} for text in compared[1:])
    defaults = {name: it.default for name, it in inspect.signature(cls).parameters.items()}
    for name, flag in {**defaults, **values}.items():
        if isinstance(flag, bool) and name not in arguments:
            yield {**values, name: not flag}
    for guess in (*GUESSES, conventional[names.WIDTHS[0]]) if guessed else ():
        yield {**values, **dict.fromkeys(guessed, guess)}
    for width in OTHER_WIDTHS:
        yield _values(cls, {**arguments, "": width})


def _values(
    cls: Callable[..., Any], arguments: Mapping[str, Any], *, parts: bool = True
) -> dict[str, Any]:
    """Return the values with which a constructor is called, with ready-made parts if it may have some.

    The width may be given under the name "".
    """
    parameters = inspect.signature(cls).parameters
    values, settings = _divided(cls, {name: it for name, it in arguments.items() if name})
    single = single_heads(cls, arguments)
    defaults = {name: it.default for name, it in parameters.items() if it.default is not it.empty}
    defaults = {name: it for name, it in defaults.items() if name not in single}
    sliced = heads_sliced(cls)
    stated = not {*names.HEADS}.isdisjoint((*arguments, *defaults))
    chosen = {} if stated or sliced is None else {names.HEADS[0]: sliced}
    conventional = conventional_values({**chosen, **arguments}, defaults)
    hints = type_hints(cls)
    read, texts, several = fields_read(cls), texts_compared(cls), sequence_parameters(cls)
    for name, parameter in parameters.items():
        if name in values or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is not parameter.empty:
            if name in names.DROPOUTS and parameter.default == 0:
                values[name] = DROPOUT
            elif parameter.default is False and allows_cache(cls, name):
                values[name] = True  # each call still says whether it uses the cache
            elif (
                name in single
                or (name in names.DEVICES and "cuda" in str(parameter.default))
                or (name in names.MAX_BATCHES and parameter.default == 1)
            ):
                values[name] = conventional[name]
        elif hints.get(name) is int and name in names.CONFIGURATIONS:
            values[name] = conventional[names.WIDTHS[0]]  # `c: int` counts channels
        elif hints.get(name) is nn.Embedding or takes_embedding(cls, name):
            sizes = conventional[names.VOCABULARY_SIZES[0]], conventional[names.WIDTHS[0]]
            values[name] = nn.Embedding(*sizes, padding_idx=padding_id(cls, name))
        elif parts and _takes_module(hints.get(name)):
            values[name] = _part(cls, name, hints[name], conventional[names.WIDTHS[0]])
        elif parts and name not in hints and makes_layer(cls, name):
            values[name] = partial(_layer_of, name, conventional[names.WIDTHS[0]])
        elif parts and name not in hints and takes_layer(cls, name):
            key_heads, size = conventional[names.KEY_HEADS[0]], conventional[names.HEAD_SIZES[0]]
            keys = None if parameters.keys().isdisjoint(names.KEY_HEADS) else key_heads * size
            values[name] = layer_by_name(name, conventional[names.WIDTHS[0]], keys)
        elif is_configuration(name, hints.get(name)) or (
            name in read
            and hints.get(name) is not Tensor
            and value_by_name(name, conventional) is None
        ):
            fields = (*read.get(name, ()), *read.get("config", ()))
            guessed = {field: value_by_name(field, conventional) for field in fields}
            sections = sections_read(cls) & {*fields} - conventional.keys()
            guessed |= {field: Section(conventional) for field in sections}
            known = {field: it for field, it in guessed.items() if it is not None}
            values[name] = _configuration(hints.get(name), {**known, **conventional}, settings)
        else:
            value = (
                None
                if name in texts and name not in conventional
                else value_by_name(name, conventional)
            )
            value = several_numbers(name, several, parameters) if name in several else value
            value = texts[name][0] if value is None and name in texts else value
            value = value_by_type(hints.get(name), conventional) if value is None else value
            if value is None and parts:
                value = _part(cls, name, hints.get(name), conventional[names.WIDTHS[0]])
            values[name] = GUESSES[0] if value is None else value
    return values


def _layer_of(name: str, width: int, *sizes: Any, **_: Any) -> nn.Module:
    """Return the layer that a constructor makes by calling a parameter, of the width that it asks for."""
    asked = next((it for it in sizes if type(it) is int), width)
    return layer_by_name(name, asked)


def _takes_module(hint: Any) -> bool:
    """Check whether a parameter is annotated as any module, or as one or None."""
    return hint is nn.Module or (nn.Module in get_args(hint) and type(None) in get_args(hint))


def _part(cls: Callable[..., Any], name: str, hint: Any, width: int) -> nn.Module | None:
    """Return a module for a parameter that takes one; None if no class of it is known, or none can be built.

    A rotation works on single heads. A part gets no parts of its own, so that two classes that take each other end.
    """
    sizes = {"": HEAD_SIZE if ROTARY.search(name.lower()) else width}
    for part in part_classes(cls, name, hint):
        built = attempt(lambda part=part: _called(part, _values(part, sizes, parts=False)))
        if not isinstance(built, Exception):
            return built
    return layer_by_name(name, width) if hint is nn.Module else None


def _divided(
    cls: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide arguments into those of the constructor and those of the configuration that it takes.

    Raises:
        ArgumentError: An argument belongs to neither.
    """
    parameters = inspect.signature(cls).parameters
    own = {name: value for name, value in arguments.items() if name in parameters}
    settings = {name: value for name, value in arguments.items() if name not in parameters}
    hints = type_hints(cls)
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [name for name, it in parameters.items() if it.kind not in stars and name not in own]
    if any(is_configuration(name, hints.get(name)) for name in named):
        return own, settings
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments), {}
    for name, value in settings.items():
        raise ArgumentError(
            name,
            expected=f"an argument of {cls.__name__}: {', '.join(parameters)}",
            received=repr(value),
            remedy="Use one of these names.",
        )
    return own, {}


def _called(cls: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a class; what its constructor raises becomes an `ArgumentError` that lists the values."""
    try:
        with exits_as_errors():
            return cls(**values)
    except Exception as error:
        if isinstance(error, ArgumentError) and error.argument not in values:
            raise  # about a field of the configuration
        listed = (
            f"{name}={'…' if is_configuration(name, type(value)) else repr(value)}"
            for name, value in values.items()
        )
        raise ArgumentError(
            cls.__name__,
            expected="a class that can be built from conventional values",
            received=f"{described_with_line(error)}, with {', '.join(listed)}",
            remedy=f"Give the values that it needs: {constructor_with(next(iter(values), 'NAME'))}.",
        ) from error


def _is_switch(field: dataclasses.Field[Any]) -> bool:
    """Check whether a field of a configuration is on or off by default: a flag, or a cap on scores."""
    return isinstance(field.default, bool) or (field.name in names.SOFT_CAPS and not field.default)


def _is_said(field: dataclasses.Field[Any], value: Any) -> bool:
    """Check whether a field has a default that no number by its name replaces: a text, or the id of a token."""
    of_text = isinstance(field.default, str) and not isinstance(value, str)
    return of_text or (type(field.default) is int and field.name.endswith("_token_id"))


def _configuration(hint: Any, conventional: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Build a configuration of the annotated class, or one that has every conventional name."""
    if not inspect.isclass(hint) or hint in (dict, object, SimpleNamespace):
        return Configuration({**conventional, **settings})
    if dataclasses.is_dataclass(hint):
        fields = {it.name: it for it in dataclasses.fields(hint) if it.init and not _is_switch(it)}
        values = {
            name: value
            for name, value in conventional.items()
            if name in fields and not _is_said(fields[name], value)
        }
        return build(hint, {**values, **settings})
    values = {**conventional, "attn_implementation": "eager", **settings}  # of transformers
    accepted = inspect.signature(hint).parameters
    given = {name: value for name, value in values.items() if name in accepted}
    required = unstated_parameters(hint, given)
    guessed = {name: it for name, it in _values(hint, given).items() if name in required}
    return _called(hint, {**guessed, **given})
