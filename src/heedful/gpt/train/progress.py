"""What a run shows while it lasts: a bar on a terminal, and a line for each evaluation anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Display:
    """A bar that is told of every step, and lines above it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def stepped(self, loss: float, tokens_per_second: float) -> None:
        """One step more is done."""
        self._progress.update(self._task, advance=1, loss=loss, speed=tokens_per_second)

    def print(self, line: str) -> None:
        """Print above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def display(done: int, steps: int) -> Iterator[Display]:
    """Show a bar of `steps` steps, `done` of them already taken; only lines where stdout is no terminal."""
    console = Console()
    progress = Progress(
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        refresh_per_second=2,  # what draws it takes its time from the steps
        transient=True,
    )
    with progress:
        task = progress.add_task(
            "training", total=steps, completed=done, loss=float("nan"), speed=0
        )
        yield Display(progress, task)
