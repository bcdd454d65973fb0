"""What climbing a rung gives: recorded runs of the textbook, comparisons of its routes, and findings."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from heedful.observation import Step, Trace, record
from heedful.tour.comparison import Comparison
from heedful.tour.inputs import MOST_FEATURES, MOST_TOKENS
from heedful.tour.meanings import MEANINGS, Meaning

SEED = 123  # that of the documents which the textbook follows
HEADS = 2  # enough to see that they differ
WIDEST_HEAD = 32
DROPOUT = 0.5


def head_size(width: int) -> int:
    """Features of a head for tokens of a width: half of it, rounded up; 32 at most, so that pictures can be read."""
    return min((width + 1) // 2, WIDEST_HEAD)


@dataclass(frozen=True, eq=False)
class Walk:
    """One recorded run.

    Attributes:
        title: what ran, on what.
        code: the functions and classes whose lines made the steps.
        trace: the recording.
        meanings: what its steps mean.
    """

    title: str
    code: tuple[Callable[..., object], ...]
    trace: Trace
    meanings: dict[str, Meaning]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that a variable holds; what is made on the way to one ("scores·mT") is left out."""
        return tuple(step for step in self.trace if step.name in self.meanings)


@dataclass(frozen=True, eq=False)
class Climb:
    """What a rung showed: its runs, whether its routes agree, and what else was measured, in sentences."""

    walks: tuple[Walk, ...]
    comparisons: tuple[Comparison, ...]
    findings: tuple[str, ...] = ()


def walk(
    title: str,
    callable: Callable[..., Tensor],
    *inputs: object,
    code: tuple[Callable[..., object], ...] | None = None,
    meanings: dict[str, Meaning] = MEANINGS,
) -> Walk:
    """Record a run; without `code`, its steps stand on the callable's own lines."""
    if code is None:
        code = (type(callable) if isinstance(callable, nn.Module) else callable,)
    # Whatever the input may be, every step is kept whole.
    trace = record(callable, *inputs, largest=MOST_TOKENS * MOST_FEATURES, memory=2**40)
    return Walk(title, code, trace, meanings)


def value(trace: Trace, name: str) -> Tensor:
    """The last value that the recorded variable had."""
    return tensor_of(trace[name])


def tensor_of(step: Step) -> Tensor:
    """A step's value, which `walk` lets nothing shorten."""
    assert isinstance(step.value, Tensor)
    return step.value


def largest(tensor: Tensor) -> float:
    """The largest absolute value; 0 if there is none."""
    return tensor.abs().max().item() if tensor.numel() else 0.0
