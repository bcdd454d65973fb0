"""What a target's docstrings and comments say about each of its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from heedful.conformance.recording.source import kept, source_lines
from heedful.conformance.recording.target_source import functions_of

# "`pad` is True at padding", "pad holds 1 at real tokens", "pad = True where a key is hidden"
STATEMENT: re.Pattern[str] = re.compile(
    r"[`*]*(\w+)[`*]*\s+((?:=|is|are|marks?|holds?|has|contains?|must be|should be)\s[^.;]*)"
)
NEXT_ENTRY: re.Pattern[str] = re.compile(
    r"(?:(?<=[.)\]])|(?<=[)\]][,;]))\s+(?=\w+: )"  # on the same line
)
BARE_SHAPE: re.Pattern[str] = re.compile(r"(\w+: )([\w*+]+(?: [x×] [\w*+]+)+)")  # "x: B x T x C"
# An entry whose description goes on below it: `name : type` in the style of NumPy, or `name: ` or `name (type): `,
# unlike a title.
ENTRY: re.Pattern[str] = re.compile(r"\s*(\w+(, ?\w+)* : \S|[a-z]\w*( \([^)]*\))?:( |$))")
DASH: re.Pattern[str] = re.compile(r"(\w+) +[-–—]+ ")  # "mask - where keys are hidden"
TITLE: re.Pattern[str] = re.compile(r"\s*\w+:\s*$")  # "params:", above entries
SHAPE_BELOW: re.Pattern[str] = re.compile(r"\s*[-*] [(\[]")  # "- (batch, length)", below an entry
SHAPE_BEHIND: re.Pattern[str] = re.compile(
    r"\w+ +([(\[] *\w+ *,.*)"
)  # "states [batch, dim]", without a colon
OTHER_SCRIPT: re.Pattern[str] = re.compile(r"^[^\x00-\x7f]+(?=[A-Za-z_])")  # "输入x: (batch, dim)"
SEVERAL: re.Pattern[str] = re.compile(r"\w+(, ?\w+)+\b")  # parameters that a comment is about
TOGETHER: re.Pattern[str] = re.compile(
    r"^(\W*(?:param )?)(\w+(?:, ?\w+)+)( ?(?:\([^)]*\))?:.*)$"  # "query, key: (batch, length, dim)"
)
# A comment behind a parameter on a line of its own, or behind the signature of a function of one mask.
OF_PARAMETER: re.Pattern[str] = re.compile(r"^\s*(\w+)\s*(?:[:=][^#]*)?,?\s*#\s*(.*)$")
BEHIND_SIGNATURE: re.Pattern[str] = re.compile(r"^\s*(?:def .*)?\).*:\s*#(.*)$")
SHAPE_OF: re.Pattern[str] = re.compile(r"(\w+) ?:? ?(?=[(\[][^()\[\]]*,[^()\[\]]*[)\]])")
"""What is before a shape in such a comment: "x (B, C, T), mask: (B, 1, T) float"."""
OF_AXES: re.Pattern[str] = re.compile(r"(\w+) is (\w+(?:, \w+){2,})$")
"""A comment that gives the axes of a parameter: "x is batch, channels, time"."""
UNUSED_ON_PURPOSE: tuple[str, ...] = (
    *("unused", "not used", "ignored", "compatib", "no effect", "for api", "del {name}"),
)
"""Words by which a target says that it takes an argument without using it."""


def docstring_lines(target: Callable[..., Any]) -> Iterator[str]:
    """Yield the lines of the docstrings of a target's functions and classes, one for each `name:` in a line."""
    parts = list(target.modules()) if isinstance(target, nn.Module) else []
    classes = dict.fromkeys(cls for part in parts for cls in type(part).__mro__)
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in ("torch", "builtins")]
    inherited = (it for cls in own for it in vars(cls).values() if inspect.isfunction(it))
    for definition in dict.fromkeys((*functions_of(target), *own, *inherited)):
        if not definition.__module__.startswith("torch."):
            yield from _docstring_lines(definition)


@kept
def _docstring_lines(definition: Callable[..., Any]) -> list[str]:
    return [it for entry in _entries(definition.__doc__ or "") for it in _separate(entry)]


def _separate(entry: str) -> list[str]:
    """Return the entries on one line, with shapes in brackets: "x: B x T, mask: T x T" and "x, y: B x T" have two."""
    entries = NEXT_ENTRY.split(BARE_SHAPE.sub(r"\1(\2)", entry))
    return [it for together in entries for it in _for_each(together)]


