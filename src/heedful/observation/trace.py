"""What a recording holds: steps, where their inputs came from, and the trace that lists them."""

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
from heedful.shapes import times

SourceKind = Literal["step", "input", "parameter", "buffer", "attribute", "constant"]

SAMPLES_PER_DIMENSION = 16
SAMPLED_LEADING = 4
DRAWN_STEPS = 100
SOURCE_WIDTH = 72


@dataclass(frozen=True)
class Source:
    """Where an input of a step came from.

    Attributes:
        kind: "step" (an earlier step's result), "input" (an argument of the recorded call),
            "parameter" or "buffer" (of a module), "attribute" (a tensor that a module holds
            without having registered it), "constant" (a global, a closure's variable, anything
            else that the recording did not see made).
        name: the step's, the argument's or the variable's name; a dotted path for what belongs to
            a module, such as "heads.0.W_query.weight".
        step: the index of the step, for the kind "step".
    """

    kind: SourceKind
    name: str
    step: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Summary:
    """What is kept of a tensor too large to keep.

    `minimum` and `maximum` are over all entries but NaN, `mean` and `std` over the finite ones; all
    are NaN where there is nothing to count. Of complex numbers they describe the magnitude.
    `sample` holds every `strides[i]`-th entry along dimension i. It is None, and the numbers are
    NaN, for tensors whose entries cannot be read: meta, sparse or nested ones, and those inside
    a function transform such as `torch.vmap`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    minimum: float = float("nan")
    maximum: float = float("nan")
    mean: float = float("nan")
    std: float = float("nan")
    nans: int = 0
    sample: Tensor | None = None
    strides: tuple[int, ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> Summary:
        """Summarise a strided tensor of any shape whose entries can be read."""
        numbers = tensor.abs() if tensor.is_complex() else tensor
        present = numbers[~numbers.isnan()]
        finite = present[present.isfinite()].double()
        strides = _sampling_strides(tensor.shape)
        return cls(
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            minimum=present.min().item() if present.numel() else float("nan"),
            maximum=present.max().item() if present.numel() else float("nan"),
            mean=finite.mean().item() if finite.numel() else float("nan"),
            std=finite.std(correction=0).item() if finite.numel() else float("nan"),
            nans=numbers.numel() - present.numel(),
            sample=tensor[tuple(slice(None, None, stride) for stride in strides)].clone(),
            strides=strides,
        )


def _sampling_strides(shape: torch.Size) -> tuple[int, ...]:
    """Strides that keep the sample small: the last two dimensions are what one looks at."""
    leading = max(len(shape) - 2, 0)
    limits = [1] * max(leading - 2, 0) + [SAMPLED_LEADING] * min(leading, 2)
    limits += [SAMPLES_PER_DIMENSION] * (len(shape) - leading)
    return tuple(max(-(-size // limit), 1) for size, limit in zip(shape, limits, strict=True))


@dataclass(frozen=True, eq=False)
class Step:
    """One result of one torch call.

    A call with several results makes several steps, which share `call`.

    Attributes:
        index: the position in the trace.
        operation: torch's name for the call: "softmax", "matmul", "masked_fill_".
        name: the variable that the source assigns the result to ("scores"; "output" for what is
            returned). An intermediate result within that line is called "scores·matmul"; what no
            variable receives has the operation's name.
        shape, dtype: of the result.
        value: a copy of the result, or a `Summary` of it where the limits did not allow a copy.
        file, line: the line in the caller's own code; None where there is none.
        source: the text of its statement, "" where the source cannot be read.
        function: the qualified name of the function around that line.
        module: the path of the module whose method that line belongs to: "" for the outermost,
            "heads.0" for one within, None outside modules.
        inputs: where the call's tensors came from.
        arguments, keywords: what the call was given, with a `Source` in place of every tensor.
        in_place: whether the call wrote into a tensor that existed before.
        call: the index of the call's first step.
        unused: whether nothing used the result: no later call read it, it was not returned, and
            nobody held on to it when the callable was done. What an in-place call wrote counts as
            used as soon as its tensor, or a view of the same memory, does. Two things cannot be
            seen and look unused: a result that only TorchScript or another thread reads.
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


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The steps of one recorded call, in order. `print(trace)` shows them as a table.

    Attributes:
        steps: the steps, of which there are at most as many as the recording was allowed.
        result: what the callable returned, the very object.
        dropped_steps: how many further steps there were once that limit was reached.
    """

    steps: tuple[Step, ...]
    result: object
    dropped_steps: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __contains__(self, name: object) -> bool:
        return any(step.name == name for step in self.steps)

    def __getitem__(self, key: str | int) -> Step:
        """The last step of a name, or the step at an index.

        Raises:
            KeyError: no step has the name; the text lists close ones.
            IndexError: there are fewer steps.
        """
        if isinstance(key, int):
            return self.steps[key]
        found = self.all(key)
        if not found:
            close = difflib.get_close_matches(key, self.names, n=5, cutoff=0.4) or self.names[:20]
            raise KeyError(f"no step is called {key!r}; there are: {', '.join(close) or 'none'}")
        return found[-1]

    def all(self, name: str) -> tuple[Step, ...]:
        """Every step of a name, in order; empty if there is none."""
        return tuple(step for step in self.steps if step.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps, each once, in order of first appearance."""
        return tuple(dict.fromkeys(step.name for step in self.steps))

    @property
    def limits_reached(self) -> tuple[str, ...]:
        """Sentences that say what the recording's limits left out; empty if nothing."""
        summaries = sum(
            isinstance(step.value, Summary) and step.value.sample is not None for step in self.steps
        )
        said = []
        if summaries:
            said.append(
                f"{summaries} of {len(self)} values are kept as summaries: raise record's `largest` "
                "(elements of one value) or `memory` (bytes of all) to keep more."
            )
        if self.dropped_steps:
            said.append(
                f"{self.dropped_steps} further steps were dropped: raise record's `steps`, "
                f"now {len(self)}, to keep them."
            )
        return tuple(said)

    def __repr__(self) -> str:
        dropped = f", {self.dropped_steps} dropped" if self.dropped_steps else ""
        return f"Trace({len(self)} steps{dropped}: {', '.join(self.names[:12])})"

    def __str__(self) -> str:
        header = ("#", "name", "operation", "shape", "", "line", "source")
        rows = [header, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *self.limits_reached])

    def _rows(self) -> list[tuple[str, ...]]:
        several_files = len({step.file for step in self.steps}) > 1
        return [
            (
                str(step.index),
                step.name,
                step.operation,
                times(step.shape),
                "unused" if step.unused else "",
                _where(step, several_files),
                _shortened(step.source),
            )
            for step in self.steps
        ]

    def _repr_html_(self) -> str:
        """Every step with a heat map of its value, for a notebook."""
        drawn = [_step_as_html(step) for step in self.steps[:DRAWN_STEPS]]
        notes = list(self.limits_reached)
        if len(self) > DRAWN_STEPS:
            notes.append(f"The first {DRAWN_STEPS} of {len(self)} steps are drawn.")
        paragraphs = [f"<p>{html.escape(note)}</p>" for note in notes]
        return f"<style>{drawing.STYLE}</style><div>{''.join(drawn)}{''.join(paragraphs)}</div>"


