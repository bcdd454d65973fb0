"""What recordings and code tell of the form of a mask: whether it is read as 1 and 0, or as a list, and its axes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.dataflow import DIFFERENCES, VIEWS
from heedful.conformance.recording.source import names_in, nodes_of

TRUTHS = ("eq", "ne", "logical_not", "invert", "bool", "masked_fill", "masked_fill_")


def is_read_as_truth(caller: Caller, arguments: Mapping[str, Any], name: str) -> bool:
    """Check whether code takes 1 and 0 from a mask, as `1 - mask` and `mask == 0` do, so that it is not added as such.

    Added numbers that hide everything may hide it there as well, even where 1 and 0 do not.

    Args:
        caller: How the target is called.
        arguments: Those of a call with the mask.
        name: The argument for the mask.
    """
    with torch.no_grad(), caller.isolated():
        trace = caller.trace(arguments)
    same: set[int] = set()
    for step in trace:
        reads = any(it.name == name and it.kind == "input" for it in step.inputs)
        if not reads and not any(it.step in same for it in step.inputs):
            continue
        if step.operation in TRUTHS or (step.operation in DIFFERENCES and 1 in step.arguments):
            return True
        if step.operation in VIEWS:
            same.add(step.index)
    return False


def is_read_as_list(target: Target, name: str) -> bool:
    """Check whether a target's own code asks for the number of an argument's entries, and takes them one by one."""
    counted = listed = False
    for node in nodes_of(target.forward):
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=given)]) if given == name:
                counted = True
            case ast.For(iter=ast.Name(id=given)) if given == name:
                listed = True
            case ast.For(iter=ast.Call(func=ast.Name(id="enumerate" | "zip"), args=[*given])) if (
                name in names_in(given)
            ):
                listed = True
    return counted and listed


def axes_of_scores(caller: Caller, arguments: Mapping[str, Any]) -> int:
    """Return the largest number of axes of what a softmax makes in a call; 0 if the call fails, or has none."""
    with torch.no_grad(), caller.isolated():
        trace = attempt(lambda: caller.trace(arguments))
    steps = () if isinstance(trace, Exception) else trace
    return max((len(step.shape) for step in steps if "softmax" in step.operation), default=0)
