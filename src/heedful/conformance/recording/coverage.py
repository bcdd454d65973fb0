"""Which lines of a target ran, which branches never did, and which arguments were never given."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from heedful.conformance.recording.source import SourceLine, parsed_file

COMPOUND = (
    *(ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match),
    *(ast.AsyncFor, ast.AsyncWith),
)


@dataclass(frozen=True)
class MissedLines:
    """Lines of a target that no probe ran.

    Attributes:
        place: The first of the lines.
        last: The number of the last line.
        branch: The branch that was never taken, such as "if mask is not None", or the line that the lines follow.
        remedy: How to make them run; "" if nothing is known.
    """

    place: SourceLine
    last: int
    branch: str
    remedy: str = ""


@dataclass(frozen=True)
class Coverage:
    """What of a target the probes ran. Lines that only raise an error do not count.

    Attributes:
        file: The target's file.
        lines_run: The numbers of the lines in it that ran.
        lines: The number of statements of the target's forward and of the functions in its file that it calls.
        ran: The number of those that ran.
        missed: The others.
        never_given: The optional arguments that no call gave another value than their default.
    """

    file: str
    lines_run: tuple[int, ...]
    lines: int
    ran: int
    missed: tuple[MissedLines, ...] = ()
    never_given: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if every line ran and every argument was given."""
        return not (self.missed or self.never_given)

    def together_with(self, other: Coverage) -> Coverage:
        """Return what was run by the probes of either of two checks of the same file."""
        remedies = {it.place.line: it.remedy for it in (*other.missed, *self.missed)}
        return coverage_of(
            self.file,
            {*self.lines_run, *other.lines_run},
            tuple(name for name in self.never_given if name in other.never_given),
            lambda block, test: remedies.get(block[0].lineno, ""),
        )


def coverage_of(
    file: str,
    ran: Set[int],
    never_given: tuple[str, ...],
    remedy: Callable[[Sequence[ast.stmt], ast.expr | None], str],
) -> Coverage:
    """Return the coverage of the functions of a file that ran.

    Args:
        file: The file.
        ran: The numbers of the lines that ran.
        never_given: The arguments that were never given.
        remedy: A function of a block that did not run, and of the test that decides about it.
    """
    source, search = parsed_file(file), _Search(ran)
    for function in () if source is None else source.nodes:
        if isinstance(function, ast.FunctionDef) and function.name != "__init__":
            search.visit_function(function)
    missed = tuple(
        MissedLines(
            SourceLine.at(file, block[0].lineno),
            block[-1].end_lineno or block[-1].lineno,
            branch,
            remedy(block, test),
        )
        for block, branch, test in sorted(search.missed, key=lambda it: it[0][0].lineno)
    )
    return Coverage(file, tuple(sorted(ran)), search.lines, search.lines_ran, missed, never_given)


@dataclass(eq=False)
class _Search:
    """The blocks of a function that did not run, each with the branch that leads to it and the test of that branch."""

    ran: Set[int]
    lines: int = 0
    lines_ran: int = 0
    missed: list[tuple[Sequence[ast.stmt], str, ast.expr | None]] = field(default_factory=list)

    def visit_function(self, function: ast.FunctionDef) -> None:
        """Count the statements of a function, if it ran."""
        if any(self._has_run(statement) for statement in function.body):
            self.visit(function.body, "")

    def visit(self, block: Sequence[ast.stmt], branch: str, test: ast.expr | None = None) -> None:
        """Count the statements of a block whose branch is given, and add the part of it that did not run."""
        block = [statement for statement in block if not _is_empty(statement)]
        for index, statement in enumerate(block):
            if not self._has_run(statement):
                before = block[index - 1] if index else None
                if before is not None:
                    branch = f"what follows line {before.lineno}, {_header(before)}"
                    test = before.test if isinstance(before, ast.If) else None
                if not isinstance(block[-1], ast.Raise):
                    self.lines += sum(_count(statement) for statement in block[index:])
                    self.missed.append((block[index:], branch, test))
                return
            self.lines += 1
            self.lines_ran += 1
            for inner, name, deciding in _blocks(statement):
                self.visit(inner, name, deciding)

    def _has_run(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Try):
            return self._has_run(statement.body[0])
        last = statement.end_lineno or 0
        if isinstance(statement, COMPOUND):
            last = _blocks(statement)[0][0][0].lineno - 1
        elif isinstance(
            statement, ast.FunctionDef | ast.ClassDef
        ):  # whose lines within run when it is called
            last = statement.body[0].lineno - 1
        last = max(statement.lineno, last)
        return any(line in self.ran for line in range(statement.lineno, last + 1))


def _blocks(statement: ast.stmt) -> list[tuple[Sequence[ast.stmt], str, ast.expr | None]]:
    """Return the blocks within a statement, each with its branch and the test that decides about it."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            name = f"if {ast.unparse(test)}"
            blocks = [(body, name, test), (orelse, f"else of {name}", test)]
        case ast.Match(cases=cases):
            blocks = [(it.body, f"case {ast.unparse(it.pattern)}", None) for it in cases]
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
            blocks = [(body, "try", None), *((it.body, "except", None) for it in handlers)]
            blocks += [(orelse, "else of try", None), (finalbody, "finally", None)]
        case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
            blocks = [(body, _header(statement), None), (orelse, "else of the loop", None)]
        case ast.With(body=body):
            blocks = [(body, _header(statement), None)]
        case _:
            return []
    return [block for block in blocks if block[0]]


def _header(statement: ast.stmt) -> str:
    return ast.unparse(statement).partition("\n")[0].rstrip(":")


def _count(statement: ast.stmt) -> int:
    """Return the number of statements in a statement, its own included."""
    return 1 + sum(_count(it) for block, _, _ in _blocks(statement) for it in block)


def _is_empty(statement: ast.stmt) -> bool:
    """Check for statements that do nothing: a docstring, `pass`, and names declared global."""
    match statement:
        case ast.Pass() | ast.Global() | ast.Nonlocal() | ast.Expr(value=ast.Constant()):
            return True
        case ast.AnnAssign(value=None):
            return True
    return False