def _where(step: Step, several_files: bool) -> str:
    if step.file is None:
        return ""
    return f"{PurePath(step.file).name}:{step.line}" if several_files else str(step.line)


def _shortened(source: str) -> str:
    text = " ".join(source.split())
    return text if len(text) <= SOURCE_WIDTH else text[: SOURCE_WIDTH - 1] + "…"


def _step_as_html(step: Step) -> str:
    facts = [step.operation, times(step.shape)]
    if step.file is not None:
        facts.append(_where(step, several_files=True))
    if step.unused:
        facts.append("used by nothing")
    return (
        f"<section><h4>{html.escape(step.name)}</h4>"
        f"<p>{html.escape(' · '.join(facts))}<br><code>{html.escape(step.source)}</code></p>"
        f"{_value_as_html(step.value)}</section>"
    )


def _value_as_html(value: Tensor | Summary) -> str:
    if isinstance(value, Tensor):
        return drawing.heat_map(value)
    if value.sample is None:
        return "<p>The entries of this tensor cannot be read.</p>"
    caption = (
        f"A sample of {times(value.shape)} entries, every {times(value.strides)}th; all lie "
        f"from {value.minimum:.4g} to {value.maximum:.4g}, mean {value.mean:.4g}, "
        f"standard deviation {value.std:.4g}, {value.nans} NaN"
    )
    return drawing.heat_map(value.sample, caption=caption)
