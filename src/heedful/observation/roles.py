"""The roles of steps in attentions that are written out: back from a softmax to the scores, and on to the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heedful.observation.step import Source, Step

PRODUCTS: frozenset[str] = frozenset({"matmul", "bmm", "mm", "einsum", "baddbmm"})
SCALINGS: frozenset[str] = frozenset({"div", "truediv", "true_divide", "mul", "multiply"})
MASKINGS: frozenset[str] = frozenset({"masked_fill", "where"})
BETWEEN: frozenset[str] = frozenset(
    {
        "add",
        "sub",
        "iadd",
        "view",
        "reshape",
        "unflatten",
        "flatten",
        "to",
        "float",
        "double",
        "tanh",
        "contiguous",
        "squeeze",
        "unsqueeze",
        "transpose",
        "permute",
        "clone",
        "type_as",
    }
)
"""Operations between scores and softmax, or softmax and context, that have no role of their own."""


def roles_of(steps: Sequence[Step]) -> dict[int, str]:
    """Return the roles of steps by their index: "scores", "weights", "context" and those between.

    A softmax makes weights if it leads back to a product of two tensors that are no parameters, and on to another one.
    """
    roles: dict[int, str] = {}
    readers: dict[int, list[Step]] = {}
    for step in steps:
        for source in step.inputs:
            if source.step is not None:
                readers.setdefault(source.step, []).append(step)
    for step in steps:
        if step.operation == "softmax" and not step.beside:
            before, after = dict(_roles_before(steps, step)), dict(_roles_after(readers, step))
            if "scores" in before.values() and "context" in after.values():
                roles |= before | {step.index: "weights"} | after
    return roles


def _roles_before(steps: Sequence[Step], softmax: Step) -> Iterator[tuple[int, str]]:
    """Yield the roles of the steps from a softmax back to the scores."""
    step = softmax
    while (index := _first_step_read(steps, step)) is not None:
        step = steps[index]
        operation = step.operation.strip("_")
        if operation in PRODUCTS:
            if not any(source.kind == "parameter" for source in step.inputs):
                yield index, "scores"
            return
        if operation in MASKINGS:
            yield index, "masked_scores"
        elif operation in SCALINGS:
            yield index, "scaled_scores"
        elif operation not in BETWEEN:
            return


def _first_step_read(steps: Sequence[Step], step: Step) -> int | None:
    """Return the step that an operation computes with: of a choice between two tensors, the one that is no fill."""
    arguments = [it for it in step.arguments if isinstance(it, Source) and it.step is not None]
    if step.operation == "where":
        arguments = arguments[1:]
    return next(
        (it.step for it in arguments if it.step is not None and steps[it.step].shape != ()), None
    )


def _roles_after(readers: dict[int, list[Step]], weights: Step) -> Iterator[tuple[int, str]]:
    """Yield the roles of the steps from weights to the context."""
    pending = [weights]
    while pending:
        for step in readers.get(pending.pop().index, ()):
            operation = step.operation.strip("_")
            if operation in PRODUCTS:
                yield step.index, "context"
            elif "dropout" in operation:
                yield step.index, "dropped_weights"
                pending.append(step)
            elif operation in BETWEEN:
                pending.append(step)
