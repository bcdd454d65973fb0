"""The result of a recording: its steps, the sources of their inputs, and the trace that contains them."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

import torch
from torch import Tensor

from heedful import drawing
from heedful.observation.summary import Summary
from heedful.screen import aligned
from heedful.shapes import times

SourceKind = Literal["step", "input", "parameter", "buffer", "attribute", "constant"]

MAX_DRAWN_STEPS: int = 100
MAX_SOURCE_WIDTH: int = 72
MAX_REMARKS: int = 4


@dataclass(frozen=True)
class Source:
    """The origin of a tensor that a step reads.

    Attributes:
        kind: "step" for the result of an earlier step, "input" for an argument of the recorded call, "parameter" or
            "buffer" of a module, "attribute" for a tensor that a module holds without having registered it,
            "constant" for a global, a closure variable, or any other tensor whose creation was not recorded.
        name: the name of the step, argument or variable. A tensor that belongs to a module has a dotted path, such as
            "heads.0.W_query.weight".
        step: the index of the step if the kind is "step".
    """

    kind: SourceKind
    name: str
    step: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Step:
    """One result of one torch call.

    A call with several results makes several steps with the same `call`.

    Attributes:
        index: the position in the trace.
        operation: torch's name for the call, such as "softmax", "matmul" or "masked_fill_".
        name: the variable that the source line assigns the result to, or "output" if the callable returns it. An
            intermediate result within that line is named like "scores·matmul". A result that no variable receives has
            the name of its operation.
        shape, dtype: the shape and dtype of the result.
        value: a copy of the result, or a `Summary` of it if the limits of the recording did not allow a copy.
        file, line: the line in the user's code; None if there is none.
        source: the text of the statement; "" if the source cannot be read.
        function: the qualified name of the function that contains the line.
        module: the path of the module whose method contains the line: "" for the outermost module, "heads.0" for a
            submodule, None outside modules.
        inputs: the origins of the tensors that the call read.
        arguments, keywords: the arguments of the call, with a `Source` in place of every tensor.
        in_place: whether the call wrote into an existing tensor.
        call: the index of the first step of the same call.
        unused: whether the result was never used: no later call read it, it was not returned, and nothing held it
            when the callable returned. The result of an in-place call counts as used if its tensor, or a view of the
            same memory, is used. A result that only TorchScript or another thread reads looks unused.
        role: what it is in an attention: "scores", "scaled_scores", "mask", "masked_scores", "weights",
            "dropped_weights" or "context"; "" if it is none of these.
        beside: whether the callable never computed it: it is a step of an attention that a single call computes, and
            the reference computed it beside that call.
        product: the sources of the weights and values whose product the result is, if the call computes a whole
            attention; else empty.
        remark: what else is to be known about the value, as a sentence.
    """

    index: int
    operation: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Tensor | Summary = field(repr=False)
    file: str | None
    line: int | None
    source: str
    function: str
    module: str | None
    inputs: tuple[Source, ...]
    arguments: tuple[object, ...] = field(repr=False)
    keywords: Mapping[str, object] = field(repr=False)
    in_place: bool
    call: int
    unused: bool
    role: str = ""
    beside: bool = False
    product: tuple[Source, ...] = ()
    remark: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The steps of one recorded call, in order. `print(trace)` shows them as a table.

    Attributes:
        steps: the steps that the recording kept.
        result: the object that the callable returned.
        dropped_steps: the number of further steps that were dropped because the limit was reached.

    Examples:
        >>> import torch
        >>> from heedful import record
        >>> from heedful.textbook.simplified import attend
        >>> trace = record(attend, torch.zeros(2, 3))
        >>> trace
        Trace(4 steps: scores·mT, scores, weights, context)
        >>> trace["weights"].shape
        (2, 2)
        >>> [source.name for source in trace["context"].inputs]
        ['weights', 'tokens']
    """

    steps: tuple[Step, ...]
    result: object
    dropped_steps: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.all(name))

    def __getitem__(self, key: str | int) -> Step:
        """Return the last step with a name or a role, or the step at an index.

        A name repeats if a line runs several times, in several modules or in a loop: `all` returns all of them, and
        the module's path before the name chooses one, as in ``trace["heads.1.weights"]``. If no variable has the name,
        the steps of attention with that role are found: ``trace["weights"]``, whatever its variable is called.

        Args:
            key: a name, a module's path and a name, a role, or an index.

        Returns:
            The step.

        Raises:
            KeyError: no step has the name or role. The message lists similar ones.
            IndexError: the index is out of range.
        """
        if isinstance(key, int):
            return self.steps[key]
        steps = self.all(key)
        if not steps:
            known = dict.fromkeys((*self.names, *(step.role for step in self.steps if step.role)))
            close = difflib.get_close_matches(key, known, n=5, cutoff=0.4) or [*known][:20]
            raise KeyError(f"no step is called {key!r}; there are: {', '.join(close) or 'none'}")
        return steps[-1]

    def all(self, name: str) -> tuple[Step, ...]:
        """Return every step with a name or, if there is none, with a role.

        Args:
            name: the name, also behind its module's path, as in "heads.1.weights"; or the role.

        Returns:
            The steps in order, or an empty tuple.
        """
        for names_of in (_names_of, _roles_of):
            found = tuple(step for step in self.steps if name in names_of(step))
            if found:
                return found
        return ()

    @property
    def names(self) -> tuple[str, ...]:
        """The distinct names of the steps, in order of first appearance."""
        return tuple(dict.fromkeys(step.name for step in self.steps))

    @property
    def limits_reached(self) -> tuple[str, ...]:
        """Sentences about what the limits of the recording left out; empty if they left out nothing."""
        summaries = sum(
            isinstance(step.value, Summary) and step.value.sample is not None for step in self.steps
        )
        sentences = []
        if summaries:
            sentences.append(
                f"{summaries} of {len(self)} values are kept as summaries: raise record's `largest` "
                "(elements of one value) or `memory` (bytes of all) to keep more."
            )
        if self.dropped_steps:
            sentences.append(
                f"{self.dropped_steps} further steps were dropped: raise record's `steps`, "
                f"now {len(self)}, to keep them."
            )
        return tuple(sentences)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about attentions that were computed beside the calls that compute them; empty if there are none."""
        if not any(step.beside for step in self.steps):
            return ()
        calls = [step for step in self.steps if step.product]
        more = [f"… and {len(calls) - MAX_REMARKS} more (Step.remark)"] * (len(calls) > MAX_REMARKS)
        return (
            'Steps marked "beside" were computed by the reference, beside a call that computes a whole attention.',
            *(f"{_full_name(step)}: {step.remark}" for step in calls[:MAX_REMARKS]),
            *more,
        )

    def __repr__(self) -> str:
        dropped = f", {self.dropped_steps} dropped" if self.dropped_steps else ""
        return f"Trace({len(self)} steps{dropped}: {', '.join(self.names[:12])})"

    def __str__(self) -> str:
        header = ("#", "name", "operation", "shape", "", "line", "source")
        return "\n".join([aligned([header, *self._rows()]), *self.remarks, *self.limits_reached])

    def _rows(self) -> list[tuple[str, ...]]:
        show_file = len({step.file for step in self.steps}) > 1
        return [
            (
                str(step.index),
                step.name,
                step.operation,
                times(step.shape),
                "beside" if step.beside else "unused" if step.unused else "",
                _line(step, show_file=show_file),
                _shorten(step.source),
            )
            for step in self.steps
        ]

    def _repr_html_(self) -> str:
        """Return an HTML page with a heat map of every step's value, for a notebook."""
        drawn = [_step_as_html(step) for step in self.steps[:MAX_DRAWN_STEPS]]
        notes = list(self.limits_reached)
        if len(self) > MAX_DRAWN_STEPS:
            notes.append(f"The first {MAX_DRAWN_STEPS} of {len(self)} steps are drawn.")
        paragraphs = [f"<p>{html.escape(note)}</p>" for note in notes]
        return f"<style>{drawing.STYLE}</style><div>{''.join(drawn)}{''.join(paragraphs)}</div>"


