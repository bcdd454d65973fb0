"""A node of a run: a tensor that a recorded call was given, or one that a step made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from heedful.viewer.steps.axes import Axes
from heedful.viewer.steps.rules import Rule


@dataclass(eq=False)
class Node:
    """A tensor of a run; the fields are those of `Node` in viewer/src/data.ts.

    A step of a fused attention that has no rule follows the node that it changes, such as a soft-cap the scores.
    """

    name: str
    kind: str
    operation: str
    shape: tuple[int, ...]
    value: Tensor | None
    axes: Axes
    rule: Rule | None = None
    role: str | None = None
    place: tuple[str, int] | None = None
    module: str = ""
    about: str = ""
    source: str = ""
    notes: list[str] = field(default_factory=list)
    unused: bool = False
    shown: bool = True
    follows: int | None = None

    @property
    def kind_of_rule(self) -> str:
        return "" if self.rule is None else self.rule["kind"]

    @property
    def parts(self) -> dict[str, Any]:
        """The rule, whose parts are positions of nodes."""
        return self.rule or {}
