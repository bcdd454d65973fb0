"""The nodes of a run: the tensors that a recorded call was given, and its steps, with rules, axes and roles."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.observation import Source, Step, Summary
from heedful.shapes import times
from heedful.viewer.steps.attentions import FoundAttention, find_attentions
from heedful.viewer.steps.axes import (
    Axes,
    axes_of_elementwise,
    axes_of_input,
    axes_of_move,
    axes_of_parameter,
    axes_of_product,
    guessed_axes,
    is_torn,
)
from heedful.viewer.steps.node import Node
from heedful.viewer.steps.recording import Recording
from heedful.viewer.steps.rules import Rule, rule_of

CELLS = 128  # rows or columns of a map of means, at most
FEWEST_CELLS = 32  # and at least, if the value has that many

TORN = (
    "Tokens are torn: the axis that is as long as there are tokens does not count them. "
    "A view was used where a transpose is needed, or the other way round."
)

PARTS = ("left", "right", "bias", "of", "mask")


def nodes_of(recording: Recording, largest: int) -> tuple[list[Node], list[FoundAttention]]:
    """Return the nodes of a recording in order, each given tensor before the step that reads it first.

    Args:
        recording: The recording.
        largest: The number of entries of one value that a page has room for. A larger one is shown by means.
    """
    builder = _Builder(recording)
    for step in recording.trace:
        builder.add(step)
    nodes = builder.nodes
    attentions = find_attentions(nodes)
    for node in nodes:
        _reduce(node, largest)
    return nodes, attentions


class _Builder:
    def __init__(self, recording: Recording) -> None:
        self.nodes: list[Node] = []
        self._recording = recording
        self._given: dict[tuple[str, str], int] = {}
        self._steps: dict[int, int] = {}

    def add(self, step: Step) -> None:
        trace = self._recording.trace
        rule = rule_of(step, self._value, trace.steps)
        for source in (*step.inputs, *step.product):
            if source.step is None:
                self._give(source)
        resolved = None if rule is None else self._resolved(rule)
        value = step.value if isinstance(step.value, Tensor) else None
        node = Node(
            name=step.name,
            kind="step",
            operation=step.operation,
            shape=step.shape,
            value=value,
            axes=self._axes(step, resolved),
            rule=resolved,
            place=None if step.file is None or step.line is None else (step.file, step.line),
            module=step.module or "",
            unused=step.unused,
            # An intermediate result without a name is worth a card if it is a step of attention.
            shown="·" not in step.name or (rule is not None and rule["kind"] != "move"),
            source=" ".join(re.sub(r"\s#.*", "", step.source).split()),
            about=self._recording.descriptions.get(step.name, ""),
        )
        if resolved is not None and resolved["kind"] == "move":
            before = self.nodes[resolved["of"]]
            if is_torn(before.axes, node.axes, before.shape, node.shape):
                node.notes.append(TORN)
        if isinstance(step.value, Summary):
            _summarize(node, step.value)
        if step.beside and resolved is None and isinstance(step.arguments[0], Source):
            node.follows = self._position(step.arguments[0])
        if step.remark:
            node.notes.append(_as_sentence(step.remark))
        self._steps[step.index] = len(self.nodes)
        self.nodes.append(node)

    def _value(self, source: Source) -> Tensor | None:
        if source.step is not None:
            value = self._recording.trace[source.step].value
            return value if isinstance(value, Tensor) else None
        return self._recording.values.get((source.kind, source.name))

    def _give(self, source: Source) -> None:
        key = source.kind, source.name
        value = self._recording.values.get(key)
        if key in self._given or value is None or value.dim() == 0:
            return
        tokens = len(self._recording.labels)
        if source.kind == "input":
            axes = axes_of_input(
                source.name, value.shape, tokens, ids=not value.is_floating_point()
            )
        elif source.kind == "parameter":
            axes = axes_of_parameter(value.shape)
        else:
            axes = guessed_axes(value.shape, tokens)
        self._given[key] = len(self.nodes)
        node = Node(source.name, source.kind, "", tuple(value.shape), value, axes)
        node.shown = source.kind in ("input", "parameter")
        self.nodes.append(node)

    def _resolved(self, rule: Rule) -> Rule | None:
        """Return a rule with positions of nodes in place of sources; moves through hidden moves become one."""
        resolved = dict(rule)
        for name in PARTS:
            if isinstance(rule.get(name), Source):
                resolved[name] = self._position(rule[name])
        if "terms" in rule:
            resolved["terms"] = [self._position(source) for source in rule["terms"]]
        if None in _parts_of(resolved):
            return None
        if rule["kind"] == "move":
            before = self.nodes[resolved["of"]]
            if not before.shown and before.kind_of_rule == "move":
                assert before.rule is not None
                origin = before.rule["origin"].flatten()[rule["origin"].flatten()]
                resolved["origin"] = origin.reshape(rule["origin"].shape)
                resolved["of"] = before.rule["of"]
            elif not before.shown and _is_identity(resolved["origin"], before.shape):
                return None
        return resolved

    def _position(self, source: Source) -> int | None:
        if source.step is not None:
            return self._steps.get(source.step)
        return self._given.get((source.kind, source.name))

    def _axes(self, step: Step, rule: Rule | None) -> Axes:
        if rule is None:
            return self._guessed(step)
        if rule["kind"] == "product":
            left, right = (self.nodes[rule[side]] for side in ("left", "right"))
            linear = right.kind == "parameter"
            return axes_of_product(left.axes, right.axes, rule["letters"], linear=linear)
        before = self.nodes[_parts_of(rule)[0]]
        if rule["kind"] == "move":
            return axes_of_move(before.axes, before.shape, rule["origin"])
        if rule["kind"] == "reduce" and len(step.shape) < len(before.shape):
            return before.axes[: rule["axis"]] + before.axes[rule["axis"] + 1 :]
        operands = [self.nodes[part].axes for part in _parts_of(rule)]
        return axes_of_elementwise(operands, len(step.shape))

    def _guessed(self, step: Step) -> Axes:
        """Return the axes of an input of the same shape, or else a guess."""
        for source in step.inputs:
            position = self._position(source)
            if position is not None and self.nodes[position].shape == step.shape:
                return self.nodes[position].axes
        return guessed_axes(step.shape, len(self._recording.labels))


def _is_identity(origin: Tensor, shape: Sequence[int]) -> bool:
    return tuple(origin.shape) == tuple(shape) and bool(
        (origin.flatten() == torch.arange(origin.numel())).all()
    )


def _parts_of(rule: Rule) -> list[Any]:
    named = [
        rule[name] for name in PARTS if name in rule and not (name == "bias" and rule[name] is None)
    ]
    return [*named, *rule.get("terms", ())]


def _summarize(node: Node, summary: Summary) -> None:
    node.notes.append(str(summary))
    if summary.sample is not None:
        node.value = summary.sample
        node.axes = tuple("" for _ in node.axes)


def _as_sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text[:1].upper()}{text[1:]}."


def _reduce(node: Node, largest: int) -> None:
    """Make a value fit into a page: as real numbers, by means of blocks, or in part."""
    if node.value is None:
        return
    value = node.value.detach().cpu()
    if value.is_complex():
        value = value.abs()
        node.notes.append("The magnitude of complex numbers is shown.")
    if value.numel() > largest:
        value = _means(value, largest) if value.dim() >= 2 else value
        if value.numel() > largest:
            value = _first(value, largest)
        node.notes.append(_note_on(node.shape, tuple(value.shape)))
    node.value = value


def _first(value: Tensor, largest: int) -> Tensor:
    """Return the first entries along the leading axes, as many as there is room for."""
    for axis in range(max(value.dim() - 2, 1)):
        others = value.numel() // value.shape[axis]
        value = value.narrow(axis, 0, min(value.shape[axis], max(1, largest // others)))
    return value


def _note_on(shape: Sequence[int], shown: Sequence[int]) -> str:
    if len(shape) < 2:
        return f"The first {times(shown)} of {times(shape)} entries are shown."
    part = (
        ""
        if shown[:-2] == tuple(shape[:-2])
        else f"The first {times(shown[:-2])} of {times(shape[:-2])} matrices are shown. "
    )
    return f"{part}{times(shape[-2:])} entries by {times(shown[-2:])} cells, each the mean of its finite ones."


def _means(value: Tensor, largest: int) -> Tensor:
    """Return matrices of fewer cells: the means of the finite entries of blocks.

    A block without any is −∞, because its entries are usually masked. One with a NaN is NaN, which is usually a bug.
    """
    matrices = value.flatten(0, -3) if value.dim() > 2 else value.unsqueeze(0)
    side = max(FEWEST_CELLS, min(CELLS, math.isqrt(largest // max(len(matrices), 1))))
    height, width = (min(side, length) for length in value.shape[-2:])
    rows, columns = (
        torch.arange(length) * cells // length
        for length, cells in zip(value.shape[-2:], (height, width), strict=True)
    )
    blocks = (rows[:, None] * width + columns).flatten()
    flat = matrices.double().flatten(1)
    finite = flat.isfinite()

    def sums(entries: Tensor) -> Tensor:
        empty = torch.zeros(len(matrices), height * width, dtype=torch.float64)
        return empty.index_add_(1, blocks, entries)

    count = sums(finite.double())
    means = sums(torch.where(finite, flat, 0.0)) / count.clamp(min=1)
    means = torch.where(count == 0, -torch.inf, means)
    means = torch.where(sums(flat.isnan().double()) > 0, torch.nan, means)
    return means.reshape(*value.shape[:-2], height, width).float()
