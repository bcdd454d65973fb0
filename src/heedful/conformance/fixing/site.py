"""The site of a fix: a statement of a source file, with the code around it that tells how to write there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from heedful.conformance.fixing.syntax import (
    attributes_of_self,
    called,
    code,
    descendants,
    names_in,
    variables,
)

_SIZE = re.compile(r"\.shape\b|\.size\(")

Replacement = cst.CSTNode | cst.FlattenSentinel[Any] | cst.RemovalSentinel
Edit = Mapping[cst.CSTNode, Replacement]
"""The nodes of a file that a fix replaces, and by what."""

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
RELATED = 12  # statements around the named one that may need the edit instead


class SourceFile:
    """A parsed source file.

    Args:
        text: The source.

    Raises:
        libcst.ParserSyntaxError: The source has another syntax than Python's.
    """

    def __init__(self, text: str) -> None:
        self.text: str = text
        wrapper = MetadataWrapper(cst.parse_module(text))
        self.module: cst.Module = wrapper.module
        self._ranges = wrapper.resolve(PositionProvider)

    @cached_property
    def statements(self) -> list[Statement]:
        """All statements, outer ones first."""
        return [
            node
            for node in descendants(self.module)
            if isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
        ]

    @cached_property
    def modules(self) -> set[str]:
        """The names that import statements bind: modules, functions and classes of other files."""
        imports = [node for node in descendants(self.module) if isinstance(node, cst.ImportAlias)]
        names = [node.asname.name if node.asname else node.name for node in imports]
        return {code(name).partition(".")[0] for name in names}

    def line_of(self, node: cst.CSTNode) -> int:
        """Return the line that a node begins on."""
        return self._ranges[node].start.line

    def holds(self, node: cst.CSTNode, line: int) -> bool:
        """Check whether a node covers a line."""
        return self._ranges[node].start.line <= line <= self._ranges[node].end.line

    def edited(self, edit: Edit) -> str:
        """Return the source after an edit."""
        edited = self.module.visit(_Replacer(edit))
        assert isinstance(edited, cst.Module)
        return edited.code

    def site(self, line: int) -> Site | None:
        """Return the site of the innermost statement on a line."""
        holding = [node for node in self.statements if self.holds(node, line)]
        return self._site_of(holding[-1]) if holding else None

    def _site_of(self, statement: Statement) -> Site:
        line = self.line_of(statement)
        definitions = [node for node in self.statements if self.holds(node, line)]
        functions = [node for node in definitions if isinstance(node, cst.FunctionDef)]
        classes = [node for node in definitions if isinstance(node, cst.ClassDef)]
        return Site(self, statement, functions[-1] if functions else None, (classes or [None])[-1])

    def sites_in(self, node: cst.CSTNode) -> list[Site]:
        """Return the sites of the simple statements in a node."""
        found = [part for part in descendants(node) if isinstance(part, cst.SimpleStatementLine)]
        return [self._site_of(statement) for statement in found]


@dataclass(frozen=True, eq=False)
class Site:
    """A statement and its surroundings.

    Attributes:
        file: The file.
        statement: The statement.
        function: The function that it stands in; None at module level.
        owner: The class that it stands in; None outside classes.
        proof: The proof of the finding, which may name parameters.
    """

    file: SourceFile
    statement: Statement
    function: cst.FunctionDef | None
    owner: cst.ClassDef | None
    proof: str = ""

    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        """Everything in the statement, from the outside to the inside; of a compound statement, its header alone."""
        match self.statement:
            case cst.If(test=header) | cst.While(test=header) | cst.For(iter=header):
                return list(descendants(header))
            case cst.SimpleStatementLine():
                return list(descendants(self.statement))
        return []

    @cached_property
    def expressions(self) -> list[cst.BaseExpression]:
        """The expressions in the statement that it reads, from the outside to the inside."""
        targets = {id(part) for node in self.nodes for part in _written(node)}
        return [
            node
            for node in self.nodes
            if isinstance(node, cst.BaseExpression) and id(node) not in targets
        ]

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """The node that holds each node of the statement."""
        return {child: node for node in descendants(self.statement) for child in node.children}

    @cached_property
    def small(self) -> cst.BaseSmallStatement | None:
        """The statement, if it stands alone on its line."""
        match self.statement:
            case cst.SimpleStatementLine(body=[only]):
                return only
        return None

    @cached_property
    def block(self) -> list[Site]:
        """The simple statements of the function."""
        return [] if self.function is None else self.file.sites_in(self.function.body)

    @cached_property
    def earlier(self) -> list[Site]:
        """The simple statements of the function before this one, the nearest first."""
        line = self.file.line_of(self.statement)
        return [site for site in reversed(self.block) if site.line < line]

    @cached_property
    def line(self) -> int:
        """The line that the statement begins on."""
        return self.file.line_of(self.statement)

    @cached_property
    def parameters(self) -> list[str]:
        """The names of the function's parameters, without self."""
        if self.function is None:
            return []
        found = descendants(self.function.params)
        names = [node.name.value for node in found if isinstance(node, cst.Param)]
        return [name for name in names if name not in ("self", "cls")]

    @cached_property
    def assigned(self) -> list[str]:
        """The variables that the function assigns before this statement, the last one first."""
        return list(dict.fromkeys(name for site in self.earlier for name in site.targets))

    @cached_property
    def targets(self) -> list[str]:
        """The variables that the statement assigns."""
        return [
            name
            for node in self.nodes
            if isinstance(node, cst.AssignTarget)
            for name in (names_in(node.target) if _is_plain(node.target) else [])
        ]

    @cached_property
    def unread(self) -> list[str]:
        """The variables of the function that no other statement reads."""
        read = [name for site in self.block for name in site.reads]
        return [name for name in [*self.assigned, *self.parameters] if name not in read]

    @cached_property
    def sizes(self) -> set[str]:
        """The variables of the function that hold sizes of tensors."""
        sites = [site for site in self.earlier if _SIZE.search(code(site.statement))]
        return {name for site in sites for name in site.targets}

    @cached_property
    def reads(self) -> list[str]:
        """The variables that the statement reads."""
        targets = {id(part) for node in self.nodes for part in _written(node)}
        found = [node for node in variables(self.statement) if id(node) not in targets]
        return list(dict.fromkeys(node.value for node in found))

    @cached_property
    def attributes(self) -> dict[str, Site]:
        """The attributes of self that the class assigns, each with the first statement that does so."""
        found: dict[str, Site] = {}
        for site in [] if self.owner is None else self.file.sites_in(self.owner.body):
            for node in site.nodes:
                if isinstance(node, cst.AssignTarget):
                    for name in attributes_of_self(node.target):
                        found.setdefault(name, site)
                if called(node) == "register_buffer" and isinstance(node, cst.Call) and node.args:
                    found.setdefault(code(node.args[0].value).strip("'\""), site)
        return found

    @cached_property
    def unread_attributes(self) -> list[str]:
        """The attributes of self that only the constructor names."""
        if self.owner is None:
            return []
        sites = [site for site in self.file.sites_in(self.owner.body) if not site.is_constructor]
        read = {name for site in sites for node in site.nodes for name in attributes_of_self(node)}
        return [name for name in self.attributes if name not in read]

    @property
    def is_constructor(self) -> bool:
        """True if the statement stands in a constructor."""
        return self.function is not None and self.function.name.value == "__init__"

    def imports(self, module: str) -> bool:
        """Check whether the file imports a module by this name."""
        return module in self.file.modules

    def uses(self, text: str) -> bool:
        """Check whether the file contains a text, which tells its style."""
        return text in self.file.text

    def is_method(self, call: cst.Call) -> bool:
        """Check whether a call is one of a tensor's methods, and not one of a module's functions."""
        if not isinstance(call.func, cst.Attribute):
            return False
        root: cst.BaseExpression = call.func.value
        while isinstance(root, cst.Attribute):
            root = root.value
        return not (isinstance(root, cst.Name) and root.value in {*self.file.modules, "torch", "F"})

    def with_proof(self, proof: str) -> Site:
        """Return the same site with the proof of a finding."""
        return replace(self, proof=proof)

    def related(self) -> Iterator[Site]:
        """Yield the statements from which this one takes its values, the nearest first, each once."""
        found: dict[int, Site] = {self.line: self}
        for site in self._sources():
            found.setdefault(site.line, site)
        for near in list(found.values())[1:]:
            for site in near._sources():
                found.setdefault(site.line, site)
        for site in list(found.values())[1 : RELATED + 1]:
            yield site.with_proof(self.proof)

    def _sources(self) -> Iterator[Site]:
        """Yield the statements that assign or change what this one reads: variables, attributes, results of helpers."""
        for name in self.reads:
            yield from [site for site in self.earlier if name in (*site.targets, *site.changes)][:2]
        for name in attributes_of_self(self.statement):
            if name in self.attributes:
                yield self.attributes[name]
        for name in {called(node) for node in self.nodes} - {""}:
            yield from self._helper(name)
        yield from self.earlier[:2]
        yield from [site for site in self.block if site.line > self.line][:2]

    @cached_property
    def changes(self) -> list[str]:
        """The variables that the statement changes in place, or whose results it discards."""
        expressions = [node for node in self.nodes if isinstance(node, cst.Expr)]
        return [name for node in expressions for name in names_in(node.value)[:1]]

    def _helper(self, name: str) -> list[Site]:
        """Return the statements of the file's own function with a name."""
        functions = [node for node in self.file.statements if isinstance(node, cst.FunctionDef)]
        bodies = [node.body for node in functions if node.name.value == name != "forward"]
        return [site for body in bodies for site in reversed(self.file.sites_in(body))]


def _written(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the names that a node writes."""
    if isinstance(node, cst.AssignTarget) and _is_plain(node.target):
        yield from descendants(node.target)


def _is_plain(target: cst.CSTNode) -> bool:
    return isinstance(target, (cst.Name, cst.Tuple))


class _Replacer(cst.CSTTransformer):
    """Replaces the nodes of an edit."""

    def __init__(self, edit: Edit) -> None:
        super().__init__()
        self.edit = edit

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        return self.edit.get(original_node, updated_node)
