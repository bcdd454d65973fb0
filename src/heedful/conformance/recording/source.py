"""Source code of a target: its lines, and the statements on them that no recorded step stands for.

This is the only module of `conformance` that reads or parses source code.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import NamedTuple

from torch import nn

from heedful.conformance.recording.observation import Observation
from heedful.observation import Step

TRIANGLE_FUNCTIONS = frozenset({"triu", "tril", "triu_", "tril_"})


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


# --- parsed source -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ParsedSource:
    """A syntax tree whose line numbers are those of the file.

    Attributes:
        file: The path of the file.
        tree: The syntax of the file, or of one class or function in it.
    """

    file: str
    tree: ast.Module

    def statements(self) -> Iterator[ast.stmt]:
        """Yield every statement, including those nested in others."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.stmt))

    def line_of(self, statement: ast.stmt) -> SourceLine:
        """Return the line that a statement begins on."""
        return SourceLine(self.file, statement.lineno, " ".join(ast.unparse(statement).split()))


def parsed(definition: Callable[..., object]) -> ParsedSource | None:
    """Return the syntax of a class or function; None if it has no source that can be parsed by itself."""
    try:
        lines, first = inspect.getsourcelines(definition)
        file = inspect.getsourcefile(definition) or ""
    except (OSError, TypeError):
        return None
    return _parse(file, "".join(lines), first)


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


# --- functions ---------------------------------------------------------------------------------------


def functions_of(target: Callable[..., object]) -> Iterator[FunctionType]:
    """Yield the functions that a target consists of: itself, or the methods of the classes of its modules."""
    if inspect.isfunction(target):
        yield target
    for module in target.modules() if isinstance(target, nn.Module) else ():
        yield from methods_of(module)


def methods_of(module: nn.Module) -> Iterator[FunctionType]:
    """Yield the functions that a module's class defines itself."""
    yield from (member for member in vars(type(module)).values() if inspect.isfunction(member))


def prose_about(target: Callable[..., object]) -> str:
    """Return what a target's code says in words, in lower case: names of classes and functions, docstrings, comments.

    Args:
        target: A function, or a module, whose submodules' classes count, too.
    """
    return "\n".join(map(_prose, _own_definitions(target))).lower()


def own_text(target: Callable[..., object]) -> str:
    """Return the source of a function, or of the classes of a module, below the docstrings of their files."""
    sources = [source for it in _own_definitions(target) if (source := parsed(it)) is not None]
    files = dict.fromkeys(source.file for source in sources)
    trees = (source.tree for file in files if (source := parsed_file(file)) is not None)
    docstrings = (ast.get_docstring(tree) or "" for tree in trees)
    return "\n".join([*docstrings, *(ast.unparse(source.tree) for source in sources)])


def _own_definitions(target: Callable[..., object]) -> list[Callable[..., object]]:
    """Return a function, or the classes of a module and of its submodules, without those of torch."""
    modules = target.modules() if isinstance(target, nn.Module) else ()
    classes = dict.fromkeys(base for module in modules for base in type(module).__mro__)
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in ("torch", "builtins")]
    return list(own) or [target]


def _prose(definition: Callable[..., object]) -> str:
    source = parsed(definition)
    if source is None:
        return getattr(definition, "__name__", "")
    named = (ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(source.tree) if isinstance(node, named)]
    words = [text for node in nodes for text in (node.name, ast.get_docstring(node) or "")]
    lines, _ = inspect.getsourcelines(definition)
    tokens = tokenize.generate_tokens(
        iter(textwrap.dedent("".join(lines)).splitlines(True)).__next__
    )
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*words, *comments])


def last_return(function: Callable[..., object]) -> SourceLine | None:
    """Return the last line on which a function returns."""
    source = parsed(function)
    if source is None:
        return None
    returns = [node for node in source.statements() if isinstance(node, ast.Return)]
    last = max(returns, key=lambda node: node.lineno, default=None)
    return None if last is None else source.line_of(last)


