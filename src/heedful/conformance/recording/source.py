"""Source code: its lines and its statements.

The modules beside this one that read source code read it through this one.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:  # the command that prints a report reads this file, and needs no PyTorch
    from heedful.observation import Step

OFF = frozenset({"none", "no", "off", "identity", "disabled"})
"""Texts that turn something off."""


@dataclass(frozen=True)
class SourceLine:
    """A line of the target's source code.

    Attributes:
        file: The path of the file, or the name that Python has for the source, such as "<stdin>".
        line: The number of the line, counted from 1.
        source: The statement on that line, written on one line.

    Examples:
        >>> from heedful.conformance import SourceLine
        >>> SourceLine("mine.py", 5, "weights = scores.softmax(1)").line
        5
    """

    file: str
    line: int
    source: str

    @classmethod
    def of(cls, step: Step | None) -> SourceLine | None:
        """Return the line that a recorded step was made on; None if no source code made it."""
        if step is None or step.file is None or step.line is None:
            return None
        return cls(step.file, step.line, " ".join(step.source.split()))

    @classmethod
    def at(cls, file: str, line: int) -> SourceLine:
        """Return a line of a file with its text, which is empty if the file cannot be read."""
        return cls(file, line, linecache.getline(file, line).strip())

    def surrounding(self, count: int) -> list[tuple[int, str]]:
        """Return the line and up to `count` lines before and after it, each with its number.

        If the file cannot be read, return the line alone.
        """
        lines = linecache.getlines(self.file)
        if len(lines) < self.line:
            return [(self.line, self.source)]
        first = max(self.line - count, 1)
        excerpt = lines[first - 1 : self.line + count]
        return [(number, line.rstrip()) for number, line in enumerate(excerpt, first)]


@dataclass(frozen=True, eq=False)
class ParsedSource:
    """A syntax tree whose line numbers are those of the file.

    Attributes:
        file: The path of the file.
        tree: The syntax of the file, or of one class or function in it.
    """

    file: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, outer ones first."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def classes(self) -> dict[str, list[ast.ClassDef]]:
        """The classes of each qualified name, such as "Model.Block" or "build.<locals>.Block"."""
        classes: dict[str, list[ast.ClassDef]] = {}
        pending = [("", node) for node in self.tree.body]
        while pending:
            prefix, node = pending.pop()
            if isinstance(node, ast.ClassDef):
                classes.setdefault(prefix + node.name, []).append(node)
                prefix += f"{node.name}."
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                prefix += f"{node.name}.<locals>."
            pending += [
                (prefix, it) for it in ast.iter_child_nodes(node) if not isinstance(it, ast.expr)
            ]
        return classes

    def statements(self) -> Iterator[ast.stmt]:
        """Yield every statement, including those nested in others."""
        return (node for node in self.nodes if isinstance(node, ast.stmt))

    def line_of(self, statement: ast.stmt) -> SourceLine:
        """Return the line that a statement begins on."""
        return SourceLine(self.file, statement.lineno, " ".join(ast.unparse(statement).split()))


Definition = Callable[..., object]
Read = TypeVar("Read")


def kept(read: Callable[[Definition], Read]) -> Callable[[Definition], Read]:
    """Keep what is read in the source of a class or a function as long as that itself exists. It is read often."""
    known: WeakKeyDictionary[object, Read] = WeakKeyDictionary()

    @wraps(read)
    def read_once(definition: Definition) -> Read:
        if not isinstance(definition, type | FunctionType):
            return read(definition)
        if definition not in known:
            known[definition] = read(definition)
        return known[definition]

    return read_once


def source_lines(definition: Callable[..., object]) -> tuple[list[str], int]:
    """Return the lines of a class or function, and the number of the first one.

    Raises:
        OSError: The source cannot be read.
        TypeError: Something else than a class or function was given.
    """
    return _source_lines(definition.__func__ if inspect.ismethod(definition) else definition)


@kept
def _source_lines(definition: Callable[..., object]) -> tuple[list[str], int]:
    found = _lines_of_class(definition) if isinstance(definition, type) else None
    return inspect.getsourcelines(definition) if found is None else found


def _lines_of_class(cls: type) -> tuple[list[str], int] | None:
    """Return the lines of a class and the number of the first one; None if its file has none of its name, or several.

    `inspect` parses the whole file for each class of it before Python 3.13. This parses it once.
    """
    file = inspect.getsourcefile(cls) or ""
    linecache.checkcache(file)
    source = parsed_file(file)
    named = () if source is None else source.classes.get(cls.__qualname__, ())
    if len(named) != 1:
        return None
    first = min(it.lineno for it in (*named[0].decorator_list, named[0]))
    return linecache.getlines(file)[first - 1 : named[0].end_lineno], first


def parsed(definition: Callable[..., object]) -> ParsedSource | None:
    """Return the syntax of a class or function; None if it has no source that can be parsed by itself."""
    try:
        lines, first = source_lines(definition)
        file = inspect.getsourcefile(inspect.unwrap(definition)) or ""  # as the lines are
    except (OSError, TypeError):
        return None
    return _parse(file, "".join(lines), first)


def tree_of(text: str) -> ast.Module:
    """Return the syntax of a statement's text; an empty one if it is a part alone, such as the head of a loop."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def nodes_of(definition: Callable[..., object]) -> Iterator[ast.AST]:
    """Yield the nodes of the syntax of a class or function; none if it has no source that can be parsed by itself."""
    source = parsed(definition)
    yield from () if source is None else source.nodes


