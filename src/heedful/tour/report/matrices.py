"""Labelled matrices: the values of steps as the text and the page show them."""

from dataclasses import dataclass
from pathlib import PurePath

from torch import Tensor

from heedful.observation import Step
from heedful.tour.descriptions import HEAD, SINGLE, TOKEN, StepDescription
from heedful.tour.recordings import tensor_of


@dataclass(frozen=True, eq=False)
class LabelledMatrix:
    """A matrix, or one per head, with labels.

    Attributes:
        tensor: (rows, columns) or (heads, rows, columns).
        rows: The labels of the rows.
        columns: The labels of the columns.
    """

    tensor: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def labelled_matrix(
    step: Step, description: StepDescription, token_labels: tuple[str, ...]
) -> LabelledMatrix:
    """Return the value of a step with its heads first. A one-dimensional value becomes one row.

    Args:
        step: The step.
        description: Its description, which says what its dimensions count.
        token_labels: The labels of the tokens.
    """
    tensor = tensor_of(step)
    axes = description.axes[-tensor.dim() :]
    if HEAD in axes:
        tensor = tensor.movedim(axes.index(HEAD), 0)
        axes = tuple(axis for axis in axes if axis != HEAD)
    if tensor.dim() == 1:
        tensor, axes = tensor.unsqueeze(0), (SINGLE, *axes)
    rows, columns = (
        _labels(axis, size, token_labels)
        for axis, size in zip(axes, tensor.shape[-2:], strict=True)
    )
    return LabelledMatrix(tensor, rows, columns)


def _labels(axis: str, size: int, token_labels: tuple[str, ...]) -> tuple[str, ...]:
    if axis == SINGLE:
        return ("",)
    return token_labels if axis == TOKEN else tuple(map(str, range(size)))


def step_title(step: Step) -> str:
    """Return the variable's name, preceded by that of its submodule if there is one: "heads.1 scores"."""
    return f"{step.module} {step.name}" if step.module else step.name


def short_path(file: str) -> str:
    """Return a file with its folder.

    >>> short_path("/site-packages/heedful/textbook/causal.py")
    'textbook/causal.py'
    """
    return "/".join(PurePath(file).parts[-2:])