def last_assignment(target: Callable[..., object], step: Step, variable: str) -> SourceLine | None:
    """Return the last line before a step's line that assigns a local variable of the step's function."""
    lines = [
        source.line_of(node)
        for function in functions_of(target)
        if function.__code__.co_qualname == step.function
        if (source := parsed(function)) is not None
        for node in source.statements()
        if _assigns(node, variable) and step.line is not None and node.lineno < step.line
    ]
    return max(lines, key=lambda line: line.line, default=None)


def variables_read(file: str, line: int) -> list[str]:
    """Return the local variables that the statement on a line reads, in order."""
    source = parsed_file(file)
    statement = None if source is None else _innermost_at(source, line)
    nodes = () if statement is None else ast.walk(statement)
    read = (it for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load))
    return list(dict.fromkeys(it.id for it in read))


def assignment_before(file: str, line: int, variable: str, first: int) -> SourceLine | None:
    """Return the last line that assigns a variable between the first line of its function and a later line."""
    source = parsed_file(file)
    made = [
        statement
        for statement in (() if source is None else source.statements())
        if first <= statement.lineno < line and _assigns(statement, variable)
    ]
    last = max(made, key=lambda statement: statement.lineno, default=None)
    return None if last is None or source is None else source.line_of(last)


def _innermost_at(source: ParsedSource, line: int) -> ast.stmt | None:
    """Return the innermost statement that covers a line."""
    covering = [it for it in source.statements() if it.lineno <= line <= (it.end_lineno or 0)]
    return max(covering, key=lambda it: it.lineno, default=None)


def _assigns(statement: ast.stmt, variable: str) -> bool:
    match statement:
        case ast.Assign(targets=targets):
            return any(isinstance(node, ast.Name) and node.id == variable for node in targets)
    return False


def fields_read(cls: Callable[..., object]) -> dict[str, list[str]]:
    """Return the fields that a constructor reads of each of its parameters: `config.n_embd` or `config["n_embd"]`.

    Fields that the rest of the class reads of `self.config` are listed under "config".
    """
    fields: dict[str, list[str]] = {}
    source = parsed(cls)
    for node in ast.walk(source.tree) if source is not None and inspect.isclass(cls) else ():
        match node:
            case (
                ast.Attribute(value=ast.Name(id=name), attr=field)
                | ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field)))
            ) if name != "self":
                fields.setdefault(name, []).append(field)
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr="config"), attr=field
            ):
                fields.setdefault("config", []).append(field)
    return fields


def texts_compared(cls: Callable[..., object]) -> dict[str, str]:
    """Return the first text that a class compares each variable or attribute with, as in `kind == "local"`."""
    texts: dict[str, str] = {}
    source = parsed(cls)
    for node in ast.walk(source.tree) if source is not None and inspect.isclass(cls) else ():
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
                texts.setdefault(name, text)
    return texts


# --- attributes --------------------------------------------------------------------------------------


def attribute_mutation(module: nn.Module, attribute: str) -> SourceLine | None:
    """Return the first line outside the constructor that assigns a module's attribute or writes into it.

    If it writes under a key that a local variable holds, `self.tables[key] = …`, return the line that makes the key:
    what the key leaves out cannot tell entries apart.
    """
    for function in methods_of(module):
        source = parsed(function)
        if source is None or function.__name__ == "__init__":
            continue
        for statement in source.statements():
            if _mutates(statement, attribute):
                return source.line_of(_key_definition(source, statement) or statement)
    return None


def _key_definition(source: ParsedSource, statement: ast.stmt) -> ast.stmt | None:
    """Return the statement that assigns the variable under which another statement writes into an attribute."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(slice=ast.Name(id=key))]):
            made = (it for it in source.statements() if _assigns(it, key) and _is_composed(it))
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
    """Return the line that creates a submodule with the value of an attribute, which `self.x = x` only keeps."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(attr=_)], value=ast.Name(id=parameter)) if path:
            pass
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
                accepted = inspect.signature(type(module.get_submodule(path))).parameters
                if parameter in given or parameter in [*accepted][: len(call.args)]:
                    return source.line_of(created)
    return None


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
        if isinstance(node, ast.Call) and cls in _names([node.func])
    }
    return SourceLine.at(definition.file, lines.pop()) if len(lines) == 1 else definition


