"""A step of a recording, and the sources of what it reads."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

import torch
from torch import Tensor

from heedful import drawing
from heedful.observation.summary import Summary
from heedful.screen import visible
from heedful.shapes import times

SourceKind = Literal["step", "input", "parameter", "buffer", "attribute", "constant"]

MAPS: frozenset[str] = frozenset(
    {"scores", "scaled_scores", "capped_scores", "biased_scores", "mask", "masked_scores"}
    | {"weights", "dropped_weights"}
)
"""The roles of steps with one row for each query and one column for each key."""
MAX_LABEL: int = 24

STYLE: str = (
    drawing.STYLE
    + """
.heedful-steps { font: 13px/1.4 system-ui, sans-serif; color: inherit; }
.heedful-steps > details { margin: 0.1em 0; }
.heedful-steps > details > summary { cursor: pointer; }
.heedful-steps > details > :not(summary) { margin-left: 1.2em; }
.heedful-steps .facts { opacity: 0.75; }
.heedful-steps p { margin: 0.2em 0; }
"""
)
"""The CSS of steps. Include it once per page."""


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


@dataclass(frozen=True, eq=False, repr=False)
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
        labels: the texts of the tokens, if they were given to `Trace.with_labels`.
    """

    index: int
    operation: str
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Tensor | Summary
    file: str | None
    line: int | None
    source: str
    function: str
    module: str | None
    inputs: tuple[Source, ...]
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]
    in_place: bool
    call: int
    unused: bool
    role: str = ""
    beside: bool = False
    product: tuple[Source, ...] = ()
    remark: str = ""
    labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        place = f", {self.place}" if self.place else ""
        return f"Step({self.index}, {self.name!r}, {self.operation}, {times(self.shape)}{place})"

    def _repr_html_(self) -> str:
        """Return the step and a heat map of its value, for a notebook."""
        drawn = step_as_html(self, opened=True)
        return f'<style>{STYLE}</style><div class="heedful-steps">{drawn}</div>'

    @property
    def full_name(self) -> str:
        """The name behind the path of its module, such as "heads.1.weights"."""
        return f"{self.module}.{self.name}" if self.module else self.name

    @property
    def place(self) -> str:
        """The file's name and the line, such as "causal.py:12"; "" if there is none."""
        return "" if self.file is None else f"{PurePath(self.file).name}:{self.line}"

    @property
    def mark(self) -> str:
        """What is special about it, in a word: "beside", "unused" or nothing."""
        return "beside" if self.beside else "unused" if self.unused else ""


def step_as_html(step: Step, *, opened: bool = False, draw: bool = True) -> str:
    """Return a step as an element that the reader unfolds.

    Args:
        step: the step.
        opened: whether it is unfolded at first.
        draw: whether its value is drawn, too.
    """
    facts = " · ".join(filter(None, (step.operation, times(step.shape), step.place, step.mark)))
    remark = f"<p>{html.escape(step.remark)}</p>" if step.remark else ""
    return (
        f"<details{' open' if opened else ''}><summary><code>{html.escape(step.full_name)}</code> "
        f'<span class="facts">{html.escape(facts)}</span></summary>'
        f"<p><code>{html.escape(' '.join(step.source.split()))}</code></p>{remark}"
        f"{_value_as_html(step) if draw else ''}</details>"
    )


def cells_of(step: Step) -> int:
    """Return how many cells the drawing of a step has, about."""
    *leading, rows, columns = (1, 1, *step.shape)
    panels = min(torch.Size(leading).numel(), drawing.PICK_LIMIT)
    return panels * min(rows, drawing.PICTURE_LIMIT) * min(columns, drawing.PICTURE_LIMIT)


def _value_as_html(step: Step) -> str:
    if not isinstance(step.value, Tensor):
        sample = step.value.sample
        if sample is None:
            return f"<p>{html.escape(str(step.value))}</p>"
        return drawing.heat_map(_without_leading_ones(sample), caption=str(step.value), pick="head")
    value = _without_leading_ones(step.value)
    rows, columns = (1, 1, *value.shape)[-2:]
    is_map = step.role in MAPS
    texts = [_label(label) for label in step.labels]
    whole_row = value.dim() == 1
    return drawing.heat_map(
        value,
        row_labels=texts if rows == len(texts) and not whole_row else None,
        column_labels=texts if columns == len(texts) and (is_map or whole_row) else None,
        caption="One row for each query, one column for each key." if is_map else None,
        pick=_panel_name(step, value),
    )


def _without_leading_ones(value: Tensor) -> Tensor:
    while value.dim() > 2 and value.shape[0] == 1:
        value = value[0]
    return value


def _panel_name(step: Step, value: Tensor) -> str:
    """Return what the matrices of a value are."""
    if value.dim() > 3:
        return "sequence and head" if value.dim() == 4 else "part"
    return "head" if step.role in MAPS or step.role == "context" else "part"


def _label(text: str) -> str:
    text = text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
    return visible(text)
