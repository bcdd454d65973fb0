"""The progress of a run: a clock that records what time is spent on, and a bar on the terminal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from heedful.screen import without_controls


class Clock:
    """The time spent on a run, by purpose, over all processes that worked on it.

    Attributes:
        spent: seconds by purpose.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        """The total time in seconds."""
        return sum(self.spent.values())

    def add(self, spent: Mapping[str, float]) -> None:
        """Add the seconds that an earlier process spent, by purpose."""
        for purpose, seconds in spent.items():
            self.spent[purpose] += seconds

    @contextmanager
    def spending(self, purpose: str) -> Iterator[None]:
        """Add the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[purpose] += time.perf_counter() - start


class Display:
    """A progress bar, with lines printed above it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, loss: float, tokens_per_second: float) -> None:
        """Move the bar by one step."""
        self._progress.update(self._task, advance=1, loss=loss, speed=tokens_per_second)

    def print(self, line: str) -> None:
        """Print lines above the bar, with control characters as escapes: what a model writes is not to be obeyed."""
        text = without_controls(line)
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def display(completed: int, steps: int, *, quiet: bool = False) -> Iterator[Display]:
    """Show a bar of steps, some of them completed already; without a terminal only the lines are printed.

    Args:
        completed: how many steps are.
        steps: how many there are in all.
        quiet: whether to show nothing, as all ranks but one do.
    """
    console = Console(quiet=quiet)
    progress = Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        refresh_per_second=2,  # drawing the bar takes time from the steps
        transient=True,
    )
    with progress:
        task = progress.add_task(
            "training", total=steps, completed=completed, loss=float("nan"), speed=0
        )
        yield Display(progress, task)