def _defining_statement(
    source: ParsedSource, attribute: str, follow_locals: bool
) -> ast.stmt | None:
    """Return the first statement in a class that defines an attribute, or the local assignment behind it."""
    for function in ast.walk(source.tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
        definition = next((node for node in statements if _defines(node, attribute)), None)
        if definition is None:
            continue
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
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return name == attribute
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=name), *_]
            )
        ):
            return name == attribute
    return False


def _assigns_triangle(statement: ast.stmt, variables: set[str]) -> bool:
    """Check whether a statement assigns a triangular matrix to one of some variables."""
    if not any(_assigns(statement, variable) for variable in variables):
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
    for function in functions_of(target):
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
    return _names(node for node in nodes if isinstance(node, ast.expr))


# --- calls -------------------------------------------------------------------------------------------


def call_site(observation: Observation, step: Step) -> SourceLine | None:
    """Return the line `name = function(…)` that called the function in which a step was made.

    The name is known from the last step that the function made in that call, which the assignment names.
    """
    last_step = step
    for following in observation.trace.steps[step.index + 1 :]:
        if following.function != step.function or (following.line or 0) < (last_step.line or 0):
            break
        last_step = following
    function, variable = step.function.rpartition(".")[2], last_step.name.partition("·")[0]
    source = parsed_file(step.file or "")
    if source is None:
        return None
    for statement in source.statements():
        if isinstance(statement, ast.Assign) and variable in _names(statement.targets):
            calls = (node for node in ast.walk(statement.value) if isinstance(node, ast.Call))
            if function in _names(call.func for call in calls):
                return source.line_of(statement)
    return None


def lines_calling(module: nn.Module, path: str) -> list[SourceLine]:
    """Return the statements that call a part of a module as `self.name(…)`, in the order of the lines.

    Args:
        module: The outermost module.
        path: The path of the part, such as "blocks.0.attn".
    """
    parent, _, name = path.rpartition(".")
    lines: list[SourceLine] = []
    for function in methods_of(module.get_submodule(parent)):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            if source is not None and not hasattr(statement, "body"):
                calls = (it for it in ast.walk(statement) if isinstance(it, ast.Call))
                lines += [source.line_of(statement) for it in calls if _calls_attribute(it, name)]
    return sorted(lines, key=lambda line: line.line)


def _calls_attribute(call: ast.Call, name: str) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return attribute == name
    return False


def line_reading(module: nn.Module, attribute: str) -> SourceLine | None:
    """Return the last statement of a module's methods, but for its constructor, that reads `self.attribute`."""
    lines: list[SourceLine] = []
    for function in (it for it in methods_of(module) if it.__name__ != "__init__"):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            if source is not None and not hasattr(statement, "body"):
                reads = (it for it in ast.walk(statement) if isinstance(it, ast.Attribute))
                lines += [source.line_of(statement) for it in reads if it.attr == attribute]
    return max(lines, key=lambda line: line.line, default=None)


def docstring_around(line: SourceLine) -> str:
    """Return the docstring of the function outside any class that a line is in, in lower case; "" if there is none."""
    source = parsed_file(line.file)
    functions = [] if source is None else source.tree.body
    around = (
        it for it in functions if isinstance(it, ast.FunctionDef) and _contains(it, line.line)
    )
    return next((ast.get_docstring(it) or "" for it in around), "").lower()


def _contains(statement: ast.stmt, line: int | None) -> bool:
    return statement.lineno <= (line or 0) <= (statement.end_lineno or 0)


def returns_result(step: Step) -> bool:
    """Check whether the function of a step returns its result, by its own statement or by the name it is given."""
    source = parsed_file(step.file or "")
    functions = (
        it
        for it in ([] if source is None else source.statements())
        if isinstance(it, ast.FunctionDef) and _contains(it, step.line)
    )
    innermost = max(functions, key=lambda it: it.lineno, default=None)
    if innermost is None:
        return False
    returns = [it for it in ast.walk(innermost) if isinstance(it, ast.Return) and it.value]
    return any(
        _contains(it, step.line) or (isinstance(it.value, ast.Name) and it.value.id == step.name)
        for it in returns
    )


