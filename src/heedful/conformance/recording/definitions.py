"""Statements that define what a module holds: its attributes, layers and triangular masks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable

from torch import nn

from heedful.conformance.recording.assignments import assigns
from heedful.conformance.recording.source import (
    ParsedSource,
    SourceLine,
    names_in,
    parsed,
    parsed_file,
)
from heedful.conformance.recording.target_source import methods_of, own_functions_of
from heedful.observation import Step

TRIANGLE_FUNCTIONS = frozenset({"triu", "tril", "triu_", "tril_"})


def attribute_mutation(module: nn.Module, attribute: str) -> SourceLine | None:
    """Return the first line outside the constructor that assigns a module's attribute or writes into it.

    If it writes under a key that a local variable holds, `self.tables[key] = …`, return the line that makes the key:
    what the key leaves out cannot tell entries apart.
    """
    for function in methods_of(module):
        source = parsed(function)
        if source is None or function.__name__ == "__init__":
            continue
        for statement in sorted(source.statements(), key=lambda it: it.lineno):
            if _mutates(statement, attribute):
                return source.line_of(_key_definition(source, statement) or statement)
    return None


def _key_definition(source: ParsedSource, statement: ast.stmt) -> ast.stmt | None:
    """Return the statement that assigns the variable under which another statement writes into an attribute."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(slice=ast.Name(id=key))]):
            made = (it for it in source.statements() if assigns(it, key) and _is_composed(it))
            earlier = (it for it in made if it.lineno < statement.lineno)
            return max(earlier, key=lambda it: it.lineno, default=None)
    return None


def _is_composed(statement: ast.stmt) -> bool:
    """Check whether a statement assigns a text or a tuple."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.JoinedStr | ast.Tuple | ast.Constant)


def _mutates(statement: ast.stmt, attribute: str) -> bool:
    """Check for `self.x = …`, `self.x += …`, `self.x[…] = …` and in-place calls such as `self.x.fill_(…)`."""
    match statement:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            changed = target.value if isinstance(target, ast.Subscript) else target
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed, attr=name))) if (
            name.endswith("_")
        ):
            pass
        case _:
            return False
    match changed:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name == attribute
    return False


def attribute_definition(
    module: nn.Module | None, name: str, *, follow_locals: bool = True
) -> SourceLine | None:
    """Return the line of a module's class that defines an attribute: `self.name = …`, or its registration as a buffer.

    Args:
        module: The module in which the name is looked up.
        name: A dotted path, such as "heads.0.mask".
        follow_locals: Whether to return the line that builds a triangular matrix in a local variable, if the
            definition only takes it from there.
    """
    if module is None:
        return None
    path, _, attribute = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return None
    for definition in type(owner).__mro__:
        if definition.__module__.startswith("torch.") or definition is object:
            return None
        source = parsed(definition)
        if source is None:
            continue
        statement = _defining_statement(source, attribute, follow_locals)
        if statement is not None:
            given = _given_value(module, path, statement)
            return given or source.line_of(statement)
    return None


def _given_value(module: nn.Module, path: str, statement: ast.stmt) -> SourceLine | None:
    """Return the line that creates a submodule with the value of an attribute, which the submodule is only given.

    The submodule keeps it, `self.x = x`, or its square root, if that is all that it needs to be given.
    """
    accepted = inspect.signature(type(module.get_submodule(path))).parameters
    required = [name for name, it in accepted.items() if it.default is inspect.Parameter.empty]
    match statement:
        case ast.Assign(targets=[ast.Attribute(attr=_)], value=ast.Name(id=parameter)) if path:
            pass
        case ast.Assign(targets=[ast.Attribute(attr=_)], value=value) if path:
            parameter = _radicand(value)
            if required != [parameter]:
                return None
        case _:
            return None
    outer, _, name = path.rpartition(".")
    source = parsed(type(module.get_submodule(outer)))
    if source is None:
        return None
    for created in source.statements():
        match created:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)],
                value=ast.Call() as call,
            ) if attr == name:
                given = {keyword.arg for keyword in call.keywords}
                if parameter in given or parameter in [*accepted][: len(call.args)]:
                    return source.line_of(created)
    return None


def _radicand(value: ast.expr) -> str:
    """Return the variable of which an expression is the square root or its inverse; "" for other expressions."""
    root = re.fullmatch(
        r"(?:1(?:\.0)? / )?(?:\w+\.)?(?:sqrt\((\w+)\)|pow(?:er)?\((\w+), -?0?\.5\))|(\w+) \*\* -?0?\.5",
        ast.unparse(value),
    )
    return "" if root is None else next(filter(None, root.groups()))


def layer_definition(
    module: nn.Module | None, step: Step, *kinds: type[nn.Module]
) -> SourceLine | None:
    """Return the line that creates the layer which a step's line calls, `self.name(…)`, if it is of a kind.

    If `self.name` is a container of layers, return the line that creates the one in it that is of a kind.
    """
    layers = {} if module is None else dict(module.named_modules())
    for name in re.findall(r"self\.(\w+)\(", step.source):
        path = f"{step.module}.{name}" if step.module else name
        if isinstance(layers.get(path), kinds):
            return attribute_definition(module, path)
        if isinstance(layer := layers.get(path), nn.Sequential):
            inner = [part for part in layer.modules() if isinstance(part, kinds)]
            definition = attribute_definition(module, path)
            if len(inner) == 1 and definition is not None:
                return _creation_within(definition, type(inner[0]).__name__)
    return None


def _creation_within(definition: SourceLine, cls: str) -> SourceLine:
    """Return the only line of a statement that creates an instance of a class, or else the statement's first line."""
    source = parsed_file(definition.file)
    statements = () if source is None else source.statements()
    lines = {
        node.lineno
        for statement in statements
        if statement.lineno == definition.line
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and cls in names_in([node.func])
    }
    return SourceLine.at(definition.file, lines.pop()) if len(lines) == 1 else definition


