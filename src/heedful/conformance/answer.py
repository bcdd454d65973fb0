"""What the command asks of the process that runs a target, and the answer of that process, as JSON.

The answer is read as text of a stranger: it must contain the nonce of the request and nothing but the fields of a
report, or the message of an error. The target knows neither the nonce nor where the answer goes, and control
characters in the answer are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from json import JSONDecoder, JSONEncoder
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from heedful.conformance.reporting.fix import SourceText
from heedful.conformance.reporting.report import Report
from heedful.errors import HeedfulError
from heedful.screen import without_controls

MAX_ANSWER: int = 1 << 26  # bytes; a report has some thousands

# A target may replace the functions of the module json, so both ends hold their own.
_ENCODE = JSONEncoder().encode
_DECODE = JSONDecoder().decode


@dataclass(frozen=True)
class Request:
    """What is to be checked.

    Attributes:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        arguments: The arguments of the constructor. Each value is a Python literal, an expression, or else text.
        example: The arguments of a call as a Python expression; "" if they are not given.
        example_from: A test that calls the target, as "path/to/test_file.py::test_name"; "" if none is given.
        options: Other options of `check`.
        memory: The number of bytes that the process may allocate; None for a share of the machine's memory.
        nonce: A secret that the answer must contain.
    """

    target: str
    arguments: dict[str, str]
    options: dict[str, Any]
    nonce: str
    example: str = ""
    example_from: str = ""
    memory: int | None = None

    def to_json(self) -> str:
        """Return the request as JSON in ASCII."""
        return _ENCODE(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the request that `to_json` has written."""
        return cls(**_DECODE(text))


def answer_as_json(outcome: Report | HeedfulError, nonce: str) -> str:
    """Return a report or an error as JSON in ASCII."""
    if isinstance(outcome, Report):
        return _ENCODE({"nonce": nonce, "report": asdict(outcome)})
    return _ENCODE({"nonce": nonce, "error": str(outcome)})


def parse_answer(text: bytes, nonce: str) -> Report | HeedfulError:
    """Return the report or the error that `answer_as_json` has written.

    Raises:
        ValueError: The text is anything else, or contains another nonce.
    """
    try:
        fields = _DECODE(text.decode("ascii"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    match fields:
        case {"nonce": str(given), "report": report, **others} if given == nonce and not others:
            return _parse(Report, report)
        case {"nonce": str(given), "error": str(message), **others} if (
            given == nonce and not others
        ):
            return HeedfulError(message)
    raise ValueError("neither a report nor an error")


def _parse(kind: Any, value: Any) -> Any:
    """Return a JSON value as a value of a type: a dataclass and what its fields consist of.

    Raises:
        ValueError: The value is not one of that type.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind) and type(value) is dict:
        hints = get_type_hints(kind)
        if value.keys() == hints.keys():
            return kind(**{name: _parse(hints[name], part) for name, part in value.items()})
    elif origin is tuple and type(value) is list:
        return tuple(_parse(parts[0], part) for part in value)
    elif origin is Mapping and type(value) is dict:
        return {name: _parse(parts[1], part) for name, part in value.items()}
    elif origin is UnionType:
        return None if value is None else _parse(parts[0], value)
    elif origin is Literal and type(value) is str and value in parts:
        return value
    elif kind is SourceText and type(value) is str:
        return value  # as it is written to the file
    elif kind is str and type(value) is str:
        return without_controls(value)
    elif kind is type(value):
        return value
    raise ValueError(f"not of type {kind}")