def call_that_omits(
    target: Callable[..., object], step: Step, parameters: Iterable[str]
) -> SourceLine | None:
    """Return the line of a target that calls the function of a step without one of its optional parameters.

    Args:
        target: The module or function whose source is searched for the call.
        step: A step that was made in a function of the same file.
        parameters: The names of the parameters, one of which the function must have.
    """
    source = parsed_file(step.file or "")
    definitions = [
        node
        for node in ([] if source is None else source.statements())
        if isinstance(node, ast.FunctionDef) and node.name == step.function
    ]
    if not definitions:
        return None
    positions = {argument.arg: n for n, argument in enumerate(definitions[0].args.args)}
    wanted = {name: positions[name] for name in parameters if name in positions}
    for function in functions_of(target):
        caller = parsed(function)
        if caller is None:
            continue
        for statement in caller.statements():
            if hasattr(statement, "body"):
                continue  # the statements in it are searched one by one
            for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
                given = {keyword.arg for keyword in call.keywords}
                omits = any(n >= len(call.args) and name not in given for name, n in wanted.items())
                if omits and _calls(call, step.function):
                    return caller.line_of(statement)
    return None


class HandedValue(NamedTuple):
    """The value that a call passes to a parameter.

    Attributes:
        place: The line that assigns the variable which is passed, or else the line of the call that names the value.
        attribute: The path of the module's attribute that it is, such as "attn.scaling"; "" for another value.
    """

    place: SourceLine
    attribute: str


def value_handed_to(
    module: nn.Module | None, step: Step, pattern: re.Pattern[str]
) -> HandedValue | None:
    """Return the value of the parameter that a step reads in a function which a method of a module calls.

    Args:
        module: The outermost module.
        step: The step.
        pattern: What the name of the parameter contains.
    """
    source = parsed_file(step.file or "")
    definition = next(
        (
            node
            for node in (() if source is None else source.statements())
            if isinstance(node, ast.FunctionDef) and node.name == step.function
        ),
        None,
    )
    if definition is None or module is None:
        return None
    taken = [it.arg for it in (*definition.args.args, *definition.args.kwonlyargs)]
    read = [
        name for name in taken if pattern.search(name) and re.search(rf"\b{name}\b", step.source)
    ]
    for path, part in module.named_modules():
        for function in methods_of(part):
            for name in read:
                found = _value_in(function, path, step.function, name, taken.index(name))
                if found is not None:
                    return found
    return None


def _value_in(
    function: FunctionType, path: str, callee: str, parameter: str, position: int
) -> HandedValue | None:
    """Return the value that a method of a module passes to a parameter of a function."""
    source = parsed(function)
    for call in () if source is None else ast.walk(source.tree):
        if source is None or not isinstance(call, ast.Call):
            continue
        if not isinstance(call.func, ast.Name) or call.func.id != callee:
            continue
        positional = call.args[position] if position < len(call.args) else None
        keyword = next((it.value for it in call.keywords if it.arg == parameter), None)
        value = positional or keyword
        if value is None:
            return None
        place, variable = SourceLine.at(source.file, value.lineno), ""
        match value:
            case ast.Name(id=variable):
                pass
        made = [it for it in source.statements() if it.lineno < call.lineno]
        made = [it for it in made if isinstance(it, ast.Assign) and _assigns(it, variable)]
        if made:
            last = max(made, key=lambda it: it.lineno)
            place, value = source.line_of(last), last.value
        match value:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return HandedValue(place, f"{path}.{name}" if path else name)
        return HandedValue(place, "")
    return None


def _calls(call: ast.Call, function: str) -> bool:
    """Check whether a call is one of a function by its name, with all arguments written out."""
    is_written_out = all(keyword.arg for keyword in call.keywords) and not any(
        isinstance(argument, ast.Starred) for argument in call.args
    )
    return is_written_out and isinstance(call.func, ast.Name) and call.func.id == function


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    """Return the variables and attributes that expressions name."""
    nodes = [node for expression in expressions for node in ast.walk(expression)]
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
