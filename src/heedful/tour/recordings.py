"""Recorded runs of the textbook, and the result of a rung."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from heedful.observation import Step, Trace, record
from heedful.tour.comparison import Comparison
from heedful.tour.descriptions import DESCRIPTIONS, StepDescription
from heedful.tour.inputs import MAX_FEATURES, MAX_TOKENS
from heedful.viewer.steps.recording import given_tensors

SEED: int = 123  # of the documents that the textbook follows
HEADS: int = 2  # enough to see that heads differ
MAX_HEAD_SIZE: int = 32
DROPOUT: float = 0.5


def head_size(width: int) -> int:
    """Return the head size for tokens with `width` features: half of it, but at most 32 to keep pictures readable.

    >>> head_size(3), head_size(384)
    (2, 32)
    """
    return min((width + 1) // 2, MAX_HEAD_SIZE)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One recorded run.

    Attributes:
        title: What ran, and on what.
        code: The functions and classes whose lines made the steps.
        trace: The recording.
        descriptions: The descriptions of the steps, by their names.
        given: The tensors that the call was given, by the kind and name of their sources: tokens and weights.
    """

    title: str
    code: tuple[Callable[..., object], ...]
    trace: Trace
    descriptions: dict[str, StepDescription]
    given: Mapping[tuple[str, str], Tensor]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters of the module, by name."""
        return {name: value for (kind, name), value in self.given.items() if kind == "parameter"}

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that are assigned to a variable. Unnamed intermediate results such as "scores·mT" are left out."""
        return tuple(step for step in self.trace if step.name in self.descriptions)


@dataclass(frozen=True, eq=False)
class RungResult:
    """The result of a rung.

    Attributes:
        runs: Its recorded runs.
        comparisons: The comparisons of its routes.
        findings: Other measurements, in sentences.
        beside: Whether its runs are routes to the same result, which a page shows side by side.
    """

    runs: tuple[RecordedRun, ...]
    comparisons: tuple[Comparison, ...]
    findings: tuple[str, ...] = ()
    beside: bool = False


def record_run(
    title: str,
    callable: Callable[..., Tensor],
    *inputs: object,
    code: tuple[Callable[..., object], ...] | None = None,
    descriptions: dict[str, StepDescription] = DESCRIPTIONS,
) -> RecordedRun:
    """Record a run.

    Args:
        title: What runs, and on what.
        callable: The function or module.
        inputs: Its arguments.
        code: The functions and classes whose lines make the steps. Default: the callable itself.
        descriptions: The descriptions of the steps, by their names.
    """
    if code is None:
        code = (type(callable) if isinstance(callable, nn.Module) else callable,)
    given = given_tensors(callable, inputs, {})
    # These limits keep every step whole, whatever the input is.
    trace = record(callable, *inputs, largest=MAX_TOKENS * MAX_FEATURES, memory=2**40)
    return RecordedRun(title, code, trace, descriptions, given)


def last_value(trace: Trace, name: str) -> Tensor:
    """Return the last value of a recorded variable."""
    return tensor_of(trace[name])


def tensor_of(step: Step) -> Tensor:
    """Return the value of a step, which `record_run` never summarises."""
    assert isinstance(step.value, Tensor)
    return step.value


def largest_absolute(tensor: Tensor) -> float:
    """Return the largest absolute value, or 0 for an empty tensor."""
    return tensor.abs().max().item() if tensor.numel() else 0.0