def parsed_file(file: str) -> ParsedSource | None:
    """Return the syntax of a file, empty if it cannot be read; None if it cannot be parsed."""
    return _parse(file, "".join(linecache.getlines(file)), first=1)


@lru_cache(maxsize=256)
def _parse(file: str, text: str, first: int) -> ParsedSource | None:
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return None
    return ParsedSource(file, ast.increment_lineno(tree, first - 1))


def fields_read(cls: Callable[..., object]) -> dict[str, list[str]]:
    """Return the fields that a constructor reads of each of its parameters, as `config.n_embd` or `config["n_embd"]`.

    What it reads as `config.get("n_embd")` counts too, unless it has a default there.

    Fields that the rest of the class reads of `self.config` are listed under "config", and those of `self.__config`
    under the parameter of that name.
    """
    fields: dict[str, list[str]] = {}
    source = parsed(cls)
    for node in source.nodes if source is not None and inspect.isclass(cls) else ():
        if (found := _field_of(cls.__name__, node)) is not None:
            fields.setdefault(found[0], []).append(found[1])
    return fields


def optional_fields_read(cls: Callable[..., object]) -> list[str]:
    """Return the fields that a constructor reads with a default, as `config.get("num_kv_heads", heads)`."""
    fields: list[str] = []
    source = parsed(cls)
    for node in source.nodes if source is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(field)), _]):
                fields.append(field)
            case _:
                pass
    return fields


def sections_read(cls: Callable[..., object]) -> set[str]:
    """Return the fields of a configuration that have fields themselves: "model" in `config.model["n_embd"]`."""
    source = parsed(cls)
    sections: set[str] = set()
    for node in source.nodes if source is not None and inspect.isclass(cls) else ():
        match node:
            case (
                ast.Attribute(value=part) | ast.Subscript(value=part, slice=ast.Constant(str()))
            ) if (found := _field_of(cls.__name__, part)) is not None:
                sections.add(found[1])
            case _:
                pass
    return sections


def _field_of(owner: str, node: ast.AST) -> tuple[str, str] | None:
    """Return the variable and the field that an expression in a class reads; None if it reads none."""
    match node:
        case (
            ast.Attribute(value=ast.Name(id=name), attr=field)
            | ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field)))
            | ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="get"),
                args=[ast.Constant(value=str(field))],
            )
        ) if name != "self":
            return _mangled(owner, name), field
        case ast.Attribute(
            value=ast.Attribute(value=ast.Name(id="self"), attr=kept), attr=field
        ) if kept == "config" or _mangled(owner, kept) != kept:
            return _mangled(owner, kept), field
        case _:
            return None


