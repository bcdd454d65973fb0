"""A plan as text: in color on a terminal, plain where it is piped."""

from __future__ import annotations

from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from heedful.parallel import ParallelPlan
from heedful.screen import console_for, plain_table, printed, with_unit

WIDTH: int = 120


def as_text(plan: ParallelPlan, problem: dict[str, Any], hardware: str, stream: TextIO) -> str:
    """Return the plan as text.

    Args:
        plan: the plan.
        problem: the sizes, dtype and mask.
        hardware: what a rank can do, as a sentence.
        stream: where the text will be printed. There are no colors unless it is a terminal.
    """
    console = console_for(stream, WIDTH)
    console.print(Text.assemble(("heedful plan", "bold"), f"  {_problem(problem)}\n{hardware}\n"))
    console.print(_table(plan))
    console.print(Text.assemble("\nTake ", (plan.best.name, "bold green"), f": {plan.reason}."))
    return printed(console)


def _problem(problem: dict[str, Any]) -> str:
    heads = f"{problem['query_heads']} query heads, {problem['key_heads']} key heads"
    size = f"head size {problem['head_size']}, {problem['dtype']}, {problem['mask']}"
    batch = f"{problem['batch']} × " if problem["batch"] > 1 else ""
    return f"{batch}{problem['tokens']:,} tokens, {heads}, {size}, on {problem['ranks']} ranks"


def _table(plan: ParallelPlan) -> Table:
    table = plain_table()
    table.add_column("split", no_wrap=True)
    for title in ("forward", "backward", "waiting", "memory", "without grad.", "sent"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("notes")
    for split in plan.splits:
        table.add_row(
            Text(split.name, style="bold green" if split is plan.best else ""),
            seconds(split.forward_seconds),
            seconds(split.backward_seconds),
            f"{split.waiting_seconds / split.seconds:.0%}",
            with_unit(split.memory_bytes, "B"),
            with_unit(split.forward_memory_bytes, "B"),
            with_unit(split.sent_bytes, "B"),
            Text("; ".join(split.notes), style="dim"),
        )
    for name, reason in plan.refused:
        table.add_row(Text(name, style="dim"), *[""] * 6, Text(reason, style="dim"))
    return table


def seconds(number: float) -> str:
    """Format a time.

    >>> seconds(0.0123), seconds(75.0)
    ('12.3 ms', '75 s')
    """
    return f"{number * 1e3:.3g} ms" if number < 1 else f"{number:.3g} s"
