"""Tables of texts as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

# Within the elements, because notebooks have styles for tables of their own.
TABLE: str = "border-collapse: collapse; font: 12px/1.4 system-ui, sans-serif; margin: 0.3em 0"
CELL: str = (
    "padding: 0.15em 0.8em 0.15em 0; vertical-align: top; border: 0; overflow-wrap: anywhere"
)
LEFT: str = f"{CELL}; text-align: left"
RIGHT: str = f"{CELL}; text-align: right; font-variant-numeric: tabular-nums"


def table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = (), caption: str = "") -> str:
    """Return rows of texts as an HTML table.

    Args:
        rows: The texts of each row. Without a header, the first one names the row. Columns of numbers align right.
        header: The names of the columns.
        caption: A sentence before the table.

    Examples:
        >>> "a &lt; b" in table([("mask", "a < b")])
        True
    """
    rows = [tuple(row) for row in rows]
    numeric = [all(map(_is_number, column)) for column in zip(*rows, strict=True)]
    styles = [RIGHT if number else LEFT for number in numeric]
    head = "".join(_cell("th", name, style) for name, style in zip(header, styles, strict=False))
    body = "".join(f"<tr>{_row(row, styles, named=not header)}</tr>" for row in rows)
    above = f"<p>{html.escape(caption)}</p>" if caption else ""
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'{above}<table style="{TABLE}">{head}<tbody>{body}</tbody></table>'


def _row(texts: Sequence[str], styles: Sequence[str], *, named: bool) -> str:
    tags = ("th" if named else "td", *("td" for _ in texts[1:]))
    return "".join(map(_cell, tags, texts, styles))


def _cell(tag: str, text: str, style: str) -> str:
    return f'<{tag} style="{style}">{html.escape(text)}</{tag}>'


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()