def _mangled(owner: str, name: str) -> str:
    """Return the name of a variable within a class as Python keeps it: `__config` is private to the class."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.lstrip('_')}{name}" if private else name


def texts_compared(cls: Callable[..., object]) -> dict[str, list[str]]:
    """Return the texts that a class compares each variable or attribute with, as in `kind == "local"`, in order.

    Functions of its file that its methods call count, too, and so do the keys of its dictionaries: `LAYERS[kind]`. A
    variable has the texts of the attribute that it is kept as. A text that turns something off is the last one.
    """
    texts: dict[str, list[str]] = {}
    readers = (cls, *_functions_called(cls)) if inspect.isclass(cls) else ()
    tables = getattr(
        sys.modules.get(cls.__module__), "__dict__", {}
    )  # a file may have deleted itself
    for node in (node for reader in readers for node in nodes_of(reader)):
        match node:
            case ast.Compare(
                left=ast.Name(id=name) | ast.Attribute(attr=name),
                comparators=[
                    ast.Constant(value=str(text))
                    | ast.Tuple(elts=[ast.Constant(value=str(text)), *_])
                    | ast.List(elts=[ast.Constant(value=str(text)), *_])
                    | ast.Set(elts=[ast.Constant(value=str(text)), *_])
                ],
            ):
                found = [text]
            case ast.Subscript(
                value=ast.Name(id=table), slice=ast.Name(id=name) | ast.Attribute(attr=name)
            ) if isinstance(tables.get(table), dict):
                found = [it for it in tables[table] if isinstance(it, str)]
            case _:
                continue
        known = texts.setdefault(name, []) if found else []
        known += [it for it in found if it not in known]
    ordered = {name: sorted(them, key=lambda it: it in OFF) for name, them in texts.items()}
    return {name: ordered[kept] for name, kept in _kept_as(readers) if kept in ordered} | ordered


def names_of_methods(cls: type) -> set[str]:
    """Return the attributes by whose text a class chooses a method: `getattr(self, self.method + "_score")`."""
    chosen = set[str]()
    for node in nodes_of(cls):
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="self"), name, *_]):
                chosen |= {it.attr for it in ast.walk(name) if isinstance(it, ast.Attribute)}
            case _:
                pass
    return chosen


def _kept_as(readers: Iterable[Callable[..., object]]) -> Iterator[tuple[str, str]]:
    """Yield the names of variables that methods keep as attributes, each with the name of the attribute."""
    for node in (node for reader in readers for node in nodes_of(reader)):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=kept)], value=ast.Name(id=name)):
                yield name, kept
            case _:
                pass


def compared_around(line: SourceLine) -> set[str]:
    """Return the texts with which conditions are compared that a line depends on, such as "local"."""
    source = parsed_file(line.file)
    nodes = () if source is None else source.nodes
    around = [
        it.test
        for it in nodes
        if isinstance(it, ast.If) and any(contains_line(inner, line.line) for inner in it.body)
    ]
    constants = (
        node for test in around for node in ast.walk(test) if isinstance(node, ast.Constant)
    )
    return {it.value for it in constants if isinstance(it.value, str)}


def _functions_called(cls: type) -> Iterator[FunctionType]:
    """Yield the functions of a class's file that its methods name."""
    for method in (it for it in vars(cls).values() if inspect.isfunction(it)):
        for name in method.__code__.co_names:
            value = method.__globals__.get(name)
            if inspect.isfunction(value) and value.__module__ == cls.__module__:
                yield value


def function_around(line: SourceLine) -> ast.FunctionDef | None:
    """Return the function outside any class that a line is in; None if there is none."""
    source = parsed_file(line.file)
    functions = [] if source is None else source.tree.body
    around = (
        it for it in functions if isinstance(it, ast.FunctionDef) and contains_line(it, line.line)
    )
    return next(around, None)


def functions_around(line: SourceLine) -> list[ast.FunctionDef]:
    """Return the functions and methods that a line is in, each after those that it is within."""
    source = parsed_file(line.file)
    return [
        it
        for it in (() if source is None else source.statements())
        if isinstance(it, ast.FunctionDef) and contains_line(it, line.line)
    ]


def imported_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node of the syntax imports; none if it is no import."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)


def contains_line(statement: ast.stmt, line: int | None) -> bool:
    return statement.lineno <= (line or 0) <= (statement.end_lineno or 0)


def is_own_attribute(node: ast.AST, name: str) -> bool:
    """Check whether a node of the syntax is `self.name`."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return attribute == name
    return False


def names_in(expressions: Iterable[ast.expr]) -> set[str]:
    """Return the variables and attributes that expressions name."""
    nodes = [node for expression in expressions for node in ast.walk(expression)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
