"""A step's value as rows and columns with labels, heads before them: what terminal and page draw."""

from dataclasses import dataclass
from pathlib import PurePath

from torch import Tensor

from heedful.observation import Step
from heedful.tour.meanings import HEAD, SINGLE, TOKEN, Meaning
from heedful.tour.walks import tensor_of


@dataclass(frozen=True, eq=False)
class Arranged:
    """A tensor (rows, columns), or (heads, rows, columns), and what its rows and columns are called."""

    tensor: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def arrange(step: Step, meaning: Meaning, token_labels: tuple[str, ...]) -> Arranged:
    """Bring a step's value into the order (heads, rows, columns); one dimension is one row."""
    tensor = tensor_of(step)
    axes = meaning.axes[-tensor.dim() :]
    if HEAD in axes:
        tensor = tensor.movedim(axes.index(HEAD), 0)
        axes = tuple(axis for axis in axes if axis != HEAD)
    if tensor.dim() == 1:
        tensor, axes = tensor.unsqueeze(0), (SINGLE, *axes)
    rows, columns = (
        _labels(axis, size, token_labels)
        for axis, size in zip(axes, tensor.shape[-2:], strict=True)
    )
    return Arranged(tensor, rows, columns)


def _labels(axis: str, size: int, token_labels: tuple[str, ...]) -> tuple[str, ...]:
    if axis == SINGLE:
        return ("",)
    return token_labels if axis == TOKEN else tuple(map(str, range(size)))


def step_title(step: Step) -> str:
    """The variable's name, after the module's that held it: "heads.1 scores"."""
    return f"{step.module} {step.name}" if step.module else step.name


def short_path(file: str) -> str:
    """A file with its folder, which is enough to tell it: "textbook/causal.py"."""
    return "/".join(PurePath(file).parts[-2:])
