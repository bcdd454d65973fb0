"""Ways through a trace: from an operand back to the projection it came from, and on from a context to the next one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from heedful.conformance.recording.inputs import Observation
from heedful.observation import Source, Step

PRODUCTS = ("matmul", "bmm", "mm", "einsum", "baddbmm", "addbmm")
# What mixes features by trained weights ends the search for the scores that a context was made with.
PROJECTIONS = ("linear", "embedding", "layer_norm", "rms_norm", "addmm", "conv1d")
VIEWS = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "movedim", "swapaxes"),
        *(
            "contiguous",
            "squeeze",
            "unsqueeze",
            "T",
            "mT",
            "clone",
            "to",
            "float",
            "double",
            "type_as",
        ),
        *("rearrange", "cat", "concat", "stack", "getitem", "chunk", "split", "unbind", "expand"),
        *("swapdims", "narrow", "select", "view_as", "expand_as", "unsafe_chunk", "tensor_split"),
    }
)


def is_projection(step: Step) -> bool:
    """Whether a step mixes features by trained weights."""
    multiplied = step.operation in PRODUCTS
    return step.operation in PROJECTIONS or (
        multiplied and any(it.kind == "parameter" for it in step.inputs)
    )


def steps_from_tokens(steps: Sequence[Step]) -> set[int]:
    """The indices of the steps whose results depend on what was put in."""
    alive: set[int] = set()
    for step in steps:
        if any(it.kind == "input" or it.step in alive for it in step.inputs):
            alive.add(step.index)
    return alive


def steps_from_projection(observation: Observation, source: Source) -> list[Step]:
    """The steps from an operand back to the projection that made it, which is the first; in order of the trace.

    Where tokens come in unprojected, the way begins at the first step made from them.
    """
    steps = observation.trace.steps
    alive = steps_from_tokens(steps)
    found: set[int] = set()
    todo = [] if source.step is None else [source.step]
    while todo:
        index = todo.pop()
        if index in found or index not in alive:
            continue
        found.add(index)
        if not is_projection(steps[index]):
            todo += [it.step for it in steps[index].inputs if it.step is not None]
    return [steps[index] for index in sorted(found)]


def steps_to_next_projection(observation: Observation, start: Step) -> list[Step]:
    """The steps that only rearrange a result, up to the next projection, in order; the start is the first."""
    found = {start.index}
    for step in observation.trace.steps[start.index + 1 :]:
        made_of = {it.step for it in step.inputs} & found
        if made_of and step.operation in VIEWS and not is_projection(step):
            found.add(step.index)
    return [observation.trace.steps[index] for index in sorted(found)]


def parameter_names(way: list[Step]) -> list[str]:
    """The names of the parameters that a way back began with."""
    return [it.name for step in way for it in step.inputs if it.kind == "parameter"]


def tensor_of(step: Step) -> Tensor | None:
    """A step's value, if it was kept whole."""
    return step.value if isinstance(step.value, Tensor) else None
