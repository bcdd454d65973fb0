"""Dataflow in a trace: which steps a result was computed from, and which steps read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.observation import Source, Step

PRODUCTS: tuple[str, ...] = ("matmul", "bmm", "mm", "einsum", "baddbmm", "addbmm")
CONVOLUTIONS: tuple[str, ...] = ("conv1d", "conv2d", "conv3d")
RECURRENT: tuple[str, ...] = ("lstm", "gru", "rnn_tanh", "rnn_relu")
CELLS: tuple[str, ...] = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
NORMS: tuple[str, ...] = ("normalize", "layer_norm", "rms_norm", "group_norm", "instance_norm")
PROJECTIONS: tuple[str, ...] = (
    *("linear", "embedding", "layer_norm", "rms_norm", "addmm", *CONVOLUTIONS, *CELLS),
)
"""Operations that mix features with trained weights. They end the search for the scores behind a context."""

VIEWS: frozenset[str] = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "movedim", "swapaxes"),
        *("contiguous", "squeeze", "unsqueeze", "T", "mT", "clone", "to", "float", "double"),
        *("rearrange", "cat", "concat", "stack", "getitem", "chunk", "split", "unbind", "expand"),
        *("swapdims", "narrow", "select", "view_as", "expand_as", "unsafe_chunk", "tensor_split"),
        "type_as",
    }
)
"""Operations that rearrange or copy entries without computing new ones."""
SPLITTING: frozenset[str] = frozenset({"view", "reshape", "unflatten"})
JOINING: frozenset[str] = frozenset({"cat", "concat", "stack"})

MULTIPLICATIONS: tuple[str, ...] = ("mul", "mul_", "imul", "multiply")
DIVISIONS: tuple[str, ...] = ("div", "div_", "truediv", "true_divide", "itruediv")
DIFFERENCES: tuple[str, ...] = ("sub", "rsub", "sub_", "isub")
SCALINGS: tuple[str, ...] = (*MULTIPLICATIONS, *DIVISIONS)
EXPONENTIALS: tuple[str, ...] = ("exp", "exp_", "exp2")
SOFTMAXES: tuple[str, ...] = ("softmax", "_safe_softmax", "_softmax", "softmin")
FILLS: tuple[str, ...] = ("masked_fill", "masked_fill_")

TEMPLATED: frozenset[str] = frozenset({"view_as", "expand_as", "type_as", "to"})
"""The rearrangements that take only a shape or a dtype from their second operand."""

CHOICES: frozenset[str] = frozenset({"argmax", "one_hot", "scatter", "scatter_", "round", "sign"})
"""Operations whose results jump, so that their own derivative is 0."""

LOOKUPS: tuple[str, ...] = ("embedding", "getitem", "index_select", "gather", "take")
"""Operations that read entries at the places that integers tell."""


def is_projection(step: Step) -> bool:
    """Check whether a step mixes features with trained weights."""
    if step.operation in PROJECTIONS:
        return True
    return step.operation in PRODUCTS and any(source.kind == "parameter" for source in step.inputs)


def feature_sizes(steps: Sequence[Step]) -> set[int]:
    """Return the numbers of features that linear projections return, and of the parts that these are split into."""
    projected: set[int] = set()
    sizes: set[int] = set()
    for step in steps:
        is_linear = is_projection(step) and step.operation not in CONVOLUTIONS
        is_part = step.operation in VIEWS and not projected.isdisjoint(_input_steps(step))
        if is_linear or is_part:
            projected.add(step.index)
        if step.shape and (is_linear or (is_part and step.operation in SPLITTING)):
            sizes.add(step.shape[-1])
    return sizes


def steps_from_tokens(steps: Sequence[Step]) -> set[int]:
    """Return the indices of the steps whose results depend on the inputs of the run."""
    dependent: set[int] = set()
    for step in steps:
        if any(source.kind == "input" or source.step in dependent for source in read_by(step)):
            dependent.add(step.index)
    return dependent


def steps_from_argument(steps: Sequence[Step], name: str) -> set[int]:
    """Return the indices of the steps whose results depend on an argument of the run, or on one of its keywords."""
    dependent: set[int] = set()
    known = name, f"kwargs[{name!r}]"
    for step in steps:
        given = any(source.kind == "input" and source.name in known for source in read_by(step))
        if given or any(source.step in dependent for source in read_by(step)):
            dependent.add(step.index)
    return dependent


def read_by(step: Step) -> Sequence[Source]:
    """Return the sources whose entries a step reads, without templates for the shape or dtype of its result."""
    if step.operation.endswith("_like") or step.operation.startswith("new_"):
        return ()
    return step.inputs[:1] if step.operation in TEMPLATED else step.inputs


def is_layer(step: Step) -> bool:
    """Check whether a step reads parameters, and is no norm."""
    return step.operation not in NORMS and any(it.kind == "parameter" for it in step.inputs)


def behind_views(steps: Sequence[Step], source: Source) -> Source:
    """Return what a source rearranges: a result that is computed, or a tensor that no step makes."""
    while source.step is not None and steps[source.step].operation in VIEWS:
        source = steps[source.step].inputs[0]
    return source


def steps_from_projection(observation: Observation, source: Source) -> list[Step]:
    """Return the steps from the projection that produced an operand to the operand, in the order of the trace.

    If tokens enter without a projection, the path begins with the first step computed from them.
    """
    steps = observation.trace.steps
    dependent = steps_from_tokens(steps)
    path: set[int] = set()
    pending = [] if source.step is None else [source.step]
    while pending:
        index = pending.pop()
        if index in path or index not in dependent:
            continue
        path.add(index)
        if not (is_projection(steps[index]) or _multiplies_weights(steps, steps[index], dependent)):
            inputs = _input_steps(steps[index])  # but not the indices by which tokens are chosen
            pending += [it for it in inputs if steps[it].dtype != torch.int64]
    return [steps[index] for index in sorted(path)]


def _multiplies_weights(steps: Sequence[Step], step: Step, from_tokens: set[int]) -> bool:
    """Check whether a step is a product with a trained matrix that was rearranged before."""
    return step.operation in PRODUCTS and any(
        source.step is not None
        and source.step not in from_tokens
        and any(
            read.kind == "parameter"
            for index in ancestors(steps, steps[source.step])
            for read in steps[index].inputs
        )
        for source in step.inputs
    )


def steps_to_next_projection(observation: Observation, start: Step) -> list[Step]:
    """Return a step and the steps after it that only rearrange its result, in the order of the trace."""
    path = {start.index}
    for step in observation.trace.steps[start.index + 1 :]:
        reads_path = any(source.step in path for source in read_by(step))
        if reads_path and step.operation in VIEWS and not is_projection(step):
            path.add(step.index)
    return [observation.trace.steps[index] for index in sorted(path)]


def parameter_names(path: Iterable[Step]) -> list[str]:
    """Return the names of the parameters that the steps of a path read."""
    return [source.name for step in path for source in step.inputs if source.kind == "parameter"]


def ancestors(steps: Sequence[Step], start: Step) -> set[int]:
    """Return the indices of the steps that a result was computed from, including its own."""
    visited: set[int] = set()
    pending = [start.index]
    while pending:
        index = pending.pop()
        if index not in visited:
            visited.add(index)
            pending += _input_steps(steps[index])
    return visited


def has_single_key(steps: Iterable[Step]) -> bool:
    """Check whether every softmax returns weights of 1 alone, as in a call with one key."""
    softmaxes = [tensor_of(it) for it in steps if it.operation in SOFTMAXES]
    return bool(softmaxes) and all(it is not None and bool((it == 1).all()) for it in softmaxes)


def steps_behind(steps: Sequence[Step], source: Source) -> set[int]:
    """Return the indices of the steps that a tensor was computed from; none if no step has made it."""
    return set() if source.step is None else ancestors(steps, steps[source.step])


def arguments_behind(steps: Sequence[Step], source: Source) -> set[str]:
    """Return the names of the arguments of the call that a tensor is, or was computed from."""
    if source.step is None:
        return {source.name} if source.kind == "input" else set()
    read = (it for index in steps_behind(steps, source) for it in steps[index].inputs)
    return {it.name for it in read if it.kind == "input"}


def operands_of(step: Step) -> list[Source]:
    """Return the tensors among the positional arguments of a step, in their order."""
    return [it for it in step.arguments if isinstance(it, Source)]


def steps_of_places(steps: Sequence[Step], operations: Sequence[str] = LOOKUPS) -> set[int]:
    """Return the steps behind the integers that tell operations which entries to read, such as buckets of distances."""
    places = (
        source.step
        for step in steps
        if step.operation in operations
        for source in step.inputs[0 if step.operation == "embedding" else 1 :]
        if source.step is not None and steps[source.step].dtype == torch.int64
    )
    return {index for it in places for index in (it, *ancestors(steps, steps[it]))}


def only_selects(steps: Sequence[Step], start: Step) -> bool:
    """Check whether a result is used only through indices or Booleans, as those of the largest entries are."""
    reached, selects = {start.index}, False
    readers: set[int] = set()
    for step in steps[start.index + 1 :]:
        sources = reached.intersection(_input_steps(step))
        if not sources:
            continue
        readers |= sources
        if step.unused:
            continue  # the values of a topk whose indices are wanted
        if step.dtype.is_floating_point or step.dtype.is_complex:
            reached.add(step.index)
        else:
            selects = True
    return selects and reached == readers


def is_discrete(steps: Sequence[Step], chain: Sequence[Step]) -> bool:
    """Check whether a chain of steps passes through a choice of largest entries, whose values are 0 or 1.

    Args:
        steps: All steps of the run.
        chain: The steps from scores to weights.
    """
    own = {step.index for step in chain}
    return any(
        step.operation in CHOICES and own.intersection(_input_steps(step))
        for step in steps[chain[0].index : chain[-1].index + 1]
    )


def unused_steps(steps: Sequence[Step]) -> set[int]:
    """Return the indices of the steps that have no effect: neither they nor anything computed from them is used."""
    readers: dict[int, list[int]] = {}
    for step in steps:
        for index in _input_steps(step):
            readers.setdefault(index, []).append(step.index)
    unused: set[int] = set()
    for step in reversed(steps):
        step_readers = readers.get(step.index, [])
        only_unused_readers = step_readers and unused.issuperset(step_readers)
        is_result = step.name.startswith("output") and "·" not in step.name and not step.module
        if step.unused or (only_unused_readers and not is_result):
            unused.add(step.index)
    return unused


def _input_steps(step: Step) -> list[int]:
    """Return the indices of the steps whose results a step reads."""
    return [source.step for source in step.inputs if source.step is not None]