def _full_name(step: Step) -> str:
    return f"{step.module}.{step.name}" if step.module else step.name


def _names_of(step: Step) -> tuple[str, str]:
    return step.name, _full_name(step)


def _roles_of(step: Step) -> tuple[str, ...]:
    return (step.role, f"{step.module}.{step.role}") if step.role else ()


def _line(step: Step, *, show_file: bool) -> str:
    if step.file is None:
        return ""
    return f"{PurePath(step.file).name}:{step.line}" if show_file else str(step.line)


def _shorten(source: str) -> str:
    text = " ".join(source.split())
    return text if len(text) <= MAX_SOURCE_WIDTH else text[: MAX_SOURCE_WIDTH - 1] + "…"


def _step_as_html(step: Step) -> str:
    facts = [step.operation, times(step.shape)]
    if step.file is not None:
        facts.append(_line(step, show_file=True))
    if step.unused:
        facts.append("unused")
    return (
        f"<section><h4>{html.escape(step.name)}</h4>"
        f"<p>{html.escape(' · '.join(facts))}<br><code>{html.escape(step.source)}</code></p>"
        f"{_value_as_html(step.value)}</section>"
    )


def _value_as_html(value: Tensor | Summary) -> str:
    if isinstance(value, Tensor):
        return drawing.heat_map(value)
    if value.sample is None:
        return f"<p>{html.escape(str(value))}</p>"
    return drawing.heat_map(value.sample, caption=str(value))
