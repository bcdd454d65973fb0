"""Source code of a target: the functions and classes that it consists of, and what they say in words."""

from __future__ import annotations

import ast
import inspect
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType

from torch import nn

from heedful.conformance.recording.source import kept, parsed, parsed_file, source_lines


def functions_of(target: Callable[..., object]) -> Iterator[FunctionType]:
    """Yield the functions that a target consists of: itself, or the methods of the classes of its modules."""
    if inspect.isfunction(target):
        yield target
    for module in target.modules() if isinstance(target, nn.Module) else ():
        yield from methods_of(module)


def own_functions_of(target: Callable[..., object]) -> Iterator[FunctionType]:
    """Yield the functions that a target consists of, without those of PyTorch's layers in a target that is not its own.

    Nobody edits PyTorch's lines, so these are never to blame.
    """
    of_torch = type(target).__module__.startswith("torch.")
    functions = functions_of(target)
    yield from (it for it in functions if of_torch or not it.__module__.startswith("torch."))


def with_functions_called(functions: Iterable[FunctionType]) -> Iterator[FunctionType]:
    """Yield functions, and those of the same files that they name, directly or through others."""
    found = dict.fromkeys(functions)
    waiting = [*found]
    for function in waiting:
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if not inspect.isfunction(value) or value in found:
                continue
            if value.__module__ == function.__module__:
                found[value] = None
                waiting.append(value)
    yield from found


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


@kept
def _prose(definition: Callable[..., object]) -> str:
    source = parsed(definition)
    if source is None:
        return getattr(definition, "__name__", "")
    named = (ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in source.nodes if isinstance(node, named)]
    words = [text for node in nodes for text in (node.name, ast.get_docstring(node) or "")]
    lines, _ = source_lines(definition)
    tokens = tokenize.generate_tokens(
        iter(textwrap.dedent("".join(lines)).splitlines(True)).__next__
    )
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*words, *comments])