def _defining_statement(
    source: ParsedSource, attribute: str, follow_locals: bool
) -> ast.stmt | None:
    """Return the first statement in a class that defines an attribute, or the local assignment behind it."""
    for function in source.nodes:
        if not isinstance(function, ast.FunctionDef):
            continue
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
        definitions = [node for node in statements if _defines(node, attribute)]
        if not definitions:
            continue
        definition = next((it for it in definitions if not _assigns_none(it)), definitions[0])
        variables = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
        triangles = [
            node
            for node in statements
            if node.lineno < definition.lineno and _assigns_triangle(node, variables)
        ]
        return triangles[-1] if triangles and follow_locals else definition
    return None


def _defines(statement: ast.stmt, attribute: str) -> bool:
    match statement:
        case (
            ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)])
            | ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name))
        ):
            return name == attribute
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=name), *_]
            )
        ):
            return name == attribute
    return False


def _assigns_none(statement: ast.stmt) -> bool:
    """Check whether a statement only announces an attribute, `self.table = None`, which another one makes."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else statement
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _assigns_triangle(statement: ast.stmt, variables: set[str]) -> bool:
    """Check whether a statement assigns a triangular matrix to one of some variables."""
    if not any(assigns(statement, variable) for variable in variables):
        return False
    methods = {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    return not methods.isdisjoint(TRIANGLE_FUNCTIONS)


def triangle_if_given(
    target: Callable[..., object], arguments: Iterable[str]
) -> tuple[str, SourceLine] | None:
    """Return the branch `if mask is not None` that alone builds a triangular matrix, and the argument it asks for.

    Args:
        target: A module or function.
        arguments: The names of its arguments that a call need not give.
    """
    for function in own_functions_of(target):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            match statement:
                case ast.If(
                    test=ast.Compare(
                        left=ast.Name(id=name),
                        ops=[ast.IsNot()],
                        comparators=[ast.Constant(value=None)],
                    ),
                    body=body,
                ) if name in arguments and not TRIANGLE_FUNCTIONS.isdisjoint(_named_in(body)):
                    file = "" if source is None else source.file
                    return name, SourceLine.at(file, statement.lineno)
    return None


def _named_in(statements: Iterable[ast.stmt]) -> set[str]:
    nodes = [node for statement in statements for node in ast.walk(statement)]
    return names_in(node for node in nodes if isinstance(node, ast.expr))


def mask_definition(target: Callable[..., object]) -> SourceLine | None:
    """Return the line of a loop that numbers the regions of a mask, or else the first one that makes a mask."""
    made: list[SourceLine] = []
    for function in own_functions_of(target):
        source = parsed(function)
        if source is None:
            continue
        loops = (it for it in source.statements() if isinstance(it, ast.For))
        numbering = (it for loop in loops for it in ast.walk(loop) if _writes_a_part(it))
        if (statement := next(numbering, None)) is not None and isinstance(statement, ast.stmt):
            return source.line_of(statement)
        made += [source.line_of(it) for it in source.statements() if _makes_a_mask(it)]
    return made[0] if made else None


def _writes_a_part(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Subscript(value=ast.Name())]):
            return True
    return False


def _makes_a_mask(statement: ast.stmt) -> bool:
    """Check for an assignment to a variable or an attribute that is called a mask."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
            return "mask" in name and not isinstance(value, ast.Constant)
    return False