def _for_each(entry: str) -> list[str]:
    """Return an entry for each of the arguments that one is about."""
    together = TOGETHER.match(entry)
    if together is None:
        return [entry]
    mark, several, text = together.groups()
    return [f"{mark}{name.strip()}{text}" for name in several.split(",")]


def _entries(docstring: str) -> list[str]:
    """Return the lines of a docstring, with the description below an entry at the end of the entry's line."""
    lines: list[str] = []
    for line in docstring.splitlines():
        below = lines and (_indent(line) > _indent(lines[-1]) or SHAPE_BELOW.match(line))
        is_title = lines and TITLE.match(lines[-1]) and ENTRY.match(line)
        if below and ENTRY.match(lines[-1]) and not is_title:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def comment_lines(target: Callable[..., Any]) -> Iterator[str]:
    """Yield the comments on lines of their own that begin with parameters, such as `# x: (batch, length)`.

    A comment behind the signature gives one for each parameter that it names.
    """
    for function in functions_of(target):
        yield from _comment_lines(function)


@kept
def _comment_lines(function: Callable[..., Any]) -> list[str]:
    parameters, lines = inspect.signature(function).parameters, list[str]()
    for line in _source_lines(function):
        mark, comment = line.strip()[:1], line.strip().lstrip("# ")
        axes = OF_AXES.match(comment)
        if axes is not None:
            comment = f"{axes[1]}: ({axes[2]})"
        behind = _shapes_behind_signature(line)
        lines += [f"{name}: {shape}" for name, shape in behind if name in parameters]
        several = SEVERAL.match(comment)
        named = comment.partition(":")[0] if several is None else several[0]
        if mark == "#" and all(name.strip() in parameters for name in named.split(",")):
            lines += _separate(comment)
    return lines


def _shapes_behind_signature(line: str) -> list[tuple[str, str]]:
    """Return the names and shapes in a comment behind a signature."""
    comment = BEHIND_SIGNATURE.match(line)
    parts = [] if comment is None else SHAPE_OF.split(comment[1])
    return [*zip(parts[1::2], parts[2::2], strict=True)]


def entry_of(line: str) -> str:
    """Return a line of a docstring without the marks, or words of another script, before the name of an argument."""
    return OTHER_SCRIPT.sub("", line.strip(" *-:`").removeprefix("param "))


def documented_arguments(target: Callable[..., Any]) -> dict[str, str]:
    """Return what a target says about each argument: in a line that begins with it, a sentence or a comment.

    Args:
        target: A module or function. Sentences and comments count in its own class or function alone, because those of
            its parts may be about arguments of the same name and of another meaning.
    """
    said: dict[str, str] = {}
    for line in docstring_lines(target):
        entry = entry_of(line)
        dashed = DASH.match(entry)
        named = entry if dashed is None else f"{dashed[1]}:{entry[dashed.end() :]}"
        name, _, text = named.partition(":")
        shape = SHAPE_BEHIND.match(name)
        said.setdefault(name.split(" ")[0].strip(" `*"), text if shape is None else shape[1] + text)
    for name, text in _stated(target):
        if not said.get(name):
            said[name] = text
    return said


def is_unused_on_purpose(argument: str, said: str) -> bool:
    """Check whether a target says, in lower case, that it takes an argument without using it."""
    return any(words.format(name=argument) in said for words in UNUSED_ON_PURPOSE)


def _stated(target: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of sentences and comments in a function, or in a module's own classes."""
    for definition in _own_definitions(target):
        yield from _stated_in(definition)


@kept
def _stated_in(definition: Callable[..., Any]) -> list[tuple[str, str]]:
    forward, stated = getattr(definition, "forward", None), list[tuple[str, str]]()
    for docstring in (definition.__doc__ or "", getattr(forward, "__doc__", None) or ""):
        stated += STATEMENT.findall(" ".join(docstring.split()))
    for line in _source_lines(definition):
        stated += OF_PARAMETER.findall(line) + _shapes_behind_signature(line)
        _, _, comment = line.partition("#")
        name, colon, text = comment.strip().partition(":")
        if colon and name.isidentifier():
            stated.append((name, text))
        stated += STATEMENT.findall(comment)
    return stated


def _source_lines(definition: Callable[..., Any]) -> list[str]:
    """Return the lines of a function or class; none if other code has made it."""
    try:
        return source_lines(definition)[0]
    except (OSError, TypeError):
        return []


def _own_definitions(target: Callable[..., Any]) -> list[Any]:
    """Return a function, or the class of a module and those that it inherits from, without those of torch."""
    definitions = type(target).__mro__ if isinstance(target, nn.Module) else (target,)
    foreign = ("torch", "builtins")
    return [it for it in definitions if str(it.__module__).partition(".")[0] not in foreign]
