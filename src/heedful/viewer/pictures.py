"""What all pictures share: Matplotlib, which draws them, their colors, their labels and their files."""

# The imports within functions come with an extra:
# pyright: reportMissingImports=false
from __future__ import annotations

import io
import warnings
from typing import Any

from heedful.errors import MissingExtraError

EXTRA = "pictures"
COLORS = ("#6e2a04", "#dd6519", "#fdd5b1", "#f4f8fc", "#c6dbef", "#4292c6", "#08306b")


def check_matplotlib(form: str) -> None:
    """Raise `MissingExtraError` unless Matplotlib is installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401
        from matplotlib.figure import Figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"A picture (.{form})", EXTRA) from error


def saved(figure: Any, form: str) -> bytes:
    """Return a figure as a file, which has the same bytes whenever it is drawn."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "heedful"}):
        warnings.filterwarnings(
            "ignore", "Glyph"
        )  # a label that the font cannot draw becomes a box
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(content, format=form, dpi=160, bbox_inches="tight", metadata=metadata)
    return content.getvalue()


def drawable(label: str, longest: int = 16) -> str:
    """Return a label as Matplotlib can draw it: short, without control characters, and no formula."""
    shown = label[:longest].replace("\n", "↵").replace("\t", "⇥")
    letters = (it if it.isprintable() else "\N{REPLACEMENT CHARACTER}" for it in shown)
    return "".join(letters).replace("$", r"\$")
