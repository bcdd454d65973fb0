"""The result of a recording: the trace of its steps."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePath

from heedful.observation.step import STYLE, Step, cells_of, step_as_html
from heedful.observation.summary import Summary
from heedful.screen import aligned
from heedful.shapes import times

MAX_LISTED_STEPS: int = 300  # in a notebook
MAX_DRAWN_CELLS: int = 1 << 15  # of all heat maps together, which take some megabytes
MAX_SOURCE_WIDTH: int = 72
MAX_REMARKS: int = 4
MAX_OPEN: int = 2  # maps of weights that are unfolded in a notebook
MAX_UNGROUPED: int = 40  # steps, beyond which those of a module are folded


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The steps of one recorded call, in order. `print(trace)` shows them as a table.

    Attributes:
        steps: the steps that the recording kept.
        result: the object that the callable returned.
        dropped_steps: the number of further steps that were dropped because the limit was reached.
        labels: the texts of the tokens, if they were given to `with_labels`.

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
    labels: tuple[str, ...] = ()

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
            *(f"{step.full_name}: {step.remark}" for step in calls[:MAX_REMARKS]),
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
                step.mark,
                _line(step, show_file=show_file),
                _shorten(step.source),
            )
            for step in self.steps
        ]

    def with_labels(self, labels: Sequence[str]) -> Trace:
        """Return the trace with a text for each token, which notebooks and pages write beside rows and columns.

        Args:
            labels: one text for each token.
        """
        texts = tuple(map(str, labels))
        steps = tuple(replace(step, labels=texts) for step in self.steps)
        return replace(self, steps=steps, labels=texts)

    def _repr_html_(self) -> str:
        """Return every step, folded, and the weights of each attention open, for a notebook."""
        weights = [step for step in self.steps if step.role == "weights"]
        drawn = self._drawn_in_notebook(weights)
        opened = weights[:MAX_OPEN]
        listed = ""
        for module, steps in groupby(self.steps[:MAX_LISTED_STEPS], lambda step: step.module):
            elements = [
                step_as_html(step, opened=step in opened, draw=step.index in drawn)
                for step in steps
            ]
            is_folded = len(self) > MAX_UNGROUPED and len(elements) > 1
            listed += _folded(module, elements) if is_folded else "".join(elements)
        notes = [*self.remarks, *self.limits_reached]
        if len(drawn) < len(self):
            notes.append(
                f"{len(self) - len(drawn)} of {len(self)} values are not drawn here: trace[index] is."
            )
        if len(self) > MAX_LISTED_STEPS:
            notes.append(f"The first {MAX_LISTED_STEPS} of {len(self)} steps are listed.")
        paragraphs = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        return f'<style>{STYLE}</style><div class="heedful-steps">{listed}{paragraphs}</div>'

    def _drawn_in_notebook(self, first: Sequence[Step]) -> set[int]:
        """Return the indices of the steps that there is room to draw, some of them first."""
        drawn: set[int] = set()
        room = MAX_DRAWN_CELLS
        for step in (*first, *self.steps):
            if step.index not in drawn and cells_of(step) <= room:
                drawn.add(step.index)
                room -= cells_of(step)
        return drawn


def _folded(module: str | None, elements: Sequence[str]) -> str:
    name = html.escape(module or "outside")
    return (
        f'<details><summary><b>{name}</b> <span class="facts">{len(elements)} steps</span></summary>'
        f'<div class="heedful-steps">{"".join(elements)}</div></details>'
    )


def _names_of(step: Step) -> tuple[str, str]:
    return step.name, step.full_name


def _roles_of(step: Step) -> tuple[str, ...]:
    return (step.role, f"{step.module}.{step.role}") if step.role else ()


def _line(step: Step, *, show_file: bool) -> str:
    if step.file is None:
        return ""
    return f"{PurePath(step.file).name}:{step.line}" if show_file else str(step.line)


def _shorten(source: str) -> str:
    text = " ".join(source.split())
    return text if len(text) <= MAX_SOURCE_WIDTH else text[: MAX_SOURCE_WIDTH - 1] + "…"
