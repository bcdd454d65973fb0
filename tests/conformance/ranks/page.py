"""Writes the table of published bugs in docs/conformance-ranks.md: python tests/conformance/ranks/page.py"""

from pathlib import Path

from mutants import MUTANTS, Mutant

PAGE = Path(__file__).parents[3] / "docs" / "conformance-ranks.md"
HEADER = "| bug | seen in | found as | rank | line |\n|---|---|---|--:|---|\n"


def row(mutant: Mutant) -> str:
    """Return the row of a mutant."""
    cells = (mutant.name, mutant.seen_in, mutant.finding, mutant.rank, f"`{mutant.blamed}`")
    return f"| {' | '.join(map(str, cells))} |\n"


def table() -> str:
    """Return the whole table."""
    return HEADER + "".join(map(row, MUTANTS))


if __name__ == "__main__":
    before, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADER)
    PAGE.write_text(before + table(), encoding="utf-8")
